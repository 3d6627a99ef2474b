"""AdamW on float32 master weights, and the float32 sums of the gradient of an update.

The decoder computes in its own dtype. Where that is narrower than float32, masters are a second copy;
where it is not, the decoder's own parameters are the masters. A parameter's gradient is added to
its sum as soon as it is complete, while it lies in a cache, and freed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from rledger.config.trainer import OptimizerConfig
from rledger.models.decoder import Decoder
from rledger.trainer.mesh import Mesh
from rledger.trainer.schedules import learning_rate

__all__ = ["MasterWeights"]


class MasterWeights:
    """What an optimizer step reads and writes: masters, gradient sums, moments.

    `start` holds the values to begin with, under the decoder's parameter names, in float32 at
    least; the decoder takes them over. The schedule ends with update `num_updates`.
    """

    def __init__(
        self,
        decoder: Decoder,
        start: Mapping[str, Tensor],
        config: OptimizerConfig,
        mesh: Mesh,
        *,
        num_updates: int,
    ) -> None:
        self._config, self._mesh, self._num_updates = config, mesh, num_updates
        self._parameters = dict(decoder.named_parameters())
        self.num_updates_done = 0
        self.masters: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        self.means: dict[str, Tensor] = {}
        self.squares: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            wide = torch.promote_types(parameter.dtype, torch.float32)
            own = parameter.detach()
            self.masters[name] = own if own.dtype == wide else torch.empty_like(own, dtype=wide)
            self.masters[name].copy_(start[name])
            for tensors in (self.grads, self.means, self.squares):
                tensors[name] = torch.zeros_like(self.masters[name])
            # torch does not annotate it
            parameter.register_post_accumulate_grad_hook(self._collector(name))  # type: ignore[no-untyped-call]
        self._empty: set[str] = set(self.grads)  # parameters whose sum holds nothing yet
        self.write_back()

    def _collector(self, name: str) -> Callable[[Tensor], None]:
        def collect(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if name in self._empty:
                self._empty.remove(name)
                self.grads[name].copy_(parameter.grad)
            else:
                self.grads[name].add_(parameter.grad)
            parameter.grad = None

        return collect

    def grad_of(self, parameter: Tensor) -> Tensor:
        """Where to add the gradient of a parameter that autograd does not see."""
        name = next(name for name, known in self._parameters.items() if known is parameter)
        if name in self._empty:
            self._empty.remove(name)
            self.grads[name].zero_()
        return self.grads[name]

    def drop_gradient(self) -> None:
        """Forget what was accumulated. Nothing is filled with zeros: the next gradient overwrites."""
        self._empty = set(self.grads)

    def share_gradient(self) -> float:
        """Sum the gradient over the ranks; its norm, not finite where any of it is not."""
        grads = list(self.grads.values())
        for name in self._empty:
            self.grads[name].zero_()
        self._empty = set()
        self._mesh.add_up(grads)
        return float(torch.nn.utils.get_total_norm(grads))

    def gradient_is_finite(self) -> bool:
        """Of this rank's own sums, those that hold something."""
        return all(
            bool(grad.isfinite().all())
            for name, grad in self.grads.items()
            if name not in self._empty
        )

    def learning_rate(self) -> float:
        """Rate of the next update."""
        return learning_rate(self._config, self.num_updates_done + 1, self._num_updates)

    def step(self, grad_norm: float) -> float:
        """Clip, update, hand the new weights to the decoder, drop the gradient; the rate used."""
        limit = self._config.max_grad_norm
        rate = self.learning_rate()
        scale = None
        if limit is not None and grad_norm > limit:
            # the fused kernel divides by it on its way: no pass of its own
            scale = torch.tensor(grad_norm / limit, device=next(iter(self.masters.values())).device)
        for decays in (True, False):
            names = [name for name, m in self.masters.items() if (m.dim() >= 2) == decays]
            self._adamw(names, rate, self._config.weight_decay if decays else 0.0, scale)
        self.num_updates_done += 1
        self.write_back()
        self.drop_gradient()
        return rate

    def _adamw(
        self, names: list[str], rate: float, weight_decay: float, scale: Tensor | None
    ) -> None:
        device = next(iter(self.masters.values())).device
        done = torch.tensor(float(self.num_updates_done), device=device)
        adamw(
            [self.masters[name] for name in names],
            [self.grads[name] for name in names],
            [self.means[name] for name in names],
            [self.squares[name] for name in names],
            [],
            [done.clone() for _ in names],
            fused=True,
            grad_scale=scale,
            amsgrad=False,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            lr=rate,
            weight_decay=weight_decay,
            eps=self._config.eps,
            maximize=False,
        )

    def write_back(self) -> None:
        """Round the masters into the decoder; nothing to do where they are its parameters."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if self.masters[name].dtype != parameter.dtype:
                    parameter.copy_(self.masters[name])
