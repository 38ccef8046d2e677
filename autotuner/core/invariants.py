"""What must hold for every trial, whatever happened."""

from __future__ import annotations

from autotuner.core import lifecycle
from autotuner.core.lifecycle import TrialState
from autotuner.core.state import Study, Trial
from autotuner.errors import InternalError

__all__ = ["check_trial"]


def check_trial(study: Study, number: int, trial: Trial, epoch: int) -> None:
    """Raise ``InternalError`` when *trial*, filed under *number*, breaks an invariant."""
    where = f"trial {number} of study {study.study_id}"
    if trial.trial_id != number:
        raise InternalError(f"{where} is filed under another number")
    if trial.state is TrialState.MEASURED and (trial.measurement is None or trial.value is None):
        raise InternalError(f"{where} counts as measured without a measurement")
    if trial.state is not TrialState.MEASURED and trial.value is not None:
        raise InternalError(f"{where} has a value although nothing was measured")
    if trial.told and not lifecycle.is_final(trial.state):
        raise InternalError(f"{where} was told before it ended")
    if trial.epoch > epoch:
        raise InternalError(f"{where} is leased under an epoch that has not begun")
