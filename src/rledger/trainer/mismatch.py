"""How far the generator's log-probabilities lie from the trainer's for the same tokens.

Legend for shapes: N loss tokens of the micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rledger.algo.contract import MetricSums
from rledger.schedule.packing import PackedRows
from rledger.types import Batch

__all__ = ["mismatch_metrics", "mismatch_sums"]

_PREFIX = "training/rollout_probs_diff"
_MOMENTS = "mismatch/"  # sums that become metrics only together; never written themselves


def mismatch_sums(
    batch: Batch, packed: PackedRows, logprobs: Tensor, old_logprobs: Tensor | None
) -> tuple[MetricSums, Mapping[str, Tensor]]:
    """Sums over a micro-batch for `mismatch_metrics`, and what is taken at its largest.

    The generator is compared with the policy before the updates of its step: `old_logprobs` [N],
    unless these are the generator's own or absent; then with the current policy, which is the same
    in the first update.
    """
    theirs = torch.from_numpy(batch.generator_logprobs[packed.columns]).to(logprobs)
    is_own = batch.old_logprobs is None or np.array_equal(
        batch.old_logprobs, batch.generator_logprobs
    )
    ours = logprobs if is_own or old_logprobs is None else old_logprobs
    log_ratio = (theirs - ours).double()
    p, q = theirs.double().exp(), ours.double().exp()
    difference = (p - q).abs()
    count = torch.tensor(float(len(p)), dtype=torch.float64, device=p.device)
    # of the inverse ratio: the tokens come from the generator
    k3 = torch.expm1((-log_ratio).clamp(-20.0, 20.0)) + log_ratio
    sums: MetricSums = {
        "rollout_corr/kl": (log_ratio.sum(), count),
        "rollout_corr/k3_kl": (k3.sum(), count),
        f"{_PREFIX}_mean": (difference.sum(), count),
        _MOMENTS + "square": (difference.square().sum(), count),
        _MOMENTS + "p": (p.sum(), count),
        _MOMENTS + "q": (q.sum(), count),
        _MOMENTS + "pp": (p.square().sum(), count),
        _MOMENTS + "qq": (q.square().sum(), count),
        _MOMENTS + "pq": ((p * q).sum(), count),
    }
    return sums, {f"{_PREFIX}_max": difference.max()} if len(p) else {}


def mismatch_metrics(quotients: dict[str, float]) -> dict[str, float]:
    """The quotients with the moments replaced by what they amount to.

    Standard deviation of the difference of the probabilities, and Pearson's correlation of the two
    (left out where one of them does not vary).
    """
    moment = {
        name.removeprefix(_MOMENTS): quotients.pop(name)
        for name in list(quotients)
        if name.startswith(_MOMENTS)
    }
    if not moment:
        return quotients
    variance = moment["square"] - quotients[f"{_PREFIX}_mean"] ** 2
    quotients[f"{_PREFIX}_std"] = math.sqrt(max(variance, 0.0))
    quotients[f"{_PREFIX}_valid"] = 1.0
    of_p, of_q = moment["pp"] - moment["p"] ** 2, moment["qq"] - moment["q"] ** 2
    if of_p > 1e-12 and of_q > 1e-12:
        covariance = moment["pq"] - moment["p"] * moment["q"]
        quotients["training/rollout_actor_probs_pearson_corr"] = covariance / math.sqrt(of_p * of_q)
    return quotients
