"""Pure decisions: from facts to plans, without clock, I/O or hidden randomness."""
