"""The simulated server speaks the protocol, shows its metrics and its faults, over a real socket in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from autotuner_worker.engines.http import parse_metrics
from autotuner_worker.simulator.app import build_app, build_core
from autotuner_worker.simulator.engine import DEAD_MESSAGE, EngineCore
from autotuner_worker.simulator.flags import Rejected, ServerSettings, parse, settings_from
from autotuner_worker.simulator.protocol import BadRequest, parse_ask
from autotuner_worker.simulator.surface import oom_strikes
from autotuner_worker.simulator.tokens import decode, encode


def options(*arguments: str) -> ServerSettings:
    return settings_from(parse(["sim-tiny", "--time-scale", "0", *arguments], {}))


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[tuple[TestClient[Any, Any], EngineCore]]:
    core = build_core(options(*arguments))
    async with TestClient(TestServer(build_app(core))) as client:
        yield client, core


async def ask(client: TestClient[Any, Any], **body: Any) -> dict[str, Any]:
    async with client.post("/v1/completions", json={"model": "sim-tiny", "prompt": [5, 6, 7], **body}) as response:
        return {"status": response.status, **await response.json()}


async def stream(client: TestClient[Any, Any], **body: Any) -> list[dict[str, Any]]:
    body = {"model": "sim-tiny", "prompt": [5, 6, 7], "stream": True, **body}
    async with client.post("/v1/completions", json=body) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        text = await response.text()
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def figures(client: TestClient[Any, Any]) -> dict[str, float]:
    async with client.get("/metrics") as response:
        return parse_metrics(await response.text())


async def test_everything_is_labelled_simulated() -> None:
    async with serving() as (client, _):
        models = await (await client.get("/v1/models")).json()
        assert models["data"][0]["owned_by"] == "simulated"
        assert models["data"][0]["id"] == "sim-tiny"
        assert (await (await client.get("/version")).json())["version"].startswith("simulated-")
        assert (await client.get("/health")).status == 200


async def test_streamed_answer_has_tokens_and_usage() -> None:
    async with serving() as (client, _):
        events = await stream(
            client,
            max_tokens=20,
            ignore_eos=True,
            return_token_ids=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = events
        ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert len(ids) == 20
        assert text == decode(ids)
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 20
        assert last["usage"]["prompt_tokens"] == 3


async def test_greedy_answers_repeat_and_sampled_ones_differ() -> None:
    async with serving() as (client, _):
        greedy = [await ask(client, max_tokens=8, temperature=0, ignore_eos=True) for _ in range(2)]
        sampled = [await ask(client, max_tokens=8, temperature=1, ignore_eos=True) for _ in range(2)]
        assert greedy[0]["choices"][0]["text"] == greedy[1]["choices"][0]["text"]
        assert sampled[0]["choices"][0]["text"] != sampled[1]["choices"][0]["text"]


async def test_text_prompts_chat_and_tokenizer() -> None:
    async with serving() as (client, _):
        found = await (await client.post("/tokenize", json={"prompt": "w5 w17 hello"})).json()
        assert found["tokens"][:2] == [5, 17]
        assert found["count"] == 3
        back = await (await client.post("/detokenize", json={"tokens": [5, 17]})).json()
        assert back["prompt"] == " w5 w17"
        assert (await ask(client, prompt="one two three", max_tokens=2))["usage"]["prompt_tokens"] == 3
        body = {"messages": [{"role": "user", "content": "hello you"}], "max_tokens": 2, "ignore_eos": True}
        chat = await (await client.post("/v1/chat/completions", json=body)).json()
        assert chat["usage"]["completion_tokens"] == 2
        assert chat["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"max_tokens": 5000}, 400),
        ({"max_tokens": 0}, 400),
        ({"prompt": []}, 400),
        ({"prompt": [10**9]}, 400),
        ({"prompt": {"a": 1}}, 400),
        ({"temperature": "hot"}, 400),
        ({"n": 2}, 400),
        ({"stream_options": 3}, 400),
        ({"model": "other"}, 404),
    ],
)
async def test_bad_requests_are_refused(body: dict[str, Any], status: int) -> None:
    async with serving() as (client, _):
        answer = await ask(client, **body)
        assert answer["status"] == status
        assert answer["error"]["code"] == status
        async with client.post("/v1/completions", data=b"{") as response:
            assert response.status == 400


async def test_metrics_count_what_happened() -> None:
    async with serving() as (client, _):
        before = await figures(client)
        await asyncio.gather(*(ask(client, prompt=[3] * 40, max_tokens=10, ignore_eos=True) for _ in range(6)))
        await ask(client, prompt=[3] * 40, max_tokens=10, ignore_eos=True)
        after = await figures(client)
        assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 70
        assert after["vllm:prompt_tokens_total"] == 280
        assert after["vllm:request_success_total"] == 7
        assert after["vllm:e2e_request_latency_seconds_count"] == 7
        assert after["vllm:prefix_cache_hits_total"] >= 32
        assert after["vllm:num_requests_running"] == 0
        assert after["vllm:cache_config_info"] == 1.0


async def test_a_starved_cache_preempts_and_still_answers() -> None:
    async with serving("--num-gpu-blocks-override", "8", "--max-model-len", "128") as (client, _):
        answers = await asyncio.gather(
            *(ask(client, prompt=[9 + number] * 30, max_tokens=60, ignore_eos=True) for number in range(4))
        )
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [60] * 4
        assert (await figures(client))["vllm:num_preemptions_total"] > 0


async def test_speculation_is_counted() -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 3}'
    async with serving("--speculative-config", config) as (client, _):
        answer = await ask(client, max_tokens=200, temperature=0, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 200
        found = await figures(client)
        ratio = found["vllm:spec_decode_num_accepted_tokens_total"] / found["vllm:spec_decode_num_draft_tokens_total"]
        assert 0.2 < ratio < 0.7
        assert found["vllm:generation_tokens_total"] == 200


async def test_live_limits_are_bounded_and_take_effect() -> None:
    async with serving("--max-num-seqs", "8", "--max-num-batched-tokens", "64") as (client, core):
        state = await (await client.get("/autotuner/state")).json()
        assert state["hot"] is True
        assert state["bounds"]["max_num_seqs"] == 8
        changes = {"max_num_seqs": 2, "max_num_batched_tokens": 1000, "long_prefill_token_threshold": 16}
        state = await (await client.post("/autotuner/limits", json=changes)).json()
        assert state["limits"] == {
            "max_num_seqs": 2,
            "max_num_batched_tokens": 64,
            "long_prefill_token_threshold": 16,
        }
        assert core.limits.max_num_seqs == 2
        for wrong in ({"block_size": 1}, {"max_num_seqs": "2"}, [1]):
            state = await (await client.post("/autotuner/limits", json=wrong)).json()
            assert state["hot"] is False
            assert state["reason"]
        assert (await (await client.post("/autotuner/reset_prefix_cache")).json()) == {"success": True}


async def test_a_client_that_leaves_frees_its_place() -> None:
    async with serving("--time-scale", "1") as (client, core):
        body = {"model": "sim-tiny", "prompt": [5], "max_tokens": 4000, "stream": True, "ignore_eos": True}
        response = await client.post("/v1/completions", json=body)
        await response.content.readline()
        response.close()
        await asyncio.wait_for(core.idle.wait(), 5)
        assert core.metrics.finished["abort"] == 1


async def test_memory_failure_under_load_is_decided_by_the_seed() -> None:
    arguments = ["--gpu-memory-utilization", "0.95", "--sim-oom-kv-usage", "0"]

    def struck(seed: int) -> bool:
        core = build_core(options(*arguments, "--sim-seed", str(seed)))
        return oom_strikes(seed, core.settings.launch_key, core.memory.utilisation)

    fatal = next(seed for seed in range(50) if struck(seed))
    safe = next(seed for seed in range(50) if not struck(seed))
    async with serving(*arguments, "--sim-seed", str(safe)) as (client, core):
        assert (await ask(client, max_tokens=4))["status"] == 200
    async with serving(*arguments, "--sim-seed", str(fatal)) as (client, core):
        events = await stream(client, max_tokens=4)
        assert events[-1]["error"]["message"] == DEAD_MESSAGE
        assert core.cause[0].startswith("torch.OutOfMemoryError: CUDA out of memory.")
        assert (await client.get("/health")).status == 503
        assert (await ask(client, max_tokens=4))["status"] == 500


async def test_fault_garbage() -> None:
    async with serving("--fault", "garbage") as (client, _):
        response = await client.post("/v1/completions", json={"prompt": [5]})
        with pytest.raises(ValueError, match=r"utf-8|Expecting"):
            json.loads(await response.read())


async def test_fault_empty_answers() -> None:
    async with serving("--fault", "empty_answers") as (client, _):
        events = await stream(client, stream_options={"include_usage": True})
        assert events[-1]["usage"]["completion_tokens"] == 0
        assert (await ask(client))["choices"][0]["text"] == ""


async def test_fault_error_chunk() -> None:
    async with serving("--fault", "error_chunk") as (client, _):
        events = await stream(client, max_tokens=16, ignore_eos=True)
        assert "error" in events[-1]
        assert "choices" in events[0]


async def test_fault_crash_after_n_requests() -> None:
    async with serving("--fault", "crash_after_n_requests=2") as (client, core):
        assert (await ask(client, max_tokens=2))["status"] == 200
        assert (await ask(client, max_tokens=2))["status"] == 500
        assert core.dead.is_set()


async def test_fault_hang_under_load() -> None:
    async with serving("--fault", "hang_under_load=2") as (client, core):
        assert (await ask(client, max_tokens=2))["status"] == 200
        waiting = asyncio.create_task(ask(client, max_tokens=2))
        await asyncio.wait_for(core.hung.wait(), 5)
        assert (await client.get("/health")).status == 200
        assert (await figures(client))["vllm:num_requests_waiting"] == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--num-scheduler-steps", "8"),
        ("--kv-cache-dtype", "nonsense"),
        ("--max-num-seqs", "many"),
        ("--speculative-config", "{"),
    ],
)
def test_unknown_flags_and_values_end_like_argparse(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        options(*arguments)
    assert caught.value.code == 2
    assert "simulated: error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-num-seqs", "256", "--max-num-batched-tokens", "128"), "greater than or equal to max_num_seqs"),
        (("--no-enable-chunked-prefill", "--max-num-batched-tokens", "1024"), "smaller than max_model_len"),
        (("--max-model-len", "1000000"), "greater than the derived max_model_len"),
        (("--gpu-memory-utilization", "1.5"), "gpu_memory_utilization"),
        (("--block-size", "17"), "No common block size for 17"),
        (("--tensor-parallel-size", "5"), "divisible by tensor parallel size"),
        (("--tensor-parallel-size", "12"), "World size"),
        (("--long-prefill-token-threshold", "9999"), "long_prefill_token_threshold"),
        (("--speculative-config", '{"method": "magic"}'), "speculative method"),
        (("--async-scheduling", "--speculative-config", '{"method": "ngram"}'), "async scheduling"),
    ],
)
def test_combinations_are_refused_with_the_engines_words(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(Rejected, match=message):
        options(*arguments)


def test_files_flags_and_environment_are_laid_over_each_other(tmp_path: Any) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(
        "max-num-seqs: 7\nblock_size: 32\nno-enable-prefix-caching: true\nenforce-eager: true\n"
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 2\n"
    )
    environ = {"AUTOTUNER_SIM_TIME_SCALE": "0.5", "AUTOTUNER_SIM_FAULT": "garbage,hang_under_load=3"}
    found = settings_from(parse(["sim-7b", "--config", str(path), "--max_num_seqs=9"], environ))
    assert found.surface.max_num_seqs == 9
    assert found.surface.block_size == 32
    assert not found.prefix_caching
    assert found.surface.enforce_eager
    assert found.surface.speculation is not None
    assert found.surface.speculation.drafts == 2
    assert found.time_scale == 0.5
    assert found.faults.has("garbage")
    assert found.faults.number("hang_under_load") == 3
    with pytest.raises(ValueError, match="unknown fault"):
        options("--fault", "earthquake")


def test_tokenizer_round_trip_and_any_text() -> None:
    assert encode(decode([3, 99, 31999]), 32000) == [3, 99, 31999]
    assert all(3 <= token < 100 for token in encode("any words w5000 at all", 100))


def test_an_ask_is_read_completely() -> None:
    body = {"prompt": [[5, 6]], "max_tokens": 3, "min_tokens": 2, "priority": 4, "stream": True}
    found = parse_ask(body, chat=False, model="m", vocabulary=10, max_model_len=10)
    assert (list(found.prompt), found.min_tokens, found.priority, found.stream) == ([5, 6], 2, 4, True)
    with pytest.raises(BadRequest):
        parse_ask([], chat=False, model="m", vocabulary=10, max_model_len=10)
