"""The `adv` stage: a batch's rewards, KL and values become advantages and returns.

Legend for shapes: T tokens, B rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rledger.algo import advantage
from rledger.algo.groups import place_rewards
from rledger.algo.kl import KlController, build_kl_controller, kl_in_reward
from rledger.config.algorithm import AlgorithmConfig
from rledger.errors import CheckpointError, DataError
from rledger.schedule.filtering import overlong_penalties
from rledger.types import Batch

__all__ = ["BatchAdvantages"]

F32 = npt.NDArray[np.float32]


class BatchAdvantages:
    """Implements `rledger.interfaces.AdvantageEstimator` for an algorithm of the catalogue.

    It computes on the CPU whatever the trainer does: a step's columns are a few numbers a token.
    """

    def __init__(self, algorithm: AlgorithmConfig, *, max_new_tokens: int) -> None:
        """`max_new_tokens` is the limit that overlong shaping counts back from."""
        self._algorithm = algorithm
        self._max_new_tokens = max_new_tokens
        self._controller: KlController | None = None
        if algorithm.kl.type == "reward":
            self._controller = build_kl_controller(algorithm.kl)

    def __call__(self, batch: Batch) -> tuple[Batch, Mapping[str, float]]:
        """The batch with `token_rewards`, `advantages` and perhaps `returns`, and metrics.

        A row's reward, shaped, stands on its last loss token; KL in the reward is taken off every
        loss token. Raises DataError where a column that the algorithm reads is missing.
        """
        rows = np.repeat(np.arange(batch.num_rows), batch.lengths)
        segments = torch.from_numpy(rows)
        mask = torch.from_numpy(batch.loss_mask)
        rewards = batch.rewards + overlong_penalties(
            _completion_lengths(batch, rows), self._max_new_tokens, self._algorithm.overlong
        )
        shaped = torch.from_numpy(rewards)
        token_rewards = place_rewards(shaped, mask, segments)
        metrics: dict[str, float] = {}
        if self._controller is not None:
            token_rewards = self._penalise(batch, token_rewards, mask, segments, metrics)
        outputs = advantage.compute(
            self._algorithm.advantage,
            advantage.AdvantageInputs(
                token_rewards=token_rewards,
                loss_mask=mask,
                rows=segments,
                groups=torch.from_numpy(batch.groups.astype(np.int64)),
                num_groups=batch.num_groups,
                rewards=shaped,
                values=_maybe(batch.values),
                baseline_rewards=_maybe(batch.baseline_rewards),
                reward_components={
                    name: torch.from_numpy(column)
                    for name, column in batch.reward_components.items()
                },
            ),
        )
        done = replace(
            batch,
            token_rewards=token_rewards.numpy().astype(np.float32),
            advantages=outputs.advantages.numpy().astype(np.float32),
            returns=None if outputs.returns is None else outputs.returns.numpy().astype(np.float32),
        )
        return done, {**_metrics(done, rows), **metrics}

    def _penalise(
        self,
        batch: Batch,
        token_rewards: Tensor,
        mask: Tensor,
        segments: Tensor,
        metrics: dict[str, float],
    ) -> Tensor:
        """Token rewards less the KL; the controller's coefficient moves for the steps after."""
        kl, controller = self._algorithm.kl, self._controller
        assert kl.type == "reward" and controller is not None
        for name, stage in (("old_logprobs", "old_log_prob"), ("ref_logprobs", "ref")):
            if getattr(batch, name) is None:
                raise DataError(
                    f"algorithm.kl.type = reward reads {name}: stage {stage} must run before adv"
                )
        assert batch.old_logprobs is not None and batch.ref_logprobs is not None
        coef = controller.coef
        penalised, sums = kl_in_reward(
            token_rewards,
            torch.from_numpy(batch.old_logprobs),
            torch.from_numpy(batch.ref_logprobs),
            mask,
            segments,
            batch.num_rows,
            kl.estimator,
            coef,
        )
        total, count = sums["actor/reward_kl_penalty"]
        measured = float(total) / max(float(count), 1.0)
        controller.update(measured, batch.num_rows)
        metrics["actor/reward_kl_penalty"] = measured
        metrics["actor/reward_kl_penalty_coeff"] = coef
        return penalised

    def state_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {} if self._controller is None else {"kl_controller": self._controller.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointError where the run that wrote it had no KL in the reward."""
        if self._controller is None:
            return
        if "kl_controller" not in state:
            raise CheckpointError(
                "the checkpoint holds no KL controller: it was written with another algorithm.kl;"
                " resume with its recipe, or start a new run"
            )
        self._controller.load_state_dict(state["kl_controller"])


def _maybe(column: F32 | None) -> Tensor | None:
    return None if column is None else torch.from_numpy(column)


def _completion_lengths(batch: Batch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """[B] trained tokens of each row."""
    return np.bincount(rows, weights=batch.loss_mask, minlength=batch.num_rows).astype(np.int64)


def _metrics(batch: Batch, rows: npt.NDArray[np.int64]) -> dict[str, float]:
    mask = batch.loss_mask
    assert batch.token_rewards is not None and batch.advantages is not None
    totals = np.bincount(rows[mask], batch.token_rewards[mask], minlength=batch.num_rows)
    has_tokens = np.bincount(rows[mask], minlength=batch.num_rows) > 0
    metrics = {
        **_spread("critic/score", batch.rewards),
        **_spread("critic/rewards", np.where(has_tokens, totals, batch.rewards)),
        **_spread("critic/advantages", batch.advantages[mask]),
    }
    for name, component in batch.reward_components.items():
        metrics[f"reward/{name}/mean"] = float(component.mean(dtype=np.float64))
        metrics[f"reward/{name}/std"] = float(component.std(dtype=np.float64))
    if batch.returns is None:
        return metrics
    returns = batch.returns[mask].astype(np.float64)
    metrics |= _spread("critic/returns", returns)
    if batch.values is not None:
        values = batch.values[mask].astype(np.float64)
        metrics |= _spread("critic/values", values)
        if len(returns) > 1:
            unexplained = np.var(returns - values, ddof=1) / (np.var(returns, ddof=1) + 1e-5)
            metrics["critic/vf_explained_var"] = float(1.0 - unexplained)
    return metrics


def _spread(prefix: str, column: npt.NDArray[Any]) -> dict[str, float]:
    if not len(column):
        return {}
    return {
        f"{prefix}/mean": float(column.mean(dtype=np.float64)),
        f"{prefix}/max": float(column.max()),
        f"{prefix}/min": float(column.min()),
    }
