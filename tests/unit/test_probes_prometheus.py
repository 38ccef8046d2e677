"""The exposition format."""

from __future__ import annotations

import math

import pytest

from autotuner.errors import AutotunerError
from autotuner_worker.probes.prometheus import ExpositionError, parse

TEXT = r"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="m"} 1.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 2.0
vllm:e2e_request_latency_seconds_count{model_name="m"} 2.0
vllm:e2e_request_latency_seconds_sum{model_name="m"} 1.5e-1
vllm:e2e_request_latency_seconds_created{model_name="m"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0 # {trace="x"} 1
vllm:cache_config_info{block_size="128",engine="0",note="a \"quoted\", \\ } thing\n",num_gpu_blocks="10"} 1.0
vllm:cache_config_info{block_size="128",engine="1",num_gpu_blocks="11"} 1.0
python_gc{quantile="0.5"} 7
plain NaN 1395066363000
spaced {a = "b" , } +Inf
"""


def test_totals() -> None:
    totals = parse(TEXT).totals()
    assert totals["vllm:num_requests_running"] == 7.0
    assert totals["vllm:e2e_request_latency_seconds_count"] == 2.0
    assert totals["vllm:e2e_request_latency_seconds_sum"] == 0.15
    assert math.isnan(totals["plain"])
    assert totals["spaced"] == math.inf
    assert not [name for name in totals if name.endswith(("_created", "_bucket"))]
    assert "python_gc" not in totals


def test_access_by_labels() -> None:
    page = parse(TEXT)
    assert page.types["vllm:e2e_request_latency_seconds"] == "histogram"
    assert page.value("vllm:num_requests_running", engine="1") == 4.0
    assert page.value("vllm:num_requests_running", engine="7") is None
    assert page.by_label("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position") == {"0": 10.0, "1": 4.0}
    info = page.info("vllm:cache_config_info")
    assert info == {"block_size": "128", "note": 'a "quoted", \\ } thing\n'}
    assert page.info("missing") == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("<html>", "no metric name"),
        ("name", "expected a value"),
        ("name 1 2 3", "expected a value"),
        ("name one", "not a number"),
        ('name{a="b} 1', "broken labels"),
        ("name{a=b} 1", "broken labels"),
        ('name{a="b"', "broken labels"),
    ],
)
def test_garbage_is_a_typed_error_with_the_line(line: str, reason: str) -> None:
    with pytest.raises(ExpositionError, match=reason) as caught:
        parse(f"good 1\n\n{line}\n")
    assert (caught.value.number, caught.value.line) == (3, line)
    assert isinstance(caught.value, AutotunerError)


def test_empty_page() -> None:
    assert parse("").totals() == {}
