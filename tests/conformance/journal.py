"""What every Journal adapter must do; run on each by a subclass that says how to open one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import pytest

from autotuner.core.events import ControllerStarted, Event, StudyEnded, StudySubmitted, TrialCompleted
from autotuner.core.space import EngineDescription
from autotuner.core.study import StudySpec
from autotuner.core.trial import Outcome, OutcomeClass
from autotuner.errors import InternalError, StorageFault
from autotuner.ports import Journal

__all__ = ["EVENTS", "DurableJournalConformance", "JournalConformance", "Opener"]

SPEC = StudySpec(
    name="n",
    model="m",
    engine=EngineDescription(kind="simulated", version="1", platform="cpu"),
    baseline={"flag": True, "whole": 1, "real": 1.0, "text": "1"},
)
OUTCOME = Outcome(
    study_id="s", trial_id=1, attempt=1, epoch=1, outcome=OutcomeClass.CRASHED, evidence=("nul \0", "byte \udcff", "ü")
)
EVENTS: tuple[Event, ...] = (
    ControllerStarted(epoch=1),
    StudySubmitted(study_id="s", spec=SPEC),
    TrialCompleted(outcome=OUTCOME),
    StudyEnded(study_id="s"),
)

Opener = Callable[[], Journal]


class JournalConformance(ABC):
    """The suite."""

    @pytest.fixture
    @abstractmethod
    def opener(self) -> Opener:
        """Return a function that opens the same journal each time."""

    @pytest.fixture
    def journal(self, opener: Opener) -> Iterator[Journal]:
        journal = opener()
        yield journal
        journal.close()

    def test_a_new_journal_is_empty(self, journal: Journal) -> None:
        assert list(journal.read()) == []

    def test_events_come_back_equal_numbered_and_stamped(self, journal: Journal) -> None:
        journal.append(EVENTS[:1], 1.5)
        journal.append(EVENTS[1:], 1_700_000_000.123456)
        expected = [(1, 1.5, EVENTS[0])]
        expected += [(seq, 1_700_000_000.123456, event) for seq, event in enumerate(EVENTS[1:], start=2)]
        assert list(journal.read()) == expected

    def test_the_types_of_a_configuration_are_kept(self, journal: Journal) -> None:
        journal.append(EVENTS[1:2], 0)
        [(_, _, event)] = journal.read()
        assert isinstance(event, StudySubmitted)
        assert [type(value) for value in event.spec.baseline.values()] == [bool, int, float, str]

    def test_appending_nothing_changes_nothing(self, journal: Journal) -> None:
        journal.append([], 1.0)
        assert list(journal.read()) == []

    def test_a_batch_with_an_event_that_cannot_be_stored_is_refused_whole(self, journal: Journal) -> None:
        with pytest.raises(InternalError):
            journal.append([EVENTS[0], ControllerStarted(epoch="one")], 1.0)  # type: ignore[arg-type]
        journal.append(EVENTS[:1], 2.0)
        assert list(journal.read()) == [(1, 2.0, EVENTS[0])]

    def test_reading_twice_gives_the_same(self, journal: Journal) -> None:
        journal.append(EVENTS, 1.0)
        assert list(journal.read()) == list(journal.read())

    def test_appending_while_reading_is_allowed(self, journal: Journal) -> None:
        journal.append(EVENTS, 1.0)
        reader = iter(journal.read())
        next(reader)
        journal.append(EVENTS[:1], 2.0)
        assert [seq for seq, _, _ in reader][:3] == [2, 3, 4]

    def test_many_events_keep_their_order(self, journal: Journal) -> None:
        journal.append([ControllerStarted(epoch=epoch) for epoch in range(1, 1201)], 1.0)
        assert [event for _, _, event in journal.read()] == [ControllerStarted(epoch=epoch) for epoch in range(1, 1201)]

    def test_a_closed_journal_refuses_and_closing_twice_is_fine(self, journal: Journal) -> None:
        journal.close()
        journal.close()
        with pytest.raises(StorageFault, match="closed"):
            journal.append(EVENTS, 1.0)
        with pytest.raises(StorageFault, match="closed"):
            list(journal.read())


class DurableJournalConformance(JournalConformance):
    """The suite for adapters that outlive their process."""

    def test_a_reopened_journal_goes_on(self, opener: Opener) -> None:
        first = opener()
        first.append(EVENTS[:2], 1.0)
        first.close()
        second = opener()
        second.append(EVENTS[2:], 2.0)
        assert [(seq, event) for seq, _, event in second.read()] == list(enumerate(EVENTS, start=1))
        second.close()

    def test_two_controllers_cannot_share_it(self, opener: Opener) -> None:
        first = opener()
        with pytest.raises(StorageFault, match="another controller"):
            opener()
        first.append(EVENTS[:1], 1.0)
        first.close()
        opener().close()
