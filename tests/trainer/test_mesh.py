"""Two ranks that share an update equal one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from batches import make_batch, make_trainer

from rledger.config.algorithm import AlgorithmConfig
from rledger.errors import NonFiniteError
from rledger.schedule.packing import balance, select_rows
from rledger.trainer.mesh import Mesh, join_mesh

MIXED = [(5, [7, 3, 6]), (1, [4, 4]), (9, [1]), (4, [12, 2, 2, 5]), (3, [9])]
ALGORITHM = AlgorithmConfig.model_validate(
    {"aggregation": "seq_mean_token_mean", "kl": {"type": "loss"}, "entropy_coef": 0.01}
)


def _share(batch, dp: int, rank: int):
    """Whole groups, even in tokens."""
    costs = [int(batch.lengths[batch.groups == g].sum()) for g in range(batch.num_groups)]
    mine = balance(costs, dp)[rank]
    return select_rows(batch, [r for r in range(batch.num_rows) if batch.groups[r] in mine])


def _train(mesh: Mesh, batches) -> tuple[dict[str, torch.Tensor], dict[str, float], float]:
    trainer = make_trainer(algorithm=ALGORITHM, micro_batch_tokens=40, mesh=mesh)

    async def work():
        for batch in batches:
            stats = await trainer.forward_backward(batch)
            step = await trainer.optim_step()
        return stats, step

    stats, step = asyncio.run(work())
    return dict(trainer._weights.masters), dict(stats.metrics), step.grad_norm


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    mesh = join_mesh(2, rank, f"file://{folder}/meet", timeout_s=60)
    shares = [_share(make_batch(MIXED, seed=seed), 2, rank) for seed in range(3)]
    result = _train(mesh, shares)
    # a rank that must leave the update takes the other with it
    trainer = make_trainer(mesh=mesh)
    bad = shares[0].advantages.copy()
    bad[shares[0].loss_mask] = float("nan") if rank == 1 else 0.0
    from dataclasses import replace

    with pytest.raises(NonFiniteError):
        asyncio.run(trainer.forward_backward(replace(shares[0], advantages=bad)))
    torch.save(result, f"{folder}/rank{rank}.pt")


def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    mp.start_processes(_rank, (str(tmp_path),), nprocs=2, start_method="spawn")
    weights, metrics, norm = _train(Mesh(), [make_batch(MIXED, seed=seed) for seed in range(3)])
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    for name, expected in weights.items():
        assert torch.equal(ranks[0][0][name], ranks[1][0][name]), name
        # the third Adam step divides tiny gradients by their size, so an absolute bound
        assert torch.allclose(ranks[0][0][name], expected, rtol=1e-4, atol=2e-5), name
    assert ranks[0][2] == pytest.approx(norm, rel=1e-4)
    for name, number in metrics.items():
        if name != "actor/num_micro_batches":
            assert ranks[0][1][name] == pytest.approx(number, rel=1e-3, abs=1e-5), name
            assert ranks[1][1][name] == ranks[0][1][name]
