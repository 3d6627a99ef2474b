"""Measured bounds are plausible, and say which rate binds."""

from __future__ import annotations

import time

import pytest

from rledger.cost import Cost, MachineBounds, measure_bandwidth, measure_matmul


def test_bandwidth_lies_between_a_disk_and_an_accelerator() -> None:
    assert 5e8 < measure_bandwidth(64 * 1024 * 1024, repeats=3) < 2e12


def test_the_matmul_rate_is_flops_over_the_best_time() -> None:
    rate = measure_matmul(lambda: time.sleep(0.01), 1e6, repeats=3)
    assert 0.5e8 < rate <= 1e8


def test_the_bound_is_the_slower_of_compute_and_memory() -> None:
    machine = MachineBounds(flops_per_s=100.0, bytes_per_s=10.0, instrument="made up")
    assert machine.bound_s(Cost(flops=400, bytes=10)) == 4.0
    assert machine.bounded_by(Cost(flops=400, bytes=10)) == "compute"
    assert machine.bound_s(Cost(flops=400, bytes=100)) == 10.0
    assert machine.bounded_by(Cost(flops=400, bytes=100)) == "memory"
    assert (Cost(1, 2) + Cost(3, 4)) * 2 == Cost(8, 12)
    assert Cost(1, 2).bound_s(1.0, 4.0) == pytest.approx(1.0)
