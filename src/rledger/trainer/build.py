"""From a recipe and a model folder to trainer, critic and advantage estimator."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rledger.books import Lane
from rledger.config.recipe import Recipe
from rledger.config.trainer import OptimizerConfig
from rledger.models.checkpoint import load_decoder
from rledger.models.decoder import Decoder
from rledger.models.placement import Placement
from rledger.trainer.advantage import BatchAdvantages
from rledger.trainer.allocator import keep_freed_memory
from rledger.trainer.mesh import Mesh
from rledger.trainer.trainer import DecoderTrainer, TrainerSetup

__all__ = ["build_advantage_estimator", "build_critic", "build_trainer"]


def build_trainer(
    recipe: Recipe,
    model_folder: Path,
    *,
    placement: Placement,
    lane: Lane,
    mesh: Mesh | None = None,
) -> DecoderTrainer:
    """The policy, and where the recipe wants KL its frozen copy. Raises ModelError."""
    reference = None
    if recipe.algorithm.needs_ref_logprobs:
        reference = load_decoder(
            model_folder, dtype=placement.compute_dtype, device=placement.device
        ).requires_grad_(False)
    return _build(recipe, recipe.trainer, model_folder, placement, lane, mesh, False, reference)


def build_critic(
    recipe: Recipe,
    model_folder: Path,
    *,
    placement: Placement,
    lane: Lane,
    mesh: Mesh | None = None,
) -> DecoderTrainer:
    """The critic: the policy's starting weights under a value head of zeros. Raises ModelError."""
    return _build(recipe, recipe.trainer.critic, model_folder, placement, lane, mesh, True, None)


def build_advantage_estimator(recipe: Recipe) -> BatchAdvantages:
    """The `adv` stage of the recipe's algorithm."""
    return BatchAdvantages(recipe.algorithm, max_new_tokens=recipe.sampling.max_new_tokens)


def _build(
    recipe: Recipe,
    optimizer: OptimizerConfig,
    model_folder: Path,
    placement: Placement,
    lane: Lane,
    mesh: Mesh | None,
    value_head: bool,
    reference: Decoder | None,
) -> DecoderTrainer:
    if recipe.run.deterministic and placement.device.type == "cuda":
        # on a CPU the kernels in use add in a fixed order anyway
        torch.use_deterministic_algorithms(True)
    if placement.device.type == "cpu":
        keep_freed_memory()
    loaded = load_decoder(
        model_folder, dtype=torch.float32, device=placement.device, value_head=value_head
    )
    start: dict[str, Tensor] = {name: p.detach() for name, p in loaded.named_parameters()}
    decoder = loaded
    if placement.compute_dtype != torch.float32:
        decoder = Decoder(
            loaded.spec,
            value_head=value_head,
            dtype=placement.compute_dtype,
            device=placement.device,
        )
    setup = TrainerSetup(
        optimizer=optimizer,
        algorithm=recipe.algorithm,
        micro_batch_tokens=recipe.trainer.micro_batch_tokens,
        num_updates=recipe.run.num_steps * recipe.trainer.num_updates_per_step,
        temperature=recipe.sampling.temperature,
        activation_checkpointing=recipe.trainer.activation_checkpointing,
        seed=recipe.run.seed,
        model_folder=model_folder,
    )
    return DecoderTrainer(
        decoder, start, setup, placement=placement, lane=lane, mesh=mesh, reference=reference
    )
