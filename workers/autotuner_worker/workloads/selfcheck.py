"""The load generator's judgement: of itself (void?) and of what the engine did to it (a fault?).  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autotuner.core.trial import LoadCheck, Measurement, OutcomeClass
from autotuner.observe.evaluate import measured_rows
from autotuner.observe.latency import quantile_interval
from autotuner.observe.records import Records, Status
from autotuner_worker.ports import EngineFault
from autotuner_worker.workloads.timeline import Timeline

__all__ = ["Thresholds", "check_load", "live_fault", "measured_fault", "void_fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Beyond which the load generator does not trust itself, or gives an engine up."""

    late_floor: float = 0.005
    """Seconds that the 99th percentile of late sends may always have."""
    late_share: float = 0.05
    """Share of the median TTFT that it may have when that is more; in a closed loop the share of the clients' time that
    the generator itself may take between two requests."""
    cpu_share: float = 0.9
    """CPU seconds per second of the busiest process."""
    stall: float = 0.25
    """Seconds between two beats of an event loop (50 ms apart when all is well)."""
    least_ended: int = 20
    """Requests that must have ended before the engine's answers are judged."""
    least_failing: int = 3
    """Requests that must have failed when none ever ended well."""
    garbage_share: float = 0.5
    """Share of answers that are not what was asked for."""
    failing_seconds: float = 2.0
    """For so long all requests must have failed before the engine is given up."""


def check_load(
    records: Records, *, closed: bool, cpu_share: float, stall: float, processes: int, thresholds: Thresholds
) -> LoadCheck:
    """Return the check of a whole segment; the bounds of the measured part are those in *records*."""
    rows = measured_rows(records, records.meta.warmup_end, records.meta.end_time)
    if not rows.any():
        return LoadCheck(cpu_share=cpu_share, longest_stall=stall, processes=processes)
    late = records.sent[rows] - records.ready[rows]
    late_p99 = float(np.quantile(late, 0.99))
    reasons: list[str] = []
    ok = rows & (records.status == Status.OK)
    if ok.any():
        if closed:
            share = float(late.mean() / (records.ended - records.ready)[ok].mean())
            if share > thresholds.late_share:
                reasons.append(f"the load generator took {share:.0%} of its clients' time for itself")
        else:
            median = float(np.median((records.first - records.sent)[ok]))
            allowed = max(thresholds.late_floor, thresholds.late_share * median)
            # In a small sample one late request is beyond the 99th percentile of nothing: be sure that it is the rule.
            if quantile_interval(np.sort(late), 99.0).low > allowed:
                reasons.append(
                    f"1 % of the requests were sent {late_p99 * 1e3:.1f} ms late or more (allowed {allowed * 1e3:.1f} ms)"
                )
    if cpu_share > thresholds.cpu_share:
        reasons.append(f"a load generator process used {cpu_share:.0%} of a core (allowed {thresholds.cpu_share:.0%})")
    if stall > thresholds.stall:
        reasons.append(
            f"the load generator stood still for {stall * 1e3:.0f} ms (allowed {thresholds.stall * 1e3:.0f} ms)"
        )
    return LoadCheck(
        late_p99=late_p99, cpu_share=cpu_share, longest_stall=stall, processes=processes, void_reasons=tuple(reasons)
    )


def void_fault(check: LoadCheck) -> EngineFault:
    """Return the fault of a segment that the generator does not trust."""
    return EngineFault(
        outcome=OutcomeClass.VOID,
        message=f"the load generator could not keep its schedule: {'; '.join(check.void_reasons)}",
        evidence=(
            f"late_p99={check.late_p99:.6f} s",
            f"cpu_share={check.cpu_share:.3f}",
            f"longest_stall={check.longest_stall:.3f} s",
            f"processes={check.processes}",
        ),
    )


def live_fault(timeline: Timeline, now: float, stall_timeout: float, thresholds: Thresholds) -> EngineFault | None:
    """Return why the load cannot go on, or ``None``."""
    waiting = timeline.waiting_since()
    if waiting > 0.0 and now - waiting > stall_timeout:
        return EngineFault(
            outcome=OutcomeClass.HUNG,
            message=f"no token for {now - waiting:.0f} s with {timeline.total('running'):.0f} requests in flight",
            evidence=(f"{timeline.total('chunks'):.0f} chunks received before", f"stall_timeout={stall_timeout:g} s"),
        )
    ended, garbage = timeline.total("ended"), timeline.total("garbage")
    if ended >= thresholds.least_ended and garbage > thresholds.garbage_share * ended:
        return EngineFault(
            outcome=OutcomeClass.GARBAGE,
            message=f"{garbage:.0f} of {ended:.0f} answers are not what was asked for",
            evidence=timeline.messages(),
        )
    failing, since = timeline.total("failing"), timeline.earliest("failing_since")
    never_well = timeline.total("ok") == 0 and timeline.total("failed") == ended
    rule = failing >= thresholds.least_ended or (never_well and failing >= thresholds.least_failing)
    if since > 0.0 and now - since > thresholds.failing_seconds and rule:
        refused = timeline.total("refused")
        outcome = OutcomeClass.GARBAGE if refused > 0.5 * timeline.total("failed") else OutcomeClass.CRASHED
        return EngineFault(
            outcome=outcome,
            message=f"the last {failing:.0f} requests all failed over {now - since:.1f} s",
            evidence=(
                *timeline.messages(),
                f"{timeline.total('ok'):.0f} requests had ended well",
                f"{refused:.0f} failed with HTTP 4xx",
            ),
        )
    return None


def measured_fault(measurement: Measurement, records: Records, messages: Mapping[str, int]) -> EngineFault | None:
    """Return why a complete segment holds no measurement of the engine, or ``None``."""
    evidence = tuple(f"{count}x {text}" for text, count in sorted(messages.items(), key=lambda item: -item[1])[:5])
    if measurement.requests == 0:
        return EngineFault(
            outcome=OutcomeClass.VOID,
            message="no request was sent in the measured part: its duration is too short for this load",
            evidence=evidence,
        )
    rows = measured_rows(records, measurement.warmup_end, measurement.end_time)
    garbage = int((rows & ((records.status == Status.GARBAGE) | (records.status == Status.EMPTY))).sum())
    if garbage > 0.5 * measurement.requests:
        return EngineFault(
            outcome=OutcomeClass.GARBAGE,
            message=f"{garbage} of {measurement.requests} answers are not what was asked for",
            evidence=evidence,
        )
    if measurement.ok == 0:
        refused = int((rows & (records.http_status >= 400) & (records.http_status < 500)).sum())
        outcome = OutcomeClass.GARBAGE if 2 * refused > measurement.requests else OutcomeClass.CRASHED
        return EngineFault(
            outcome=outcome, message=f"none of {measurement.requests} requests ended well", evidence=evidence
        )
    return None
