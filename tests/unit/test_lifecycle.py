"""The transition tables, and the page that is drawn from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotuner.core.lifecycle import STUDY, TRIAL, StudyEvent, StudyState, TrialEvent, TrialState, advance
from autotuner.errors import IllegalTransition

SCRIPT = Path(__file__).parents[2] / "scripts" / "lifecycles.py"


def test_the_drawn_page_is_current() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("state", TrialState)
@pytest.mark.parametrize("event", TrialEvent)
def test_a_pair_outside_the_table_is_refused_with_the_story(state: TrialState, event: TrialEvent) -> None:
    if (state, event) in TRIAL:
        assert advance(TRIAL, state, event, what="trial 1") is TRIAL[state, event]
        return
    with pytest.raises(IllegalTransition, match=f"trial 1 in state {state} does not allow {event}") as caught:
        advance(TRIAL, state, event, what="trial 1", story=("it began",))
    assert caught.value.story == ("it began",)


def test_every_state_can_be_reached_and_every_event_moves_something() -> None:
    assert set(TRIAL.values()) | {TrialState.PROPOSING} == set(TrialState)
    assert {event for _, event in TRIAL} == set(TrialEvent)
    assert set(STUDY.values()) | {StudyState.RUNNING} == set(StudyState)
    assert {event for _, event in STUDY} == set(StudyEvent)
