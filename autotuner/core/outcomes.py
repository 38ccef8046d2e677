"""What each outcome class means for a study: one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotuner.core.lifecycle import TrialState
from autotuner.core.state import Trial
from autotuner.core.trial import OutcomeClass

__all__ = ["CRASH_AMOUNT", "TREATMENT", "Treatment", "says_nothing"]

CRASH_AMOUNT = 3.0
"""Constraint amount of a point that never gave a number: larger than any near miss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What an outcome class means."""

    blames_config: bool
    """The sampler is told, as a constraint with ``amount``."""
    retry: bool
    """Another attempt may end better."""
    amount: float = 0.0
    counts_as_fault: bool = True
    """The attempt counts against the study's ``max_attempts``."""


TREATMENT: Mapping[OutcomeClass, Treatment] = {
    OutcomeClass.COMPLETE: Treatment(blames_config=False, retry=False),
    OutcomeClass.INFEASIBLE_CONFIG: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.OOM_AT_START: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.OOM_UNDER_LOAD: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.CRASHED: Treatment(blames_config=True, retry=True, amount=CRASH_AMOUNT),
    OutcomeClass.HUNG: Treatment(blames_config=True, retry=True, amount=CRASH_AMOUNT),
    OutcomeClass.TIMED_OUT: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.GARBAGE: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.VOID: Treatment(blames_config=False, retry=True),
    OutcomeClass.CANCELLED: Treatment(blames_config=False, retry=False),
    OutcomeClass.PREEMPTED: Treatment(blames_config=False, retry=True, counts_as_fault=False),
    OutcomeClass.INFRASTRUCTURE: Treatment(blames_config=False, retry=True),
}


def says_nothing(trial: Trial) -> bool:
    """Return whether a trial ended without telling anything about its configuration."""
    if trial.state is not TrialState.FAILED or trial.outcome is None:
        return False
    return not TREATMENT[trial.outcome.outcome].blames_config
