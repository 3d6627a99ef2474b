"""The adv stage: from a batch's columns to advantages, and what it remembers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from batches import make_batch

from rledger.books.names import METRICS
from rledger.config.algorithm import AlgorithmConfig
from rledger.errors import CheckpointError, DataError
from rledger.trainer.advantage import BatchAdvantages
from rledger.types import Batch

GROUPS = [(5, [7, 3, 6]), (2, [4, 4]), (4, [12, 2, 2])]


def estimator(**algorithm: object) -> BatchAdvantages:
    return BatchAdvantages(AlgorithmConfig.model_validate(algorithm), max_new_tokens=12)


def rows_of(batch: Batch) -> np.ndarray:
    return np.repeat(np.arange(batch.num_rows), batch.lengths)


def test_grpo_advantages_equal_the_formula_row_by_row() -> None:
    batch = make_batch(GROUPS, with_columns=False)
    done, metrics = estimator()(batch)
    for row in range(batch.num_rows):
        group = batch.rewards[batch.groups == batch.groups[row]].astype(float)
        expected = (batch.rewards[row] - group.mean()) / (group.std(ddof=1) + 1e-6)
        tokens = slice(int(batch.offsets[row]), int(batch.offsets[row + 1]))
        found = done.advantages[tokens]
        assert found[batch.loss_mask[tokens]] == pytest.approx(expected, rel=1e-5)
        assert not found[~batch.loss_mask[tokens]].any()
        # the reward stands on the last token
        assert done.token_rewards[tokens][-1] == pytest.approx(batch.rewards[row])
        assert np.count_nonzero(done.token_rewards[tokens]) == 1
    assert batch.advantages is None
    assert metrics["critic/score/mean"] == pytest.approx(batch.rewards.mean())
    assert metrics["critic/advantages/max"] == pytest.approx(done.advantages.max())


def test_kl_in_the_reward_is_taken_off_each_token_and_moves_the_controller() -> None:
    batch = make_batch(GROUPS)
    kl = {"type": "reward", "estimator": "k1", "coef": 0.1, "controller": "adaptive"}
    estimate = estimator(kl=kl, advantage={"type": "reinforce_plus_plus"})
    done, metrics = estimate(batch)
    plain, _ = estimator(advantage={"type": "reinforce_plus_plus"})(batch)
    difference = (batch.old_logprobs - batch.ref_logprobs) * batch.loss_mask
    assert done.token_rewards == pytest.approx(plain.token_rewards - 0.1 * difference, abs=1e-6)
    rows = rows_of(batch)
    of_rows = np.bincount(rows, difference) / np.bincount(rows, batch.loss_mask)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(of_rows.mean(), rel=1e-5)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.1
    assert metrics["critic/rewards/mean"] != metrics["critic/score/mean"]
    moved = estimate(batch)[1]["actor/reward_kl_penalty_coeff"]
    assert moved != 0.1

    resumed = estimator(kl=kl, advantage={"type": "reinforce_plus_plus"})
    resumed.load_state_dict(estimate.state_dict())
    again, _ = resumed(batch)
    assert np.array_equal(again.token_rewards, estimate(batch)[0].token_rewards)


def test_a_checkpoint_without_the_controller_is_refused() -> None:
    kl = {"type": "reward", "controller": "adaptive"}
    with pytest.raises(CheckpointError, match="KL controller"):
        estimator(kl=kl).load_state_dict(estimator().state_dict())


def test_kl_in_the_reward_without_its_columns_is_refused() -> None:
    batch = replace(make_batch(GROUPS), ref_logprobs=None)
    with pytest.raises(DataError, match="ref_logprobs: stage ref"):
        estimator(kl={"type": "reward"})(batch)


def test_long_completions_lose_reward() -> None:
    batch = make_batch(GROUPS, with_columns=False)
    done, _ = estimator(overlong={"buffer_tokens": 4, "penalty": 0.5})(batch)
    totals = np.bincount(rows_of(batch), done.token_rewards)
    lengths = batch.lengths - batch.prompt_lengths
    expected = batch.rewards - 0.5 * np.clip((lengths - 8) / 4, 0, 1)
    assert totals == pytest.approx(expected, abs=1e-6)
    assert (lengths == 12).any()


def test_a_critic_brings_returns_and_their_metrics() -> None:
    batch = make_batch(GROUPS)
    done, metrics = estimator(advantage={"type": "gae", "lam": 0.9, "whiten": False})(batch)
    mask = batch.loss_mask
    assert done.returns[mask] == pytest.approx((done.advantages + batch.values)[mask], abs=1e-5)
    returns, values = done.returns[mask].astype(float), batch.values[mask].astype(float)
    explained = 1 - np.var(returns - values, ddof=1) / (np.var(returns, ddof=1) + 1e-5)
    assert metrics["critic/vf_explained_var"] == pytest.approx(explained, rel=1e-4)
    assert metrics["critic/returns/min"] == pytest.approx(returns.min())


def test_metrics_are_declared() -> None:
    batch = replace(make_batch(GROUPS), reward_components={"format": np.ones(8, np.float32)})
    _, metrics = estimator(kl={"type": "reward"}, advantage={"type": "gae"})(batch)
    assert {"reward/format/mean", "critic/values/max", "critic/returns/mean"} <= set(metrics)
    for name in metrics:
        METRICS.find(name)
