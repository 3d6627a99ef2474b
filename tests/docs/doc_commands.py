"""Who runs each command of the documentation. One that stands in neither table fails a test."""

from __future__ import annotations

# Run by tests/docs in a folder with the repository's recipes and a small run called demo; what is
# added here makes the command cheap and changes nothing of what the reader types before it.
RUN: dict[str, str] = {
    "make help": "",
    "rledger --help": "",
    "rledger doctor": "",
    "rledger explain": "",
    "rledger explain algorithm.loss": "",
    "rledger explain tasks.deadline_s --recipe recipes/demo.toml": "",
    "rledger explain trainer.learning_rate --recipe recipes/demo.toml": "",
    "rledger model export runs/demo exported-policy": "",
    "rledger report demo": "",
    "rledger report demo --steps 1:20": "",
    "rledger train recipes/demo.toml --dry-run": "",
    "rledger train recipes/demo.toml run.name=hotter sampling.temperature=1.2 --dry-run": "",
    "rledger train recipes/demo.toml run.num_steps=120": "run.name=longer --dry-run",
    "rledger train recipes/demo.toml trainer.learning_rate=2e-4 --dry-run": "",
    "rledger warmup recipes/demo-warmup.toml warmup.output=my-policy": "warmup.num_updates=2"
    " warmup.eval_every_updates=2 warmup.rows_per_update=4 tasks.data.num_train_prompts=50"
    " tasks.data.num_eval_prompts=4 shape.width=16 shape.num_layers=1 shape.ffn_width=16",
}

# Covered by the file or the make target named.
ELSEWHERE: dict[str, str] = {
    ".ci/run": ".ci/run",
    ".venv/bin/python -m pytest tests/loop": "make test",
    "make demo": "nightly/demo.py",
    "make lint": ".ci/run",
    "make nightly SUITE=demo": "nightly/demo.py",
    "make nightly SUITE=smollm2 SEEDS=1": "nightly/smollm2.py",
    "make test": ".ci/run",
    "pip install -e .": "tests/architecture/test_layers.py",
    "python docs/generate.py": "tests/docs/test_pages.py",
    "rledger model get smollm2-135m": "tests/models/test_fetch.py",
    "rledger train recipes/smollm2-arithmetic.toml": "nightly/smollm2.py",
    "source .venv/bin/activate": "Makefile",
}
