"""Every error that this project raises, as one tree split by what the caller must do.

::

    AutotunerError
    ├── InputError            the user changes a file, a flag or an argument        exit 2
    │   ├── StudyFileError        a study file has problems (all of them listed)
    │   └── SpaceError            a flag or value that the installed engine refuses
    ├── EnvironmentFault      the operator mends the machine (disk, port, memory)   exit 3
    │   ├── EngineUnavailable     no engine can be found, asked or started
    │   └── StorageFault          the journal or the study database cannot be used
    ├── Refused               the peer or the state does not allow it               exit 4
    │   ├── IllegalTransition     an event that the life cycle does not allow
    │   ├── StaleLease            a result or renewal that a newer attempt replaced
    │   ├── SessionUnknown        the controller does not know the worker's session: register again
    │   └── ProtocolMismatch      the two sides share no protocol version
    ├── Interrupted           the user stopped the run; partial results are kept    exit 130
    └── InternalError         a defect of this program: report it                  exit 70

The exit codes are stable: scripts may rely on them.  ``Problem`` is one entry of an input error, so that all
problems of a file are reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "AutotunerError",
    "EngineUnavailable",
    "EnvironmentFault",
    "IllegalTransition",
    "InputError",
    "InternalError",
    "Interrupted",
    "Problem",
    "ProtocolMismatch",
    "Refused",
    "SessionUnknown",
    "SpaceError",
    "StaleLease",
    "StorageFault",
    "StudyFileError",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with the input: where it is, what was found and what to do about it."""

    field: str
    """Dotted path of the field, such as ``latency.limits[0].value``."""
    value: str
    """The offending value as the user wrote it (shortened); empty when the field is missing."""
    message: str
    """What is wrong, in one sentence."""
    remedy: str
    """What the user should write or do instead."""
    line: int | None = None
    """One-based line in the file, when known."""

    def render(self, source: str = "") -> str:
        """Return one line such as ``study.yaml:12: budget.trials = 0: must be positive; give at least 1``."""
        place = f"{source}:{self.line}: " if source and self.line else (f"{source}: " if source else "")
        found = f" = {self.value}" if self.value else ""
        return f"{place}{self.field}{found}: {self.message}; {self.remedy}"


class AutotunerError(Exception):
    """Root of the tree. ``exit_code`` is what a command-line program ends with."""

    exit_code: ClassVar[int] = 70


class InputError(AutotunerError):
    """The user must change what they gave. Carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: list[Problem], source: str = "") -> None:
        self.problems = list(problems)
        self.source = source
        super().__init__("\n".join(problem.render(source) for problem in self.problems))


class StudyFileError(InputError):
    """A study file cannot be read or has problems."""


class SpaceError(InputError):
    """A parameter that the installed engine does not know, or a value that it refuses."""


class EnvironmentFault(AutotunerError):
    """The machine is not in a state to do this: no disk space, port in use, missing program."""

    exit_code = 3


class EngineUnavailable(EnvironmentFault):
    """The engine cannot be found, asked about itself, or started at all."""


class StorageFault(EnvironmentFault):
    """The journal or the study database cannot be read or written."""


class Refused(AutotunerError):
    """The request is understood and not allowed now."""

    exit_code = 4


class IllegalTransition(Refused):
    """An event arrived that the state's transition table does not allow. Nothing was changed."""

    def __init__(self, machine: str, state: str, event: str, story: tuple[str, ...] = ()) -> None:
        self.machine, self.state, self.event, self.story = machine, state, event, story
        tail = "".join(f"\n  {line}" for line in story)
        super().__init__(f"{machine} in state {state} does not allow {event}{tail}")


class StaleLease(Refused):
    """The attempt or fencing epoch is not the current one; the sender must drop its work."""


class SessionUnknown(Refused):
    """The controller has no such session (it was restarted): the worker registers again and loses nothing."""


class ProtocolMismatch(Refused):
    """The two sides have no protocol version in common."""


class Interrupted(AutotunerError):
    """The user stopped the run."""

    exit_code = 130


class InternalError(AutotunerError):
    """An invariant of this program is broken."""
