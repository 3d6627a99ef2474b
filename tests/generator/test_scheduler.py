"""Admission, growth and preemption, over random workloads, without a model."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rledger.generator.blocks import BlockPool, num_blocks_for
from rledger.generator.scheduler import Scheduler
from rledger.types import GenerationRequest, SamplingParams


def held(scheduler: Scheduler) -> list[int]:
    prompts = {id(s.prompt): s.prompt for s in (*scheduler.running, *scheduler.waiting)}
    return [b for p in prompts.values() for b in p.blocks] + [
        b for s in (*scheduler.running, *scheduler.waiting) for b in s.blocks
    ]


def advance(scheduler: Scheduler, chunk: int) -> list[str]:
    """One engine step without its arithmetic; ids that finished."""
    scheduler.admit()
    pieces = scheduler.prefill_chunk(chunk)
    if pieces:
        assert sum(s.length for s in pieces) <= chunk
        for piece in pieces:
            owner = piece.prompt if piece.sequence is None else piece.sequence
            assert owner.num_cached == piece.start
            owner.num_cached += piece.length
            assert num_blocks_for(owner.num_cached) <= len(owner.blocks)
            if piece.sequence is None and owner.num_cached == len(piece.prompt.token_ids):
                piece.prompt.hidden = object()  # type: ignore[assignment]
        return []
    scheduler.grow()
    done = []
    for sequence in tuple(scheduler.running):
        if not sequence.prompt.is_ready:
            continue
        assert sequence.num_to_recompute == 0
        if sequence.token_ids:
            sequence.num_cached += 1
            assert num_blocks_for(sequence.num_cached) <= len(sequence.blocks)
        sequence.append(1, 0.0, 0.0, 0)
        if len(sequence.token_ids) == sequence.request.sampling.max_new_tokens:
            scheduler.finish(sequence)
            done.append(sequence.request.id)
    return done


WORK = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 70), st.integers(1, 90), st.integers(0, 20)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(
    work=WORK,
    num_blocks=st.integers(11, 40),
    max_running=st.integers(1, 8),
    chunk=st.integers(1, 64),
)
def test_everything_ends_in_order_and_no_block_is_lost_or_shared(
    work: list[tuple[int, int, int, int]], num_blocks: int, max_running: int, chunk: int
) -> None:
    scheduler = Scheduler(BlockPool(num_blocks), max_running=max_running)
    arrivals = sorted(
        (when, i, group, length, new) for i, (group, length, new, when) in enumerate(work)
    )
    done: list[str] = []
    for step in range(20_000):
        while arrivals and arrivals[0][0] <= step:
            _, i, group, length, new = arrivals.pop(0)
            scheduler.submit(
                GenerationRequest(
                    id=str(i),
                    group_id=str(group),
                    prompt_token_ids=(group,) * length,
                    sampling=SamplingParams(max_new_tokens=new),
                    seed=0,
                )
            )
        if not arrivals and not scheduler.running and not scheduler.waiting:
            break
        done += advance(scheduler, chunk)
        blocks = held(scheduler)
        assert len(blocks) == len(set(blocks)) == scheduler.pool.num_used <= num_blocks
        assert all(1 <= block <= num_blocks for block in blocks)
        assert len(scheduler.running) <= max_running
        if step == 30:
            scheduler.invalidate()
            assert scheduler.pool.num_used == 0
    assert sorted(done) == sorted(str(i) for i in range(len(work)))
    assert scheduler.pool.num_used == 0


def test_the_oldest_running_request_is_never_preempted() -> None:
    scheduler = Scheduler(BlockPool(8), max_running=4)
    for i in range(4):
        scheduler.submit(
            GenerationRequest(
                id=str(i),
                group_id=str(i),
                prompt_token_ids=(i,),
                sampling=SamplingParams(max_new_tokens=100),
                seed=0,
            )
        )
    done: list[str] = []
    while len(done) < 4:
        done += advance(scheduler, 64)
    assert done == ["0", "1", "2", "3"]
    assert scheduler.num_preemptions > 0
