"""Each advantage equals a loop over rows, and what it does at the edges."""

from __future__ import annotations

import random
from dataclasses import replace

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import advantage_inputs, batches, column, flat

from rledger.algo.advantage import ADVANTAGES, compute
from rledger.config.advantage import (
    GaeAdvantage,
    GdpoAdvantage,
    GpgAdvantage,
    GrpoAdvantage,
    GrpoPasskAdvantage,
    OpoAdvantage,
    ReinforcePlusPlusAdvantage,
    ReinforcePlusPlusBaselineAdvantage,
    RemaxAdvantage,
    RlooAdvantage,
)
from rledger.errors import DataError

CASES = [
    (GaeAdvantage(gamma=0.9, lam=0.8, whiten=False), lambda r: naive.gae(r, 0.9, 0.8, False)),
    (GaeAdvantage(gamma=1.0, lam=0.95), lambda r: naive.gae(r, 1.0, 0.95, True)),
    (GrpoAdvantage(), lambda r: naive.grpo(r, True)),
    (GrpoAdvantage(norm_by_std=False), lambda r: naive.grpo(r, False)),
    (RlooAdvantage(), naive.rloo),
    (ReinforcePlusPlusAdvantage(gamma=0.9), lambda r: naive.reinforce_plus_plus(r, 0.9)),
    (ReinforcePlusPlusBaselineAdvantage(), naive.reinforce_plus_plus_baseline),
    (RemaxAdvantage(), naive.remax),
    (OpoAdvantage(), naive.opo),
    (GpgAdvantage(f_norm=2.0), lambda r: naive.gpg(r, 2.0)),
    (GdpoAdvantage(), lambda r: naive.gdpo(r, {"accuracy": 1.0, "format": 1.0})),
    (
        GdpoAdvantage(weights={"format": 0.25, "accuracy": 2.0}),
        lambda r: naive.gdpo(r, {"format": 0.25, "accuracy": 2.0}),
    ),
    (GrpoPasskAdvantage(), lambda r: naive.grpo_passk(r, True)),
    (GrpoPasskAdvantage(norm_by_std=False), lambda r: naive.grpo_passk(r, False)),
]
CONFIGS = [config for config, _ in CASES]
IDS = [f"{i}-{config.type}" for i, config in enumerate(CONFIGS)]


def test_every_advantage_has_a_case_here():
    assert {config.type for config in CONFIGS} == set(ADVANTAGES)


def with_dense_rewards(rows, seed):
    """Token rewards on every loss token, as KL in the reward makes them."""
    rng = random.Random(seed)
    return [
        replace(
            row,
            token_rewards=[
                x + rng.choice([0.0, -0.25]) if m else x
                for x, m in zip(row.token_rewards, row.mask, strict=True)
            ],
        )
        for row in rows
    ]


@pytest.mark.parametrize(("config", "oracle"), CASES, ids=IDS)
@settings(max_examples=60, deadline=None)
@given(rows=batches(), seed=st.none() | st.integers(0, 9))
def test_equals_the_loop(config, oracle, rows, seed):
    rows = rows if seed is None else with_dense_rewards(rows, seed)
    outputs = compute(config, advantage_inputs(rows))
    advantages, returns = oracle(rows)
    torch.testing.assert_close(outputs.advantages, flat(advantages), atol=1e-9, rtol=1e-9)
    assert (outputs.returns is None) == (returns is None)
    if returns is not None:
        torch.testing.assert_close(outputs.returns, flat(returns), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("config", "oracle"), CASES, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(rows=batches())
def test_float32_goes_in_and_comes_out(config, oracle, rows):
    outputs = compute(config, advantage_inputs(rows, torch.float32))
    assert outputs.advantages.dtype == torch.float32
    expected = flat(oracle(rows)[0]).float()
    torch.testing.assert_close(outputs.advantages, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
@settings(max_examples=20, deadline=None)
@given(rows=batches(min_rows=2), seed=st.integers(0, 99))
def test_permuting_rows_permutes_advantages(config, rows, seed):
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    shuffled = [rows[i] for i in order]
    here = compute(config, advantage_inputs(rows)).advantages
    there = compute(config, advantage_inputs(shuffled)).advantages
    lengths = [len(row.mask) for row in rows]
    parts = here.split(lengths)
    torch.testing.assert_close(there, torch.cat([parts[i] for i in order]), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
@settings(max_examples=10, deadline=None)
@given(rows=batches())
def test_inputs_stay_as_they_were(config, rows):
    inputs = advantage_inputs(rows)
    names = ("token_rewards", "loss_mask", "rows", "groups", "rewards", "values")
    before = {name: getattr(inputs, name).clone() for name in names}
    components = {k: v.clone() for k, v in inputs.reward_components.items()}
    outputs = compute(config, inputs)
    outputs.advantages.add_(1.0)  # an output that shared memory with an input would show
    for name, tensor in before.items():
        torch.testing.assert_close(
            getattr(inputs, name), tensor, rtol=0, atol=0, equal_nan=True, msg=name
        )
    for name, tensor in components.items():
        assert torch.equal(inputs.reward_components[name], tensor)


def one_group(rewards, length=3):
    mask = [False] + [True] * (length - 1)
    rows = []
    for reward in rewards:
        token_rewards = [0.0] * (length - 1) + [reward]
        components = {"accuracy": reward, "format": 1.0}
        rows.append(
            naive.Row(0, mask, reward, token_rewards, [0.0] * length, components=components)
        )
    return rows


RELATIVE = [config for config in CONFIGS if config.group_relative]


@pytest.mark.parametrize("config", RELATIVE, ids=lambda c: c.type)
@pytest.mark.parametrize("rewards", [[0.1] * 3, [0.7] * 7, [1.0], [-3.3]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_and_single_members_get_exactly_0(config, rewards, dtype):
    assert sum([0.1] * 3) / 3 != 0.1  # the mean of equal numbers need not be equal to them
    outputs = compute(config, advantage_inputs(one_group(rewards), dtype))
    assert outputs.advantages.count_nonzero() == 0


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_rows_without_any_loss_token_are_defined(config):
    rows = [naive.Row(0, [False, False], r, [0.0, 0.0], [0.0, 0.0]) for r in (0.0, 1.0)]
    for row in rows:
        row.components = {"accuracy": row.reward, "format": 0.0}
    outputs = compute(config, advantage_inputs(rows, torch.float32))
    assert outputs.advantages.tolist() == [0.0] * 4


def test_an_empty_completion_counts_in_its_group_with_its_reward():
    rows = one_group([1.0, 0.0])
    empty = replace(rows[0], mask=[False] * 3, reward=-1.0, token_rewards=[0.0] * 3)
    outputs = compute(GrpoAdvantage(norm_by_std=False), advantage_inputs([*rows, empty]))
    assert outputs.advantages.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_grpo_of_1_0_0_0():
    outputs = compute(GrpoAdvantage(), advantage_inputs(one_group([1.0, 0.0, 0.0, 0.0], 2)))
    expected = [0.0, 1.5, 0.0, -0.5, 0.0, -0.5, 0.0, -0.5]  # over the std, which is 0.5
    torch.testing.assert_close(
        outputs.advantages, torch.tensor(expected).double(), atol=1e-5, rtol=0
    )


def test_rloo_of_1_0_0_0():
    outputs = compute(RlooAdvantage(), advantage_inputs(one_group([1.0, 0.0, 0.0, 0.0], 2)))
    torch.testing.assert_close(outputs.advantages[1::2].tolist(), [1.0, -1 / 3, -1 / 3, -1 / 3])


def test_gpg_scales_up_for_the_groups_without_signal():
    quiet = [replace(row, group=1) for row in one_group([1.0, 1.0], 2)]
    outputs = compute(GpgAdvantage(), advantage_inputs([*one_group([1.0, 0.0], 2), *quiet]))
    assert outputs.advantages[1::2].tolist() == [1.0, -1.0, 0.0, 0.0]  # 4 rows, 2 with signal


def test_passk_rewards_the_lead_of_a_single_best_only():
    config = GrpoPasskAdvantage(norm_by_std=False)
    lead = compute(config, advantage_inputs(one_group([0.25, 1.0, 0.5], 2))).advantages
    assert lead[1::2].tolist() == [0.0, 0.5, 0.0]
    tie = compute(config, advantage_inputs(one_group([1.0, 1.0, 0.0], 2))).advantages
    assert tie.tolist() == [0.0] * 6


def test_gae_steps_over_tokens_the_policy_did_not_choose():
    config = GaeAdvantage(gamma=0.5, lam=1.0, whiten=False)
    row = naive.Row(0, [True, False, True], 1.0, [0.0, 9.0, 1.0], [2.0, 9.0, 4.0])
    outputs = compute(config, advantage_inputs([row]))
    # second: 1 - 4; first: (0 + 0.5 * 4 - 2) + 0.5 * (1 - 4)
    assert outputs.advantages.tolist() == [-1.5, 0.0, -3.0]
    assert outputs.returns is not None
    assert outputs.returns.tolist() == [0.5, 0.0, 1.0]


def test_returns_are_taken_before_whitening():
    row = naive.Row(0, [True, True], 1.0, [0.0, 1.0], [0.5, 0.25])
    plain = compute(GaeAdvantage(whiten=False), advantage_inputs([row]))
    scaled = compute(GaeAdvantage(), advantage_inputs([row]))
    assert plain.returns is not None
    assert scaled.returns is not None
    assert torch.equal(plain.returns, scaled.returns)
    assert not torch.equal(plain.advantages, scaled.advantages)


def test_what_an_advantage_lacks_is_named():
    inputs = replace(
        advantage_inputs(one_group([0.0, 1.0])),
        values=None,
        baseline_rewards=None,
        reward_components={"accuracy": torch.zeros(2)},
    )
    with pytest.raises(DataError, match="critic"):
        compute(GaeAdvantage(), inputs)
    with pytest.raises(DataError, match="greedy"):
        compute(RemaxAdvantage(), inputs)
    with pytest.raises(DataError, match="names style, but the reward function returns accuracy"):
        compute(GdpoAdvantage(weights={"style": 1.0}), inputs)
    with pytest.raises(DataError, match="reward components"):
        compute(GdpoAdvantage(), replace(inputs, reward_components={}))


def test_columns_of_different_lengths_are_refused():
    inputs = advantage_inputs(one_group([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"values has shape \(2,\), expected \(6,\)"):
        replace(inputs, values=torch.zeros(2))


def test_only_those_that_say_so_read_the_critic_and_the_baseline():
    rows = one_group([0.0, 1.0])
    inputs = replace(advantage_inputs(rows), values=None, baseline_rewards=None)
    for config in CONFIGS:
        if not (config.needs_critic or config.needs_greedy_baseline):
            compute(config, inputs)


def test_a_thousand_rows_take_the_same_number_of_torch_calls_as_ten():
    def calls(num_rows):
        rows = [replace(r, group=i // 2) for i, r in enumerate(one_group([0.0, 1.0] * num_rows))]
        inputs = advantage_inputs(rows)
        count = {}
        for config in CONFIGS:
            with torch.profiler.profile() as profile:
                compute(config, inputs)
            count[config.type] = sum(event.count for event in profile.key_averages())
        return count

    few, many = calls(5), calls(500)
    assert max(abs(few[name] - many[name]) for name in few) == 0, (few, many)


def test_columns_helper_agrees_with_rows():
    rows = one_group([0.0, 1.0])
    assert column(rows, "token_rewards").tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
