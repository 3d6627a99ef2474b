"""Pure decisions: which groups to train on, in what order, in which packing."""
