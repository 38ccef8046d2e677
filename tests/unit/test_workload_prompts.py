"""Prompts and bodies, and the job that carries them to another process."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autotuner.core.workload import (
    Arrival,
    LengthKind,
    Lengths,
    LoadMode,
    PromptFormat,
    SharedPrefix,
    TraceSource,
    Workload,
)
from autotuner_worker.workloads.job import Job, prompt_seed
from autotuner_worker.workloads.prompts import BodyMaker, TextPool, first_ordinary_token, pool_tokens
from autotuner_worker.workloads.schedule import Planned

FIRST = Planned(index=0, offset=0.0, prompt_tokens=20, output_tokens=7, group=0)
SECOND = replace(FIRST, index=1)


def body(maker: BodyMaker, planned: Planned) -> dict[str, Any]:
    """Return the decoded body."""
    value: dict[str, Any] = json.loads(maker.body(planned))
    return value


def test_a_body_asks_for_exact_lengths() -> None:
    """And for the counts."""
    value = body(BodyMaker(Workload(), 'my "model"', 1, 4096), FIRST)
    prompt = value.pop("prompt")
    assert value == {
        "model": 'my "model"',
        "max_tokens": 7,
        "min_tokens": 7,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert len(prompt) == 20
    assert all(first_ordinary_token(4096) <= token < 4096 for token in prompt)


def test_sampling_options_are_sent_only_when_given() -> None:
    """The server's own defaults stay otherwise."""
    value = body(BodyMaker(Workload(temperature=0.0, ignore_eos=False), "m", 1, 4096), FIRST)
    assert value["temperature"] == 0.0
    assert "min_tokens" not in value
    assert "ignore_eos" not in value


def test_prompts_are_fresh_per_request_and_segment() -> None:
    """The same request of the same segment is the same."""
    maker = BodyMaker(Workload(), "m", 1, 4096)
    assert maker.body(FIRST) == BodyMaker(Workload(), "m", 1, 4096).body(FIRST)
    assert maker.tokens(FIRST) != maker.tokens(SECOND)
    assert maker.tokens(FIRST) != BodyMaker(Workload(), "m", 2, 4096).tokens(FIRST)


def test_shared_prefixes_are_shared_within_their_group() -> None:
    """The prefix is part of the planned length, and never the whole prompt."""
    maker = BodyMaker(Workload(shared_prefix=SharedPrefix(tokens=8, groups=2)), "m", 1, 4096)
    first, second, other = maker.tokens(FIRST), maker.tokens(SECOND), maker.tokens(replace(SECOND, group=1))
    assert first[:8] == second[:8] != other[:8]
    assert first[8:] != second[8:]
    assert len(first) == 20
    assert len(maker.tokens(replace(FIRST, prompt_tokens=5))) == 5


def test_blocks_of_a_trace_decide_its_prompt() -> None:
    """Equal identifiers, equal tokens; the tail after the last block is fresh."""
    maker = BodyMaker(Workload(), "m", 1, 4096)
    long = replace(FIRST, prompt_tokens=1200, blocks=(3, 4))
    first, second = maker.tokens(long), maker.tokens(replace(long, index=1, blocks=(3, 5)))
    assert len(first) == len(second) == 1200
    assert first[:512] == second[:512]
    assert first[512:1024] != second[512:1024]
    assert len(maker.tokens(replace(long, prompt_tokens=100))) == 100


def test_text_prompts_are_cut_from_the_pool() -> None:
    """At random places, about as long as planned, whatever the pool's size."""
    workload = Workload(prompt_format=PromptFormat.TEXT, shared_prefix=SharedPrefix(tokens=5))
    text = ' "quoted"' + "".join(f" {number}" for number in range(100, 118)) + "end"
    maker = BodyMaker(workload, "m", 1, 4096, TextPool(text, 20.0))
    first, second = body(maker, FIRST)["prompt"], body(maker, SECOND)["prompt"]
    assert len(first) == len(second) == pytest.approx(20 * 84 / 20.0, abs=2)
    assert first[:21] == second[:21]
    assert first != second
    assert len(body(maker, replace(FIRST, prompt_tokens=100))["prompt"]) == 420
    with pytest.raises(ValueError, match="pool"):
        BodyMaker(workload, "m", 1, 4096)


def test_pool_tokens_are_ordinary_and_seeded() -> None:
    """Special tokens at the bottom are left out."""
    tokens = pool_tokens(50_000, 3, 500)
    assert tokens == pool_tokens(50_000, 3, 500)
    assert min(tokens) >= 1000


def test_a_job_travels_as_json() -> None:
    """With every part of the workload."""
    workload = Workload(
        mode=LoadMode.OPEN,
        rate=3.5,
        arrival=Arrival.GAMMA,
        input_tokens=Lengths(kind=LengthKind.TRACE),
        shared_prefix=SharedPrefix(tokens=3, groups=2),
        trace=TraceSource(path="t.csv", speed_up=2.0),
        prompt_format=PromptFormat.TEXT,
        temperature=0.5,
        concurrency=7,
    )
    job = Job(
        base_url="http://h:1", model_name="m", workload=workload, seed=1, vocabulary=10, shard=1, shards=3, exact=5
    )
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    assert [replace(job, shard=shard).clients for shard in range(3)] == [3, 2, 2]
    plain = replace(job, workload=Workload())
    assert Job.from_json(json.loads(json.dumps(plain.to_json()))) == plain


def test_equal_schedules_with_different_salts_share_no_prompt() -> None:
    assert len({prompt_seed(seed, salt) for seed in range(20) for salt in range(20)}) == 400
