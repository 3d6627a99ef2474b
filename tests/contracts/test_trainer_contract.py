"""What every trainer promises: one suite for the decoder's trainer, as policy and critic, and the fake."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rledger.books import Books
from rledger.config.algorithm import AlgorithmConfig
from rledger.config.trainer import OptimizerConfig
from rledger.errors import CheckpointError, ModelError, NonFiniteError
from rledger.interfaces import Trainer
from rledger.models.init import random_decoder
from rledger.models.placement import Placement
from rledger.modelspec import ModelSpec
from rledger.trainer.fake import FakeTrainer
from rledger.trainer.trainer import DecoderTrainer, TrainerSetup
from rledger.types import Batch

SPEC = ModelSpec(
    family="llama",
    vocab_size=31,
    width=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_size=8,
    ffn_width=24,
    max_positions=64,
    tied_embeddings=True,
)


class StillClock:
    def now_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        del seconds
        await asyncio.sleep(0)


def real(critic: bool) -> DecoderTrainer:
    decoder = random_decoder(SPEC, 0, value_head=critic)
    return DecoderTrainer(
        decoder,
        {name: p.detach().clone() for name, p in decoder.named_parameters()},
        TrainerSetup(
            optimizer=OptimizerConfig(learning_rate=1e-2),
            algorithm=AlgorithmConfig(),
            micro_batch_tokens=25,
            num_updates=10,
            temperature=1.0,
        ),
        placement=Placement(torch.device("cpu"), torch.float32, 1),
        lane=Books.in_memory().lane("main"),
        reference=None if critic else random_decoder(SPEC, 1).requires_grad_(False),
    )


@dataclass(frozen=True)
class Kind:
    make: Callable[[], Trainer]
    is_critic: bool
    spoil: Callable[[Trainer, Batch], Batch]  # so that row 2 is not finite


def infinite(column: str) -> Callable[[Trainer, Batch], Batch]:
    def spoil(trainer: Trainer, batch: Batch) -> Batch:
        del trainer
        spoiled = getattr(batch, column).copy()
        spoiled[batch.offsets[3] - 1] = np.inf
        return replace(batch, **{column: spoiled})

    return spoil


def fake_spoil(trainer: Trainer, batch: Batch) -> Batch:
    trainer._non_finite_ids = frozenset({batch.ids[2]})  # type: ignore[attr-defined]
    return batch


KINDS = {
    "policy": Kind(lambda: real(False), False, infinite("advantages")),
    "critic": Kind(lambda: real(True), True, infinite("returns")),
    "fake policy": Kind(lambda: FakeTrainer(StillClock(), has_reference=True), False, fake_spoil),
    "fake critic": Kind(lambda: FakeTrainer(StillClock(), is_critic=True), True, fake_spoil),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def make_batch(seed: int = 0) -> Batch:
    """Two groups of three rows."""
    rng = np.random.default_rng(seed)
    prompts, rows = [4, 4, 4, 6, 6, 6], []
    for row, prompt in enumerate(prompts):
        head = np.arange(prompt) + row // 3
        rows.append(np.r_[head, rng.integers(0, 31, 3 + row)])
    lengths = np.array([len(row) for row in rows])
    mask = np.concatenate([np.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)])
    total = int(lengths.sum())
    column = {
        name: (rng.normal(size=total) * mask).astype(np.float32)
        for name in ("generator_logprobs", "advantages", "returns", "values")
    }
    return Batch(
        ids=tuple(f"g{i // 3:08d}/{i % 3}" for i in range(6)),
        group_ids=tuple(f"g{i // 3:08d}" for i in range(6)),
        groups=np.array([0, 0, 0, 1, 1, 1], np.int32),
        offsets=np.r_[0, np.cumsum(lengths)].astype(np.int64),
        prompt_lengths=np.array(prompts, np.int32),
        token_ids=np.concatenate(rows).astype(np.int32),
        loss_mask=mask,
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rng.random(6).astype(np.float32),
        **column,
    )


def run(work):
    return asyncio.run(work)


def test_it_is_a_trainer(kind: Kind) -> None:
    assert isinstance(kind.make(), Trainer)


def test_versions_count_commits_not_updates(kind: Kind) -> None:
    trainer = kind.make()
    assert trainer.policy_version == 0
    for _ in range(2):
        run(trainer.forward_backward(make_batch()))
        run(trainer.optim_step())
    assert trainer.policy_version == 0
    assert trainer.commit() == 1
    assert trainer.policy_version == 1


def test_an_update_changes_the_digest_and_a_forward_pass_does_not(kind: Kind) -> None:
    trainer, batch = kind.make(), make_batch()
    before = trainer.weights_digest()
    run(trainer.compute_values(batch) if kind.is_critic else trainer.compute_logprobs(batch))
    stats = run(trainer.forward_backward(batch))
    assert trainer.weights_digest() == before
    step = run(trainer.optim_step())
    assert trainer.weights_digest() != before
    assert np.isfinite([stats.loss, step.grad_norm, step.learning_rate]).all()


def test_stats_name_the_rows_that_were_computed(kind: Kind) -> None:
    batch = make_batch()
    stats = run(kind.make().forward_backward(batch))
    assert sorted(stats.row_ids) == sorted(batch.ids)
    assert stats.num_loss_tokens == batch.num_loss_tokens
    assert stats.num_micro_batches >= 1


def test_columns_are_written_under_the_loss_mask_and_the_batch_is_left_alone(kind: Kind) -> None:
    trainer, batch = kind.make(), make_batch()
    if kind.is_critic:
        found = run(trainer.compute_values(replace(batch, values=None))).values
    else:
        found = run(trainer.compute_logprobs(batch)).old_logprobs
        assert batch.old_logprobs is None
        reference = run(trainer.compute_ref_logprobs(batch)).ref_logprobs
        assert reference is not None and reference.dtype == np.float32
    assert found is not None and found.dtype == np.float32
    assert found.shape == (batch.num_tokens,)
    assert not found[~batch.loss_mask].any()


def test_a_policy_has_no_values(kind: Kind) -> None:
    if not kind.is_critic:
        with pytest.raises(ModelError):
            run(kind.make().compute_values(make_batch()))


def test_what_is_not_finite_is_named_and_changes_nothing(kind: Kind) -> None:
    trainer, batch = kind.make(), make_batch()
    before = trainer.weights_digest()
    with pytest.raises(NonFiniteError, match="g00000000/2"):
        run(trainer.forward_backward(kind.spoil(trainer, batch)))
    assert trainer.weights_digest() == before


def test_a_loaded_trainer_goes_on_as_the_saved_one(kind: Kind, tmp_path: Path) -> None:
    saved, loaded = kind.make(), kind.make()
    run(saved.forward_backward(make_batch()))
    run(saved.optim_step())
    saved.commit()
    saved.save(tmp_path)
    loaded.load(tmp_path)
    assert loaded.policy_version == 1
    for trainer in (saved, loaded):
        run(trainer.forward_backward(make_batch(1)))
        run(trainer.optim_step())
    assert loaded.weights_digest() == saved.weights_digest()


def test_an_unreadable_checkpoint_is_refused(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        kind.make().load(tmp_path)


def test_exported_weights_tell_their_size(kind: Kind) -> None:
    weights = kind.make().export_weights()
    assert weights
    assert all(tensor.nbytes > 0 for tensor in weights.values())


def test_closing_twice_is_allowed(kind: Kind) -> None:
    trainer = kind.make()
    run(trainer.close())
    run(trainer.close())


def test_the_fake_brings_no_torch_along() -> None:
    code = "import sys, rledger.trainer.fake; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
