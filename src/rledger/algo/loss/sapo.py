"""Soft adaptive policy optimisation (SAPO), https://arxiv.org/abs/2511.20347."""

from __future__ import annotations

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import clamped_log_ratio, policy_metrics, signed
from rledger.config.policy_loss import SapoLoss

__all__ = ["loss"]


def loss(config: SapoLoss, inputs: LossInputs) -> LossOutputs:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A (0 counts as negative).

    At r = 1 the gradient is that of -A r, and it fades on both sides. The log-ratio lies within
    +-20. The paper aggregates by seq_mean_token_mean, and so does `aggregation = "auto"`; any
    other that the recipe names is obeyed (verl overrides it without a word). Nothing is clipped.
    """
    ratio = clamped_log_ratio(inputs).exp()
    tau = signed(inputs.advantages, config.tau_positive, config.tau_negative)
    gate = (tau * (ratio - 1)).sigmoid() * 4 / tau
    return LossOutputs(token_losses=-inputs.advantages * gate, metrics=policy_metrics(inputs))
