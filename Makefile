# RLedger's commands. `make help` lists them.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# suite:budget in seconds; a suite that passes its budget fails. All together: under 25 minutes.
SUITES := architecture:90 algo:180 benchmarks:60 books:60 cli:240 config:60 contracts:60 cost:60 \
          docs:90 generator:150 loop:150 models:90 report:60 schedule:60 tasks:120 trainer:120 gpu:60

.PHONY: help demo test lint nightly rivals bench bench-step bench-generation bench-score clean

# Virtual environments of the public tools that the benchmarks compare with.
TRL  ?= .venv-trl
VLLM ?= .venv-vllm

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
	@set -e; for entry in $(SUITES); do \
	  suite=$${entry%%:*}; budget=$${entry##*:}; \
	  echo "-- tests/$$suite, at most $$budget s"; \
	  timeout $$budget $(BIN)/python -m pytest tests/$$suite -rs -m 'not nightly' \
	    || { status=$$?; test $$status = 124 && echo "tests/$$suite passed its budget of $$budget s"; exit $$status; }; \
	done

nightly: $(STAMP)  ## one heavy suite: make nightly SUITE=demo [SEEDS=1,2,3]
	$(BIN)/python -m nightly $(SUITE) --seeds $(or $(SEEDS),1,2,3)

lint: $(STAMP)   ## lint, format and type checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

rivals: $(STAMP) ## create .venv-trl and .venv-vllm, for the benchmarks
	$(BIN)/python -m benchmarks.rivals.environment

bench: bench-step bench-generation bench-score ## compare with public tools, on an idle machine (2 hours)

bench-step: $(STAMP)
	@echo "about 25 minutes"
	$(BIN)/python -m benchmarks.grpo_step --trl $(TRL)
	$(BIN)/python -m benchmarks.readme

bench-generation: $(STAMP)
	@echo "about 15 minutes"
	$(BIN)/python -m benchmarks.generation --trl $(TRL) --vllm $(VLLM)
	$(BIN)/python -m benchmarks.readme

bench-score: $(STAMP)
	@echo "about 40 minutes a seed of TRL where none is kept, and 15 a seed of ours"
	$(BIN)/python -m benchmarks.time_to_score --trl $(TRL)
	$(BIN)/python -m benchmarks.readme

clean:           ## remove the environment and caches, never runs/
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build src/*.egg-info
