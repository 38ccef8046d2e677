"""What a study found, as values: the machine builds them, ``autotuner.report`` turns them into files and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotuner.core.space import Config
from autotuner.core.study import StudySpec
from autotuner.core.trial import Interval, Outcome, TrialKind

__all__ = ["StudyResult", "Summary", "TrialRecord", "Verdict", "VerdictKind"]


class VerdictKind(StrEnum):
    """The answer to "should I change what I run?"."""

    BETTER = "better"
    """The winner beats the baseline by more than the noise, with confidence."""
    NO_DIFFERENCE = "no_difference"
    """Keep what you have: nothing found is better by a meaningful amount."""
    INFEASIBLE = "infeasible"
    """Nothing measured keeps the latency budget."""
    INCONCLUSIVE = "inconclusive"
    """The budget ended before the question was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial with everything that was decided about it."""

    trial_id: int
    kind: TrialKind
    state: str
    """The life-cycle state's name."""
    source: str
    """``baseline``, ``seed:…``, a sampler's name or ``race``."""
    config: Config
    """Full flags of the point."""
    attempts: int
    outcome: Outcome | None
    value: float | None
    """The objective; ``None`` when nothing was measured."""
    feasible: bool | None
    """``None`` when nothing was measured."""
    constraints: tuple[tuple[str, float], ...] = ()
    """Name and relative excess of each constraint; at most 0 is kept."""
    launch: int | None = None
    """Number of the engine launch, from 1 in order of appearance."""
    refused: str = ""
    """Why the point was refused before any launch; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A configuration over all its measurements that count for the verdict."""

    config: Config
    throughput: Interval
    """The objective's mean with its interval."""
    latency: Mapping[str, Interval]
    """``ttft_p50`` … with the widest bounds of the measurements."""
    trial_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision with its numbers; gains are relative (0.12 = 12 % more)."""

    kind: VerdictKind
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    confidence: float
    binding: tuple[str, ...]
    """The limits or rules that bind: for INFEASIBLE what no point kept, otherwise what the winner is closest to."""
    reason: str
    """One sentence for a person."""
    pairs: int = 0
    """Fresh interleaved pairs behind the gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """Everything that the reports show."""

    study_id: str
    spec: StudySpec
    trials: tuple[TrialRecord, ...]
    baseline: Summary | None
    winner: Summary | None
    """The configuration to run; for INFEASIBLE the point that came closest, for NO_DIFFERENCE the baseline."""
    verdict: Verdict
    noise_floor: float | None
    """Relative half width within which the baseline differs from itself; ``None`` when it was measured once."""
    launches: int
    points: int
    """Measured points (outcome COMPLETE)."""
    wall_seconds: float
    engine_seconds: float
    started_utc: float
    ended_utc: float
    complete: bool
    """The study used its budget; otherwise these are partial results and ``stopped`` says why."""
    stopped: str = ""
    notes: tuple[str, ...] = field(default=())
    """Findings that the user should know: ignored flags, unsteady warm-ups, void segments."""
