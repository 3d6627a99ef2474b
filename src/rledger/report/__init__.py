"""Readings of the books: for the terminal, live and afterwards."""
