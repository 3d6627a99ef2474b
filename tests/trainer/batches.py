"""Batches and trainers on tiny models for the tests of the trainer.

Legend for shapes: T tokens of all rows, B rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from rledger.books import Books
from rledger.config.algorithm import AlgorithmConfig
from rledger.config.trainer import OptimizerConfig
from rledger.models.decoder import Decoder
from rledger.models.init import random_decoder
from rledger.models.placement import Placement
from rledger.modelspec import ModelSpec
from rledger.trainer.mesh import Mesh
from rledger.trainer.trainer import DecoderTrainer, TrainerSetup
from rledger.types import Batch

VOCAB = 97
SPEC = ModelSpec(
    family="llama",
    vocab_size=VOCAB,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    ffn_width=48,
    max_positions=256,
    tied_embeddings=True,
)


def make_batch(
    groups: Sequence[tuple[int, Sequence[int]]], *, seed: int = 0, with_columns: bool = True
) -> Batch:
    """Groups as (prompt tokens, tokens of each completion); the tokens are random.

    With columns there are advantages, old and reference log-probabilities, values and returns.
    """
    rng = np.random.default_rng(seed)
    rows, prompts, members, numbers = [], [], [], []
    for group, (prompt_tokens, completions) in enumerate(groups):
        prompt = rng.integers(0, VOCAB, prompt_tokens)
        for number, length in enumerate(completions):
            rows.append(np.r_[prompt, rng.integers(0, VOCAB, length)])
            prompts.append(prompt_tokens)
            members.append(group)
            numbers.append(number)
    lengths = np.array([len(row) for row in rows])
    mask = np.concatenate([np.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)])
    total = int(lengths.sum())

    def column(scale: float, shift: float = 0.0) -> np.ndarray:
        return ((rng.normal(size=total) * scale + shift) * mask).astype(np.float32)

    batch = Batch(
        ids=tuple(f"g{g:08d}/{n}" for g, n in zip(members, numbers, strict=True)),
        group_ids=tuple(f"g{g:08d}" for g in members),
        groups=np.array(members, np.int32),
        offsets=np.r_[0, np.cumsum(lengths)].astype(np.int64),
        prompt_lengths=np.array(prompts, np.int32),
        token_ids=np.concatenate(rows).astype(np.int32),
        loss_mask=mask,
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        generator_logprobs=column(0.3, -4.6),
        rewards=rng.random(len(rows)).astype(np.float32),
    )
    if not with_columns:
        return batch
    return replace(
        batch,
        old_logprobs=column(0.3, -4.6),
        ref_logprobs=column(0.3, -4.6),
        advantages=column(1.0),
        values=column(0.5),
        returns=column(0.5),
    )


def make_trainer(
    *,
    spec: ModelSpec = SPEC,
    dtype: torch.dtype = torch.float32,
    critic: bool = False,
    reference: bool = False,
    algorithm: AlgorithmConfig | None = None,
    optimizer: OptimizerConfig | None = None,
    micro_batch_tokens: int = 10_000,
    num_updates: int = 10,
    temperature: float = 1.0,
    activation_checkpointing: bool = False,
    seed: int = 3,
    books: Books | None = None,
    mesh: Mesh | None = None,
) -> DecoderTrainer:
    """A trainer of a random model; the weights depend on the seed alone."""
    wide = torch.promote_types(dtype, torch.float32)
    loaded = random_decoder(spec, seed, dtype=wide, value_head=critic)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)  # logits that say something
    start = {name: p.detach().clone() for name, p in loaded.named_parameters()}
    decoder = loaded
    if dtype != wide:
        decoder = Decoder(spec, value_head=critic, dtype=dtype)
    frozen = None
    if reference:
        frozen = random_decoder(spec, seed + 1, dtype=dtype).requires_grad_(False)
    setup = TrainerSetup(
        optimizer=optimizer or OptimizerConfig(learning_rate=1e-3),
        algorithm=algorithm or AlgorithmConfig(),
        micro_batch_tokens=micro_batch_tokens,
        num_updates=num_updates,
        temperature=temperature,
        activation_checkpointing=activation_checkpointing,
    )
    return DecoderTrainer(
        decoder,
        start,
        setup,
        placement=Placement(torch.device("cpu"), dtype, 1),
        lane=(books or Books.in_memory()).lane("main"),
        reference=frozen,
        mesh=mesh,
    )


def update(trainer: DecoderTrainer, batch: Batch):
    """One update; its stats."""

    async def run():
        return await trainer.forward_backward(batch), await trainer.optim_step()

    return asyncio.run(run())


def gradients(trainer: DecoderTrainer, batch: Batch) -> dict[str, torch.Tensor]:
    """The accumulated gradient of the batch, and it is dropped again."""
    asyncio.run(trainer.forward_backward(batch))
    weights = trainer._weights
    weights.share_gradient()
    found = {name: grad.clone() for name, grad in weights.grads.items()}
    weights.drop_gradient()
    trainer._pending = None
    return found
