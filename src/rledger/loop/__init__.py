"""The controller and its coroutines; it touches time, tasks and I/O only through what it is given."""
