"""explain, doctor, report and model, from the outside."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import contents

REPOSITORY = Path(__file__).parents[2]
Speak = Callable[..., Any]


def test_help_answers_within_300_ms_beyond_the_interpreter() -> None:
    def median_s(code: str) -> float:
        times = []
        for _ in range(7):
            begin_s = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
            times.append(time.perf_counter() - begin_s)
        return statistics.median(times)

    assert median_s(_HELP) - median_s("pass") < 0.3


_HELP = """
import sys
from rledger.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
"""


def test_explain_prints_the_facts_of_a_key(rledger: Speak, recipe: Path) -> None:
    spoken = rledger("explain", "trainer.learning_rate", "--recipe", recipe)
    assert spoken.status == 0
    assert spoken.out.splitlines() == [
        "trainer.learning_rate",
        "  Learning rate after the warm-up.",
        "  takes      a number at least 0",
        "  default    1e-06",
        "  value      0.01",
        f"  from       {recipe}",
    ]
    assert max(map(len, rledger("explain", "algorithm.loss.type").out.splitlines())) <= 100
    assert rledger("explain", "trainer.learning_rat").status == 2
    keys = rledger("explain").out.split()
    assert "trainer.critic.learning_rate" in keys and keys == sorted(keys)


def test_output_that_nobody_reads_to_the_end_is_no_error() -> None:
    code = "import sys; from rledger.cli import main; sys.exit(main(['explain']))"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    errors = child.stderr.read()
    assert child.wait(timeout=30) in (0, 141)
    assert errors == b""


def test_a_dry_run_creates_nothing_and_loads_no_torch(recipe: Path, tmp_path: Path) -> None:
    before = contents(tmp_path)
    code = (
        "import sys; from rledger.cli import main; status = main(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'safetensors'} & set(sys.modules);"
        "sys.stderr.write(repr(sorted(heavy))); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", str(recipe), "--dry-run"],
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "[]")
    assert "[run]" in done.stdout and "# Stages" in done.stdout
    assert contents(tmp_path) == before
    assert not (tmp_path / "runs").exists()


def test_doctor_names_what_a_run_needs(rledger: Speak, tmp_path: Path) -> None:
    spoken = rledger("doctor", "--root", tmp_path / "not" / "there")
    assert spoken.status == 0
    for what in (
        "rledger", "python", "torch", "transformers", "processor", "instruction sets",
        "torch threads", "devices", "memory", "shared memory", "disk for runs",
    ):  # fmt: skip
        assert f"\n{what} " in f"\n{spoken.out}", what
    assert f"{torch.__version__}" in spoken.out
    assert not (tmp_path / "not").exists()


def test_report_of_no_run_names_the_runs_there_are(
    rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    spoken = rledger("report", "nothing")
    assert spoken.status == 2
    assert "nothing is no run folder (it has no books); runs here: none" in spoken.err
    assert rledger("train", recipe, "run.num_steps=1").status == 0
    assert "runs here: small" in rledger("report", "nothing").err
    assert rledger("report", "small").status == 0
    spoken = rledger("report", "small", "--steps", "5:9")
    assert spoken.status == 2 and "no closed step in 5:9; it has 1..1" in spoken.err
    spoken = rledger("report", "small", "--steps", "first")
    assert spoken.status == 2 and "write it as A:B, for example 1:20" in spoken.err


def test_report_of_an_empty_run_says_that_it_has_not_begun(rledger: Speak, tmp_path: Path) -> None:
    (tmp_path / "runs" / "empty" / "books").mkdir(parents=True)
    spoken = rledger("report", "empty")
    assert spoken.status == 2
    assert "no books in it" in spoken.err and "no run has begun here" in spoken.err


def test_report_of_a_run_that_never_reached_its_first_step(
    rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    assert rledger("train", recipe, "tasks.data.reward.path=nowhere:score").status == 2
    spoken = rledger("report", "small")
    assert spoken.status == 0
    assert "0 of 3 committed" in spoken.out
    # Killed inside the first line of its books.
    path = tmp_path / "runs" / "small" / "books" / "0001-main.jsonl"
    path.write_bytes(path.read_bytes()[:40])
    spoken = rledger("report", "small")
    assert spoken.status in (0, 2) and "Traceback" not in spoken.err


def test_an_unknown_model_names_the_known_ones(rledger: Speak, tmp_path: Path) -> None:
    spoken = rledger("model", "get", "gpt-9")
    assert (spoken.status, spoken.err) == (
        2,
        "rledger model: model 'gpt-9' is unknown; known: smollm2-135m.\n",
    )
    assert list(tmp_path.glob("models*")) == []


def test_an_exported_checkpoint_is_what_transformers_loads(
    rledger: Speak, recipe: Path, tiny_model: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    assert rledger("train", recipe, "checkpoint.every_steps=1", "checkpoint.keep=3").status == 0
    assert rledger("model", "export", "runs/small", "last").status == 0
    assert rledger("model", "export", "runs/small", "first", "--step", "1").status == 0
    own = contents(tmp_path / "runs" / "small" / "model")
    assert contents(tmp_path / "last") == own
    assert contents(tmp_path / "first")["model.safetensors"] != own["model.safetensors"]

    from rledger.models.checkpoint import load_decoder

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True, enable_gqa=True
        ).transpose(0, 1)

    token_ids = torch.tensor([3, 5, 7, 9, 11])
    for name in ("last", "first"):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
        transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        with torch.no_grad():
            expected = theirs(token_ids[None]).logits[0]
            decoder = load_decoder(tmp_path / name)
            ours = decoder.logits(decoder.forward_hidden(token_ids, torch.arange(5), attend))
        assert torch.allclose(ours, expected, atol=1e-4)


def test_an_export_is_refused_with_its_reason(
    rledger: Speak, recipe: Path, tiny_model: Path, tmp_path: Path
) -> None:
    assert rledger("train", recipe, "run.num_steps=1").status == 0
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("mine", encoding="utf-8")
    for arguments, message in (
        (("runs/small", target), "target exists; choose a folder that does not"),
        (("runs/small", "new", "--step", 7), "has no checkpoint of step 7, but of [1]"),
        (("runs/other", "new"), "runs/other is no run folder (it has no recipe.json)"),
    ):
        spoken = rledger("model", "export", *arguments)
        assert spoken.status == 2 and message in spoken.err
    assert os.listdir(target) == ["mine"]
    resolved = tmp_path / "runs" / "small" / "recipe.json"
    data = json.loads(resolved.read_text(encoding="utf-8"))
    data["model"]["path"] = "gone"
    resolved.write_text(json.dumps(data), encoding="utf-8")
    spoken = rledger("model", "export", "runs/small", "new")
    assert (
        spoken.status == 2 and "trained from the model folder gone, which is not here" in spoken.err
    )
    data["model"]["paths"] = "gone"
    resolved.write_text(json.dumps(data), encoding="utf-8")
    spoken = rledger("model", "export", "runs/small", "new")
    assert spoken.status == 2 and "model.paths: unknown key; did you mean model.path?" in spoken.err
    assert rledger("train", recipe, "tasks.data.reward.path=no:one", "run.name=b").status == 2
    spoken = rledger("model", "export", "runs/b", "new")
    assert spoken.status == 2 and "runs/b has no checkpoint yet" in spoken.err
    assert not (tmp_path / "new").exists()
