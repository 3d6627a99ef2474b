"""The whole of a recipe: one table per component."""

from __future__ import annotations

from rledger.config.algorithm import AlgorithmConfig
from rledger.config.base import Section
from rledger.config.evaluation import EvaluationConfig
from rledger.config.generator import GeneratorConfig
from rledger.config.model import ModelConfig
from rledger.config.run import CheckpointConfig, RunConfig
from rledger.config.sampling import SamplingConfig
from rledger.config.sinks import SinksConfig
from rledger.config.tasks import TasksConfig
from rledger.config.trainer import TrainerConfig

__all__ = ["Recipe"]


class Recipe(Section):
    """Everything that decides a run. The order here is the order of `--dry-run`."""

    run: RunConfig
    """Size, seed and folder of the run."""
    model: ModelConfig
    """The policy to start from."""
    tasks: TasksConfig
    """Prompts, environments and rewards."""
    sampling: SamplingConfig
    """How training rollouts are sampled."""
    generator: GeneratorConfig = GeneratorConfig()
    """The engine that samples."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Advantages, loss, KL and the rest of the mathematics."""
    trainer: TrainerConfig = TrainerConfig()
    """Optimizer, micro-batches and precision."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When to save, and what to keep."""
    sinks: SinksConfig = SinksConfig()
    """Where metrics go besides the run folder."""
