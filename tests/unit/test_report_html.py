"""report.html: complete, self-contained, escaped, well-formed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from autotuner.core.results import StudyResult, VerdictKind
from autotuner.report.charts import Axis, gain_chart
from autotuner.report.html import render_html
from tests.fakes.results import infeasible_result, simulated_result, study_result, unmeasured_result

_VOID = {"meta", "br"}


class _Checker(HTMLParser):
    """Fails on tags that do not match; collects visible text and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _checked(page: str) -> _Checker:
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


@pytest.mark.parametrize("make", [study_result, simulated_result, infeasible_result, unmeasured_result])
def test_every_page_is_well_formed_and_loads_nothing(make: Callable[[], StudyResult]) -> None:
    page = render_html(make())
    checker = _checked(page)
    assert not {name for name, _ in checker.attributes} & {"src", "href", "srcset"}
    assert not re.search(r"url\(|@import|https?://", page)
    assert "link" not in checker.tags
    assert not re.search(r"\bnan\b|\binf\b", "".join(checker.texts))
    assert len(page) < 200_000


def test_the_page_says_everything() -> None:
    text = "".join(_checked(render_html(study_result())).texts)
    for wanted in (
        "Change to the winner: +20.0 %",
        '--speculative-config \'{"method":"ngram","num_speculative_tokens":3}\'',
        "no-enable-prefix-caching: true",
        "ExecStart=",
        "TTFT p95 ≤ 350 ms",
        "best so far",
        "trial 8: 2,168 tok/s, feasible",
        "oom under load",
        "out-of-memory risk 0.41 exceeds 0.05",
        "network 80 ms",
        "noise floor: ±1.4 %",
        "swap_space",
        "measured from 6.0 s on",
        "closed loop, 96 clients",
        "NVIDIA A100-SXM4-40GB",
    ):
        assert wanted in text, wanted


def test_simulated_pages_carry_the_banner_and_no_export() -> None:
    text = "".join(_checked(render_html(simulated_result())).texts)
    assert "SIMULATED: these figures" in text
    assert "SIMULATED| OMP_NUM_THREADS=8 vllm serve" in text
    assert "ExecStart" not in text


def test_infeasible_pages_offer_no_command() -> None:
    text = "".join(_checked(render_html(infeasible_result())).texts)
    assert "vllm serve" not in text
    assert "Partial result" in text
    assert "closest" in text


def test_everything_from_outside_is_escaped() -> None:
    evil = "<script>alert(1)</script>&\"'"
    result = study_result()
    first = result.trials[0]
    assert first.outcome is not None
    assert first.outcome.launch is not None
    outcome = replace(first.outcome, message=evil, evidence=(evil,))
    assert result.winner is not None
    poisoned = replace(
        result,
        study_id=evil,
        spec=replace(
            result.spec,
            name=evil,
            model=evil,
            hardware=replace(result.spec.hardware, name=evil),
            engine=replace(result.spec.engine, version=evil),
            budget=replace(result.spec.budget, parts={evil: 0.1}),
        ),
        notes=(evil,),
        stopped=evil,
        complete=False,
        winner=replace(result.winner, config={**result.winner.config, evil: evil}),
        trials=(replace(first, outcome=outcome, source=evil, config={evil: evil}), *result.trials[1:]),
        verdict=replace(result.verdict, reason=evil, binding=(evil,)),
    )
    page = render_html(poisoned)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    _checked(page)


def test_axes_are_round_and_hold_their_values() -> None:
    axis = Axis.around([3.0, 97.0], 0.0, 100.0)
    ticks = axis.ticks()
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    assert {round(b - a, 9) for a, b in itertools.pairwise(ticks)} == {25.0}
    flat = Axis.around([5.0, 5.0], 0.0, 10.0)
    assert 0 < flat.at(5.0) < 10
    assert Axis.around([], 0.0, 1.0).ticks()


def test_a_gain_without_noise_floor_is_drawn() -> None:
    assert "noise floor" not in gain_chart(0.1, 0.05, 0.15, None)


def test_an_undecided_candidate_is_no_winner() -> None:
    result = study_result()
    undecided = replace(result, verdict=replace(result.verdict, kind=VerdictKind.INCONCLUSIVE))
    page = render_html(undecided)
    assert "The candidate (unproven: keep what you have)" in page
    assert "UNPROVEN| " in page
    assert ">winner<" not in page
    assert "Run this" not in page
    assert "Keep this" in render_html(replace(undecided, winner=result.baseline))


def test_nothing_measured_says_why_once() -> None:
    result = unmeasured_result()
    page = render_html(replace(result, verdict=replace(result.verdict, reason="nothing could be measured: disk full")))
    assert "Nothing could be measured: disk full." in page
    assert "Nothing measured keeps" not in page
