"""The same controller on a virtual clock with fakes."""
