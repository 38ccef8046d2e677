"""The simulated scheduler conserves tokens and keeps every limit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuner_worker.simulator.blocks import BlockPool
from autotuner_worker.simulator.scheduler import Limits, Request, Scheduler, StepPlan, prefix_hashes


def scheduler(*, blocks: int = 64, block_size: int = 4, caching: bool = True, **limits: object) -> Scheduler:
    values = {"max_num_seqs": 4, "max_num_batched_tokens": 32} | limits
    return Scheduler(Limits(**values), BlockPool(blocks, caching=caching), block_size)  # type: ignore[arg-type]


def request(ident: str, prompt: int, target: int, **more: object) -> Request:
    return Request(ident=ident, prompt_tokens=prompt, target=target, **more)  # type: ignore[arg-type]


def never(_: Request, __: int) -> int:
    return 0


def tokens_of(plan: StepPlan) -> int:
    return sum(chunk.tokens + chunk.drafts for chunk in plan.chunks)


@settings(max_examples=120, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=20),
    max_num_seqs=st.integers(1, 8),
    budget=st.integers(8, 64),
    threshold=st.integers(0, 16),
    drafts=st.integers(0, 4),
    blocks=st.integers(24, 80),
    reserve=st.booleans(),
    priority=st.booleans(),
    caching=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_tokens_are_conserved_and_limits_kept(
    lengths: list[tuple[int, int]],
    max_num_seqs: int,
    budget: int,
    threshold: int,
    drafts: int,
    blocks: int,
    reserve: bool,
    priority: bool,
    caching: bool,
    seed: int,
) -> None:
    chance = random.Random(seed)
    under_test = scheduler(
        blocks=blocks,
        caching=caching,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        drafts=drafts,
        reserve_full_prompt=reserve,
        priority=priority,
    )
    requests = [
        request(
            str(number),
            prompt,
            target,
            hashes=prefix_hashes([number % 3] * prompt, 4) if caching else (),
            priority=chance.randrange(3),
        )
        for number, (prompt, target) in enumerate(lengths)
    ]
    for item in requests:
        under_test.add(item)
    got = dict.fromkeys(requests, 0)
    for _ in range(20_000):
        if not under_test.busy:
            break
        plan = under_test.schedule()
        assert plan.chunks
        assert tokens_of(plan) <= budget
        assert len(plan.chunks) <= len(under_test.running) <= max_num_seqs
        assert all(not threshold or not chunk.prefill or chunk.tokens <= threshold for chunk in plan.chunks)
        for emission in under_test.complete(plan, lambda _, count: chance.randint(0, count)):
            got[emission.request] += emission.tokens
            assert emission.finished == (got[emission.request] == emission.request.target)
        under_test.check()
    assert not under_test.busy
    assert all(got[item] == item.target == item.generated for item in requests)
    assert under_test.pool.available == under_test.pool.total


def test_prefill_is_chunked_and_the_first_token_comes_with_the_last_chunk() -> None:
    under_test = scheduler(max_num_batched_tokens=10)
    under_test.add(request("a", 25, 2))
    seen = []
    while under_test.busy:
        plan = under_test.schedule()
        seen.append((plan.chunks[0].tokens, len(under_test.complete(plan, never))))
    assert seen == [(10, 0), (10, 0), (5, 1), (1, 1)]


def test_without_chunking_a_prompt_goes_in_one_step() -> None:
    under_test = scheduler(max_num_batched_tokens=32, chunked_prefill=False)
    under_test.add(request("a", 20, 5))
    under_test.add(request("b", 20, 5))
    assert [chunk.request.ident for chunk in under_test.schedule().chunks] == ["a"]


def test_a_full_cache_preempts_the_youngest_which_is_computed_again() -> None:
    under_test = scheduler(blocks=6, block_size=4)
    first, second = request("first", 8, 12), request("second", 8, 12)
    under_test.add(first)
    under_test.add(second)
    while under_test.busy:
        under_test.complete(under_test.schedule(), never)
        under_test.check()
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert first.generated == second.generated == 12


def test_a_shared_prefix_is_computed_once() -> None:
    under_test = scheduler()
    prompt = list(range(17))
    computed = 0
    for ident in ("a", "b"):
        under_test.add(request(ident, 17, 1, hashes=prefix_hashes(prompt, 4)))
        plan = under_test.schedule()
        under_test.complete(plan, never)
        computed = plan.chunks[0].tokens
    assert computed == 1
    assert under_test.prefix_hits == 16
    assert under_test.pool.reset()
    under_test.add(request("c", 17, 1, hashes=prefix_hashes(prompt, 4)))
    assert under_test.schedule().chunks[0].tokens == 17
    assert not under_test.pool.reset()


def test_a_lowered_limit_lets_running_requests_finish() -> None:
    under_test = scheduler(max_num_seqs=4)
    for number in range(6):
        under_test.add(request(str(number), 4, 10))
    under_test.complete(under_test.schedule(), never)
    under_test.limits.max_num_seqs = 1
    assert len(under_test.schedule().chunks) == 4


def test_aborted_requests_leave_no_block_behind() -> None:
    under_test = scheduler()
    gone = request("gone", 9, 5)
    under_test.add(gone)
    plan = under_test.schedule()
    gone.aborted = True
    assert under_test.complete(plan, never) == []
    under_test.schedule()
    assert not under_test.busy
    assert under_test.pool.available == under_test.pool.total


def test_priority_overtakes_the_queue() -> None:
    under_test = scheduler(max_num_seqs=1, priority=True)
    under_test.add(request("late", 4, 1, priority=5))
    under_test.add(request("urgent", 4, 1, priority=0))
    assert under_test.schedule().chunks[0].request.ident == "urgent"


def test_drafts_never_exceed_what_is_left() -> None:
    under_test = scheduler(drafts=4)
    only = request("a", 4, 3)
    under_test.add(only)
    under_test.complete(under_test.schedule(), never)
    plan = under_test.schedule()
    assert plan.chunks[0].drafts == 1
    emissions = under_test.complete(plan, lambda _, drafts: drafts)
    assert [(item.tokens, item.accepted, item.finished) for item in emissions] == [(2, 1, True)]


def test_prefix_hashes_chain() -> None:
    left, right = prefix_hashes([1, 2, 3, 4], 2), prefix_hashes([9, 2, 3, 4], 2)
    assert len(left) == 2
    assert left[0] != right[0]
    assert left[1] != right[1]
    assert prefix_hashes([1, 2, 3, 4, 5], 2) == left


@pytest.mark.parametrize("length", [0, 1])
def test_prompts_below_a_block_have_no_hash(length: int) -> None:
    assert prefix_hashes([7] * length, 2) == ()
