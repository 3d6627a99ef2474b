# RLedger's commands. `make help` lists them.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# The budget of each suite in seconds; a suite that passes it fails.
BUDGET_architecture := 120
BUDGET_algo         := 120
BUDGET_books        := 60
BUDGET_contracts    := 60
BUDGET_loop         := 120

.PHONY: help demo test lint nightly bench clean

help:            ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null \
	  || { rm -rf $(VENV); $(PYTHON) -m pip install --quiet --user virtualenv && $(PYTHON) -m virtualenv $(VENV); }
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24'
	$(BIN)/python -m pip install --quiet -e '.[train,gguf,dev]'
	@touch $@

demo: $(STAMP)   ## train a tiny model by reinforcement learning, and read its books
	$(BIN)/rledger train recipes/demo.toml
	$(BIN)/rledger report runs/demo

test: $(STAMP)   ## run the tests (nightly and gpu suites apart)
	$(BIN)/python -m pytest -m 'not nightly and not gpu'

lint: $(STAMP)   ## lint, format and type checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:           ## remove the environment and caches, never runs/
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build src/*.egg-info
