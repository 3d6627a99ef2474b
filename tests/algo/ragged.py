"""Random ragged batches, as the naive rows of `naive` and as the tensors of `rledger.algo`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st
from naive import Row

from rledger.algo.contract import AdvantageInputs, LossInputs

NAN = math.nan
REWARDS = (0.0, 1.0, 0.1, -0.5, 0.3)  # few, so that groups tie; 0.1 and 0.3 do not sum exactly
MASKS = st.lists(st.booleans(), min_size=1, max_size=7)


@st.composite
def batches(draw, min_rows: int = 1) -> list[Row]:
    """Rows of 1 to 7 tokens, any of them without loss tokens, in groups of 1 to 4 members."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=min_rows, max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for group, size in enumerate(sizes):
        for _ in range(size):
            mask = draw(MASKS)
            rows.append(random_row(random, group, mask, draw(st.sampled_from(REWARDS))))
    return rows


def random_row(random: np.random.Generator, group: int, mask: list[bool], reward: float) -> Row:
    """A row whose numbers outside the mask are NaN: reading one of them spoils the result."""

    def column(numbers):
        return [float(x) if m else NAN for x, m in zip(numbers, mask, strict=True)]

    length = len(mask)
    token_rewards = [0.0] * length
    if any(mask):
        token_rewards[max(t for t in range(length) if mask[t])] = reward
    old = -random.exponential(1.0, length) - 1e-3
    logprobs = np.minimum(old + random.normal(0.0, 0.7, length), -1e-3)
    return Row(
        group=group,
        mask=mask,
        reward=reward,
        token_rewards=column(token_rewards),
        values=column(random.normal(size=length)),
        baseline=float(random.normal()),
        components={"accuracy": reward, "format": float(random.integers(0, 2))},
        logprobs=column(logprobs),
        old_logprobs=column(old),
        ref_logprobs=column(np.minimum(old + random.normal(0.0, 0.5, length), -1e-3)),
        advantages=column(random.normal(size=length)),
    )


def column(rows: list[Row], name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A token column of all rows, [T]."""
    return torch.tensor([x for row in rows for x in getattr(row, name)], dtype=dtype)


def row_ids(rows: list[Row]) -> torch.Tensor:
    return torch.tensor([i for i, row in enumerate(rows) for _ in row.mask], dtype=torch.int64)


def advantage_inputs(rows: list[Row], dtype: torch.dtype = torch.float64) -> AdvantageInputs:
    names = rows[0].components
    return AdvantageInputs(
        token_rewards=column(rows, "token_rewards", dtype),
        loss_mask=column(rows, "mask", torch.bool),
        rows=row_ids(rows),
        groups=torch.tensor([row.group for row in rows]),
        num_groups=max(row.group for row in rows) + 1,
        rewards=torch.tensor([row.reward for row in rows], dtype=dtype),
        values=column(rows, "values", dtype),
        baseline_rewards=torch.tensor([row.baseline for row in rows], dtype=dtype),
        reward_components={
            name: torch.tensor([row.components[name] for row in rows], dtype=dtype)
            for name in names
        },
    )


def loss_inputs(rows: list[Row], dtype: torch.dtype = torch.float64, **more) -> LossInputs:
    return LossInputs(
        logprobs=column(rows, "logprobs", dtype).requires_grad_(),
        old_logprobs=column(rows, "old_logprobs", dtype),
        advantages=column(rows, "advantages", dtype),
        loss_mask=column(rows, "mask", torch.bool),
        rows=row_ids(rows),
        num_rows=len(rows),
        **more,
    )


def with_leaves(rows: list[Row]) -> tuple[list[Row], list[torch.Tensor]]:
    """The rows with their log-probabilities as leaves of autograd, and those leaves in order."""
    out, leaves = [], []
    for row in rows:
        own = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in row.logprobs]
        leaves += own
        out.append(replace(row, logprobs=own))
    return out, leaves


def row_advantages(rows: list[Row]) -> list[Row]:
    """The rows with one advantage for all loss tokens of a row."""
    out = []
    for row in rows:
        first = row.advantages[row.chosen[0]] if row.chosen else NAN
        out.append(replace(row, advantages=[first if m else NAN for m in row.mask]))
    return out


def flat(per_row: list[list]) -> torch.Tensor:
    """Lists per row, None outside the mask -> [T] with 0 there."""
    numbers = [0.0 if x is None else x for row in per_row for x in row]
    plain = [x.item() if isinstance(x, torch.Tensor) else x for x in numbers]
    return torch.tensor(plain, dtype=torch.float64)
