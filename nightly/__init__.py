"""Heavy suites: minutes to an hour each. `make nightly SUITE=demo` runs one and keeps its result."""
