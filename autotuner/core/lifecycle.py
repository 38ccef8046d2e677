"""Life cycles as transition tables.  A pair that is not in a table is illegal and changes nothing.

The diagrams in the documentation are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from autotuner.errors import IllegalTransition

__all__ = ["STUDY", "TRIAL", "StudyEvent", "StudyState", "TrialEvent", "TrialState", "advance", "is_final"]


class TrialState(StrEnum):
    """Where a trial stands."""

    PROPOSING = "proposing"
    """Waiting for the sampler's point."""
    READY = "ready"
    """Waiting for a worker."""
    LEASED = "leased"
    """In a worker's hands."""
    MEASURED = "measured"
    FAILED = "failed"
    """The configuration does not work, or could not be measured in any attempt."""
    REFUSED = "refused"
    """Found impossible before any launch."""
    ABANDONED = "abandoned"
    """Dropped: the study ended first, or there was no point left to try."""


class TrialEvent(StrEnum):
    """What moves a trial."""

    PROPOSED = "proposed"
    EXHAUSTED = "exhausted"
    REFUSED = "refused"
    LEASED = "leased"
    MEASURED = "measured"
    FAILED = "failed"
    RETURNED = "returned"
    """The attempt ended through no fault of the configuration: try again."""
    DROPPED = "dropped"


class StudyState(StrEnum):
    """Where a study stands."""

    RUNNING = "running"
    STOPPING = "stopping"
    """No new work; what is leased is called back."""
    PUBLISHING = "publishing"
    ENDED = "ended"


class StudyEvent(StrEnum):
    """What moves a study."""

    STOPPED = "stopped"
    DRAINED = "drained"
    """Nothing of it is in a worker's hands, and nothing more will be."""
    PUBLISHED = "published"
    RESUMED = "resumed"


_T, _E = TrialState, TrialEvent
TRIAL: Mapping[tuple[TrialState, TrialEvent], TrialState] = {
    (_T.PROPOSING, _E.PROPOSED): _T.READY,
    (_T.PROPOSING, _E.EXHAUSTED): _T.ABANDONED,
    (_T.PROPOSING, _E.DROPPED): _T.ABANDONED,
    (_T.READY, _E.REFUSED): _T.REFUSED,
    (_T.READY, _E.LEASED): _T.LEASED,
    (_T.READY, _E.DROPPED): _T.ABANDONED,
    (_T.LEASED, _E.MEASURED): _T.MEASURED,
    (_T.LEASED, _E.FAILED): _T.FAILED,
    (_T.LEASED, _E.RETURNED): _T.READY,
    (_T.LEASED, _E.DROPPED): _T.ABANDONED,
}

_S, _V = StudyState, StudyEvent
STUDY: Mapping[tuple[StudyState, StudyEvent], StudyState] = {
    (_S.RUNNING, _V.STOPPED): _S.STOPPING,
    (_S.RUNNING, _V.DRAINED): _S.PUBLISHING,
    (_S.RUNNING, _V.RESUMED): _S.RUNNING,
    (_S.STOPPING, _V.STOPPED): _S.STOPPING,
    (_S.STOPPING, _V.DRAINED): _S.PUBLISHING,
    (_S.STOPPING, _V.RESUMED): _S.RUNNING,
    (_S.PUBLISHING, _V.STOPPED): _S.PUBLISHING,
    (_S.PUBLISHING, _V.PUBLISHED): _S.ENDED,
    (_S.PUBLISHING, _V.RESUMED): _S.RUNNING,
    (_S.ENDED, _V.RESUMED): _S.RUNNING,
}


def is_final(state: TrialState) -> bool:
    """Return whether no event can move a trial on from *state*."""
    return not any(source is state for source, _ in TRIAL)


StateT = TypeVar("StateT", bound=StrEnum)
EventT = TypeVar("EventT", bound=StrEnum)


def advance(
    table: Mapping[tuple[StateT, EventT], StateT],
    state: StateT,
    event: EventT,
    *,
    what: str,
    story: tuple[str, ...] = (),
) -> StateT:
    """Return the next state, or raise ``IllegalTransition`` with the story so far."""
    target = table.get((state, event))
    if target is None:
        raise IllegalTransition(what, state.value, event.value, story)
    return target
