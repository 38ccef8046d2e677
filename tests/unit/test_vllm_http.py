"""The client of an engine's server: figures, probes and states, against a server in the same loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from autotuner_worker.engines.http import Answer, EngineClient, LiveState, parse_metrics
from autotuner_worker.engines.http_launch import memory_kills, shown_environment

METRICS = """\
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:request_success_total{finished_reason="stop"} 5 1700000000
vllm:request_success_created{finished_reason="stop"} 1.7e+09
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 1
vllm:e2e_request_latency_seconds_sum{engine="0"} 2.5
vllm:e2e_request_latency_seconds_count{engine="0"} 2
odd{label="a } b"} 1
process_cpu_seconds_total 1.5
not a metric line
empty
"""


def test_labels_are_summed_and_buckets_left_out() -> None:
    assert parse_metrics(METRICS) == {
        "vllm:num_requests_running": 7.0,
        "vllm:request_success_total": 5.0,
        "vllm:e2e_request_latency_seconds_sum": 2.5,
        "vllm:e2e_request_latency_seconds_count": 2.0,
        "odd": 1.0,
        "process_cpu_seconds_total": 1.5,
    }


@pytest_asyncio.fixture
async def answer() -> AsyncIterator[dict[str, Any]]:
    """Return the server's next answer, to be changed, with its address."""
    found: dict[str, Any] = {"status": 200, "body": ""}

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=found["status"], text=found["body"])

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", handle)
    async with TestServer(application) as server:
        found["url"] = str(server.make_url("")).rstrip("/")
        yield found


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, '{"choices": [{"text": "a"}], "usage": {"completion_tokens": 2}}', Answer.GOOD),
        (200, '{"choices": [{"text": ""}], "usage": {"completion_tokens": 1}}', Answer.GOOD),
        (200, '{"choices": [{"text": "a"}], "usage": {"completion_tokens": 3}}', Answer.GARBAGE),
        (200, '{"choices": [{"text": "a"}], "usage": {"completion_tokens": 0}}', Answer.GARBAGE),
        (200, '{"choices": [{"text": null}], "usage": {"completion_tokens": 1}}', Answer.GARBAGE),
        (200, '{"choices": []}', Answer.GARBAGE),
        (200, "[]", Answer.GARBAGE),
        (200, "<html>", Answer.GARBAGE),
        (404, '{"error": "no such model"}', Answer.GARBAGE),
        (500, "broken", Answer.GARBAGE),
        (503, "", Answer.SILENT),
    ],
)
async def test_only_tokens_are_an_answer(answer: dict[str, Any], status: int, body: str, expected: Answer) -> None:
    answer.update(status=status, body=body)
    client = EngineClient(answer["url"], "m")
    found, detail = await client.complete()
    await client.close()
    assert found is expected
    assert bool(detail) is (expected is not Answer.GOOD)


async def test_states_of_servers_that_know_no_such_thing(answer: dict[str, Any]) -> None:
    client = EngineClient(answer["url"], "m")
    for status, body in ((404, ""), (200, "[]"), (200, "<html>"), (200, "{}")):
        answer.update(status=status, body=body)
        assert (await client.state()).hot is False
        assert (await client.limits({"max_num_seqs": 1})).hot is False
        assert await client.reset_prefix_cache() is False
    await client.close()


async def test_nobody_there() -> None:
    client = EngineClient("http://127.0.0.1:1", "m")
    assert (await client.complete())[0] is Answer.SILENT
    assert await client.health() == 0
    assert (await client.state()).hot is False
    await client.close()


def test_a_state_is_read_with_defaults() -> None:
    assert LiveState.parse({}) == LiveState()
    assert LiveState.parse({"hot": True, "limits": {"a": 2.0}, "running": 1}).limits == {"a": 2}


def test_secrets_are_not_shown() -> None:
    assert shown_environment({"HF_TOKEN": "x", "OPENAI_API_KEY": "y", "VLLM_PLUGINS": "z"}) == {
        "HF_TOKEN": "***",
        "OPENAI_API_KEY": "***",
        "VLLM_PLUGINS": "z",
    }


def test_the_kernels_counter_can_be_read() -> None:
    assert memory_kills() >= 0
