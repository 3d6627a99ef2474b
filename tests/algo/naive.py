"""The formulas of advantages, losses, KL and aggregation, written as loops over rows and tokens.

Float64, one row after the other, from the papers and not from `rledger.algo`: the oracle of its tests.
A batch is a list of `Row`; only tokens with `mask` true count. Losses work on 0-d torch tensors, so that
their gradient is autograd's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch


@dataclass
class Row:
    group: int
    mask: list[bool]
    reward: float
    token_rewards: list[float]
    values: list[float] = field(default_factory=list)
    baseline: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    logprobs: list = field(default_factory=list)  # 0-d tensors
    old_logprobs: list[float] = field(default_factory=list)
    ref_logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)

    @property
    def chosen(self) -> list[int]:
        return [t for t, m in enumerate(self.mask) if m]

    @property
    def score(self) -> float:
        if not self.chosen:
            return self.reward
        return sum(self.token_rewards[t] for t in self.chosen)


# Statistics


def mean(xs):
    return sum(xs) / len(xs)


def std(xs):
    if len(xs) < 2:
        return 0.0
    m = mean(xs)
    return math.sqrt(sum((x - m) ** 2 for x in xs) / (len(xs) - 1))


def whitened(per_row):
    """Lists of numbers -> (x - mean) / sqrt(var + 1e-8) over all of them together."""
    flat = [x for xs in per_row for x in xs]
    if not flat:
        return per_row
    m = mean(flat)
    var = std(flat) ** 2
    return [[(x - m) / math.sqrt(var + 1e-8) for x in xs] for xs in per_row]


def spread_out(row, values):
    """Values at the row's loss tokens -> values at all of its tokens, 0 elsewhere."""
    out = [0.0] * len(row.mask)
    for t, v in zip(row.chosen, values, strict=True):
        out[t] = v
    return out


def on_tokens(rows, row_values):
    return [spread_out(row, [v] * len(row.chosen)) for row, v in zip(rows, row_values, strict=True)]


def members(rows, row):
    return [r for r in rows if r.group == row.group]


def equal(rows, row, key=lambda r: r.score):
    return len({key(r) for r in members(rows, row)}) == 1


# Advantages: rows -> (advantages, returns or None), each a list per row


def gae(rows, gamma, lam, whiten):
    raw, returns = [], []
    for row in rows:
        a_next, v_next, out, ret = 0.0, 0.0, [], []
        for t in reversed(row.chosen):
            delta = row.token_rewards[t] + gamma * v_next - row.values[t]
            a_next = delta + gamma * lam * a_next
            v_next = row.values[t]
            out.append(a_next)
            ret.append(a_next + row.values[t])
        raw.append(out[::-1])
        returns.append(spread_out(row, ret[::-1]))
    advantages = whitened(raw) if whiten else raw
    return [spread_out(r, a) for r, a in zip(rows, advantages, strict=True)], returns


def grpo(rows, norm_by_std):
    out = []
    for row in rows:
        scores = [r.score for r in members(rows, row)]
        a = 0.0 if equal(rows, row) else row.score - mean(scores)
        out.append(a / (std(scores) + 1e-6) if norm_by_std else a)
    return on_tokens(rows, out), None


def rloo(rows):
    out = []
    for row in rows:
        others = [r.score for r in members(rows, row) if r is not row]
        out.append(row.score - mean(others) if others and not equal(rows, row) else 0.0)
    return on_tokens(rows, out), None


def returns_to_go(rows, gamma):
    out = []
    for row in rows:
        g, back = 0.0, []
        for t in reversed(row.chosen):
            g = row.token_rewards[t] + gamma * g
            back.append(g)
        out.append(back[::-1])
    return out


def reinforce_plus_plus(rows, gamma):
    returns = returns_to_go(rows, gamma)
    advantages = [spread_out(r, a) for r, a in zip(rows, whitened(returns), strict=True)]
    return advantages, [spread_out(r, g) for r, g in zip(rows, returns, strict=True)]


def reinforce_plus_plus_baseline(rows):
    centred = []
    for row in rows:
        scores = [r.score for r in members(rows, row)]
        a = 0.0 if equal(rows, row) else row.score - mean(scores)
        centred.append([a] * len(row.chosen))
    return [spread_out(r, a) for r, a in zip(rows, whitened(centred), strict=True)], None


def remax(rows):
    returns = returns_to_go(rows, 1.0)
    advantages = [
        spread_out(r, [g - r.baseline for g in gs]) for r, gs in zip(rows, returns, strict=True)
    ]
    return advantages, [spread_out(r, g) for r, g in zip(rows, returns, strict=True)]


def opo(rows):
    out = []
    for row in rows:
        group = members(rows, row)
        total = sum(len(r.chosen) for r in group)
        baseline = sum(len(r.chosen) * r.score for r in group) / total if total else 0.0
        out.append(0.0 if equal(rows, row) else row.score - baseline)
    return on_tokens(rows, out), None


def gpg(rows, f_norm):
    num_with_gradient = sum(not equal(rows, row) for row in rows)
    out = []
    for row in rows:
        scores = [r.score for r in members(rows, row)]
        a = 0.0 if equal(rows, row) else row.score - mean(scores)
        out.append(len(rows) / max(num_with_gradient, 1) * a / f_norm)
    return on_tokens(rows, out), None


def gdpo(rows, weights):
    totals = []
    for row in rows:
        total = 0.0
        for name, weight in weights.items():
            xs = [r.components[name] for r in members(rows, row)]
            if not equal(rows, row, lambda r, name=name: r.components[name]):
                total += weight * (row.components[name] - mean(xs)) / (std(xs) + 1e-6)
        totals.append(total)
    scaled = whitened([totals])[0]
    return on_tokens(
        rows, [0.0 if t == 0 else s for t, s in zip(totals, scaled, strict=True)]
    ), None


def grpo_passk(rows, norm_by_std):
    out = []
    for row in rows:
        scores = sorted((r.score for r in members(rows, row)), reverse=True)
        leads = len(scores) > 1 and row.score == scores[0] and scores[0] > scores[1]
        a = scores[0] - scores[1] if leads else 0.0
        out.append(a / (std(scores) + 1e-6) if norm_by_std else a)
    return on_tokens(rows, out), None


# Policy losses: rows -> 0-d tensors, a list per row; None outside the mask


def each_token(rows, token_loss):
    out = []
    for row in rows:
        losses = [None] * len(row.mask)
        for t in row.chosen:
            losses[t] = token_loss(row.logprobs[t], row.old_logprobs[t], row.advantages[t])
        out.append(losses)
    return out


def clip(x, low, high):
    return torch.clamp(x, low, high)


def ratio_of(lp, old):
    return torch.exp(clip(lp - old, -20.0, 20.0))


def ppo(rows, low, high, c):
    def token(lp, old, a):
        r = ratio_of(lp, old)
        loss = max(-a * r, -a * clip(r, 1 - low, 1 + high))
        if c is not None and a < 0:
            loss = min(loss, -a * c + 0 * r)
        return loss

    return each_token(rows, token)


def cispo(rows, low, high):
    return each_token(
        rows, lambda lp, old, a: -a * clip(ratio_of(lp, old), 1 - low, 1 + high).item() * lp
    )


def sapo(rows, tau_positive, tau_negative):
    def token(lp, old, a):
        tau = tau_positive if a > 0 else tau_negative
        return -a * (4 / tau) / (1 + torch.exp(-tau * (ratio_of(lp, old) - 1)))

    return each_token(rows, token)


def dppo_tv(rows, low, high, cap):
    def token(lp, old, a):
        change = math.exp(lp.item()) - math.exp(old)
        valid = change <= high if a > 0 else change >= -low
        return -a * min(ratio_of(lp, old).item(), cap) * lp * valid

    return each_token(rows, token)


def bernoulli_kl(p, q):
    """KL of Bernoulli(p) to Bernoulli(q)."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def dppo_kl(rows, low, high, cap):
    def token(lp, old, a):
        p_old, p = math.exp(old), math.exp(lp.item())
        far = bernoulli_kl(p_old, p)
        valid = (far <= high or p <= p_old) if a > 0 else (far <= low or p >= p_old)
        return -a * min(ratio_of(lp, old).item(), cap) * lp * valid

    return each_token(rows, token)


def dro(rows, beta):
    return each_token(rows, lambda lp, old, a: -(a * lp - 0.5 * beta * (lp - old) ** 2))


def reinforce(rows):
    return each_token(rows, lambda lp, old, a: -a * lp)


def gspo_rows(rows, low, high):
    """The paper's objective of whole rows with one advantage each: None for a row without tokens."""
    out = []
    for row in rows:
        if not row.chosen:
            out.append(None)
            continue
        log_s = sum(row.logprobs[t] - row.old_logprobs[t] for t in row.chosen) / len(row.chosen)
        s, a = torch.exp(log_s), row.advantages[row.chosen[0]]
        out.append(max(-a * s, -a * clip(s, 1 - low, 1 + high)))
    return out


def gspo(rows, low, high):
    """GSPO-token: the value of the row's ratio, the gradient of the token's log-probability."""
    out = []
    for row in rows:
        losses = [None] * len(row.mask)
        if row.chosen:
            log_s = mean([row.logprobs[t].item() - row.old_logprobs[t] for t in row.chosen])
        for t in row.chosen:
            lp, a = row.logprobs[t], row.advantages[t]
            s = math.exp(log_s) * torch.exp(lp - lp.item())
            losses[t] = max(-a * s, -a * clip(s, 1 - low, 1 + high))
        out.append(losses)
    return out


def geo_mean(rows, low, high):
    out = []
    for row in rows:
        losses = [None] * len(row.mask)
        if row.chosen:
            a = mean([row.advantages[t] for t in row.chosen])
            logs = [row.logprobs[t] - row.old_logprobs[t] for t in row.chosen]
            if a > 0:
                logs = [torch.clamp(x, max=high) for x in logs]
            elif a < 0:
                logs = [torch.clamp(x, min=-low) for x in logs]
            loss = -a * torch.exp(sum(logs) / len(logs))
            for t in row.chosen:
                losses[t] = loss
        out.append(losses)
    return out


def covariances(rows):
    """(row, token) -> (A - mean A)(logprob - mean logprob) over all loss tokens."""
    tokens = [(i, t) for i, row in enumerate(rows) for t in row.chosen]
    if not tokens:
        return {}
    a_mean = mean([rows[i].advantages[t] for i, t in tokens])
    lp_mean = mean([rows[i].logprobs[t].item() for i, t in tokens])
    return {
        (i, t): (rows[i].advantages[t] - a_mean) * (rows[i].logprobs[t].item() - lp_mean)
        for i, t in tokens
    }


def kl_cov(rows, share, coef):
    cov = covariances(rows)
    count = max(1, int(share * len(cov)))
    chosen = set(sorted(cov, key=lambda key: -cov[key])[:count])
    out = each_token(rows, lambda lp, old, a: -a * ratio_of(lp, old))
    for i, t in chosen:
        out[i][t] = out[i][t] + coef * abs(rows[i].logprobs[t] - rows[i].old_logprobs[t])
    return out


def value(v, old, target, eps):
    """Clipped squared error of one token."""
    if eps is None:
        return 0.5 * (v - target) ** 2
    near = clip(v, old - eps, old + eps)
    return 0.5 * max((v - target) ** 2, (near - target) ** 2)


# KL and aggregation


def kl(lp, ref, estimator):
    d = lp - ref
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d * d
    if estimator == "abs":
        return abs(d)
    assert estimator == "k3"
    return clip(torch.exp(clip(-d, -20.0, 20.0)) - 1 - clip(-d, -20.0, 20.0), -10.0, 10.0)


def aggregate(losses, mode, scale):
    """Token losses of a whole update (a list per row, None outside the mask) -> its loss."""
    rows = [[x for x in row if x is not None] for row in losses]
    rows = [row for row in rows if row]
    num_tokens = sum(len(row) for row in rows)
    if num_tokens == 0:
        return torch.zeros((), dtype=torch.float64)
    total = sum(sum(row) for row in rows)
    if mode == "token_mean":
        return total / num_tokens
    if mode == "token_sum":
        return total
    if mode == "seq_mean_token_sum":
        return total / len(rows)
    if mode == "seq_mean_token_sum_norm":
        return total / len(rows) / scale
    assert mode == "seq_mean_token_mean"
    return sum(sum(row) / len(row) for row in rows) / len(rows)
