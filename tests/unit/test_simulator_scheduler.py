"""The simulated scheduler conserves tokens and keeps every limit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuner_worker.simulator.blocks import BlockPool
from autotuner_worker.simulator.flags import parse, settings_from
from autotuner_worker.simulator.scheduler import Limits, Request, Scheduler, StepPlan, prefix_hashes
from autotuner_worker.simulator.surface import cost_profile, memory_plan, step_cost


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


def closed_loop(*arguments: str, clients: int, prompt: int, answer: int, requests: int) -> float:
    """Return generated tokens per simulated second of *clients* that always have one request under way."""
    configured = settings_from(parse(["sim-7b", *arguments], {}))
    surface = configured.surface
    memory, profile = memory_plan(surface), cost_profile(surface)
    limits = Limits(
        max_num_seqs=surface.max_num_seqs,
        max_num_batched_tokens=surface.max_num_batched_tokens,
        drafts=surface.speculation.drafts if surface.speculation else 0,
    )
    loop = Scheduler(limits, BlockPool(memory.num_blocks, caching=False), memory.block_size)
    chance = random.Random(0)
    acceptance = surface.speculation.acceptance(0.0) if surface.speculation else 0.0

    def accept(_: Request, drafts: int) -> int:
        return next((count for count in range(drafts) if chance.random() >= acceptance), drafts)

    for number in range(clients):
        loop.add(request(str(number), prompt, answer))
    seconds, tokens, finished = 0.0, 0, 0
    while finished < requests:
        plan = loop.schedule()
        seconds += step_cost(profile, plan.load).total
        for emission in loop.complete(plan, accept):
            tokens += emission.tokens
            if emission.finished:
                finished += 1
                loop.add(request("more", prompt, answer))
    return tokens / seconds


def test_a_loaded_engine_has_an_optimal_number_of_sequences() -> None:
    found = {
        seqs: closed_loop("--max-num-seqs", str(seqs), clients=128, prompt=128, answer=32, requests=256)
        for seqs in (8, 32, 128)
    }
    assert found[32] > 1.5 * found[8]
    assert found[32] > 1.4 * found[128]


def test_a_loaded_engine_has_an_optimal_token_budget() -> None:
    found = {
        budget: closed_loop(
            "--max-num-seqs", "40", "--max-num-batched-tokens", str(budget),
            clients=64, prompt=2048, answer=32, requests=96,
        )
        for budget in (64, 1024, 8192)
    }  # fmt: skip
    assert found[1024] > 2 * found[64]
    assert found[1024] > 1.2 * found[8192]


def test_speculation_turns_from_gain_to_loss_under_load() -> None:
    spec = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
    alone = [closed_loop(*args, clients=1, prompt=64, answer=64, requests=8) for args in ((), spec)]
    crowd = [closed_loop(*args, clients=64, prompt=64, answer=64, requests=128) for args in ((), spec)]
    assert alone[1] > 1.5 * alone[0]
    assert crowd[1] < 0.8 * crowd[0]
