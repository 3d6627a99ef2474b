"""PPO, https://arxiv.org/abs/1707.06347, with DAPO's separate clip bounds,
https://arxiv.org/abs/2503.14476, and the dual clip, https://arxiv.org/abs/1912.09729.
"""

from __future__ import annotations

import torch

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import clamped_log_ratio, policy_metrics
from rledger.config.policy_loss import PpoLoss

__all__ = ["loss"]


def loss(config: PpoLoss, inputs: LossInputs) -> LossOutputs:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0 at most -A c.

    r = exp(logprob - old_logprob), the log-ratio within +-20. `pg_clipfrac` is the share of tokens
    that the clip range holds, `pg_clipfrac_lower` that of tokens held by the dual clip.
    """
    advantages = inputs.advantages
    ratio = clamped_log_ratio(inputs).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses = torch.maximum(plain, clipped)
    is_bounded = torch.zeros_like(inputs.loss_mask)
    if config.dual_clip is not None:
        bound = -advantages * config.dual_clip
        is_bounded = (advantages < 0) & (losses > bound)
        losses = torch.where(is_bounded, bound, losses)
    metrics = policy_metrics(inputs, clipped=clipped > plain, clipped_lower=is_bounded)
    return LossOutputs(token_losses=losses, metrics=metrics)
