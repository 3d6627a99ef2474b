"""A checkpoint of a run as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from rledger.books import Books
from rledger.config.load import read_resolved
from rledger.errors import CheckpointError, RunFolderError
from rledger.loop.checkpoint import CheckpointStore
from rledger.models.placement import choose_placement
from rledger.trainer import build_trainer

__all__ = ["export_checkpoint"]


def export_checkpoint(run_folder: Path, target: Path, *, step: int | None = None) -> None:
    """Write the policy of the newest checkpoint, or of `step`, into `target`, which must not exist."""
    if target.exists():
        raise RunFolderError(f"{target} exists; choose a folder that does not")
    try:
        recipe = read_resolved(run_folder / "recipe.json")
    except FileNotFoundError:
        raise RunFolderError(f"{run_folder} is no run folder (it has no recipe.json)") from None
    checkpoint = CheckpointStore(run_folder / "checkpoints", keep=1).latest(step)
    if checkpoint is None:
        raise CheckpointError(f"{run_folder} has no checkpoint yet")
    if not Path(recipe.model.path).is_dir():
        raise RunFolderError(
            f"{run_folder} was trained from the model folder {recipe.model.path}, which is not here; its"
            " configuration and tokenizer are needed: call this from the folder that the run was"
            " started in, or bring that model back"
        )
    trainer = build_trainer(
        recipe,
        Path(recipe.model.path),
        placement=choose_placement("cpu", recipe.model.dtype, recipe.run.threads_per_role),
        lane=Books.in_memory().lane("main"),
    )
    trainer.load(checkpoint.folder / "trainer")
    trainer.export_hf(target)
