"""The faults that the simulator can be asked to show, for tests of whoever drives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["FAULTS", "FaultPlan", "parse_faults"]

FAULTS: dict[str, str] = {
    "never_ready": "",
    "exit_at_start": "1",
    "slow_start": "30",
    "print_100mb": "100",
    "garbage": "",
    "empty_answers": "",
    "error_chunk": "",
    "hang_under_load": "8",
    "crash_after_n_requests": "8",
    "ignore_sigterm": "",
    "spawn_orphan": "",
}
"""Name → default argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """The faults of one run."""

    arguments: Mapping[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Return whether the fault *name* was asked for."""
        return name in self.arguments

    def number(self, name: str) -> float | None:
        """Return the fault's argument as a number, ``None`` when it was not asked for."""
        return float(self.arguments[name]) if name in self.arguments else None


def parse_faults(texts: Iterable[str]) -> FaultPlan:
    """Read ``NAME`` or ``NAME=ARG``; raise ``ValueError`` for an unknown name or argument."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, argument = text.strip().partition("=")
        if not name:
            continue
        if name not in FAULTS:
            raise ValueError(f"unknown fault {name!r}: choose from {', '.join(FAULTS)}")
        found[name] = argument or FAULTS[name]
        if FAULTS[name]:
            float(found[name])
    return FaultPlan(arguments=found)
