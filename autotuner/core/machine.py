"""The decision core: events in, events and commands out.

``apply`` folds one event into the state; ``decide`` lets the policy add events of its own (a trial created, leased,
refused); ``commands`` names the effects that are outstanding.  ``handle`` does all three.  The journal holds every
event, decisions included, so that folding it never depends on how the policy would decide today.

No clock, no randomness, no I/O: time and identifiers are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotuner.core import events as ev
from autotuner.core import lifecycle, objective, outcomes, policy
from autotuner.core.commands import Command, Propose, Publish, Tell
from autotuner.core.invariants import check_trial
from autotuner.core.lifecycle import StudyEvent, StudyState, TrialEvent, TrialState
from autotuner.core.results import StudyResult
from autotuner.core.state import Heat, Study, Trial, Worker
from autotuner.core.trial import Assignment, Outcome, OutcomeClass, TrialKind
from autotuner.core.verdict import conclude
from autotuner.errors import InternalError, StaleLease

__all__ = ["Desired", "Machine"]

Desired = tuple[Assignment | None, tuple[tuple[str, int, int], ...]]
"""What a worker should hold, and the (study, trial, attempt) that it should drop."""


class Machine:
    """The controller's whole state and every decision about it."""

    def __init__(self, *, lease_seconds: float = 600.0) -> None:
        self.epoch = 0
        self.lease_seconds = lease_seconds
        self.studies: dict[str, Study] = {}
        self.workers: dict[str, Worker] = {}
        self._contact: dict[str, float] = {}
        self._draining: set[str] = set()
        self._appliers: dict[type, Callable[[ev.Event, float], None]] = {
            ev.ControllerStarted: self._controller_started,
            ev.StudySubmitted: self._study_submitted,
            ev.StudyResumed: self._study_resumed,
            ev.WorkerReady: self._worker_ready,
            ev.WorkerLost: self._worker_lost,
            ev.TrialCreated: self._trial_created,
            ev.RaceBegan: self._race_began,
            ev.PointProposed: self._point_proposed,
            ev.PointRefused: self._point_refused,
            ev.NothingProposed: self._nothing_proposed,
            ev.TrialLeased: self._trial_leased,
            ev.TrialCompleted: self._trial_completed,
            ev.TrialTold: self._trial_told,
            ev.LeaseExpired: self._lease_expired,
            ev.StopRequested: self._stop_requested,
            ev.StudyFinished: self._study_finished,
            ev.StudyEnded: self._study_ended,
        }

    # --- the three steps -------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event | None, now: float) -> tuple[list[ev.Event], list[Command]]:
        """Fold *event* (``None``: only time passed) and return (events to journal, outstanding commands).

        Raises ``IllegalTransition`` or ``StaleLease`` and changes nothing when *event* is not allowed.
        """
        recorded: list[ev.Event] = []
        if event is not None:
            self.apply(event, now)
            recorded.append(event)
        while decisions := self._decide(now):
            for decision in decisions:
                self.apply(decision, now)
                recorded.append(decision)
        return recorded, self.commands()

    def apply(self, event: ev.Event, now: float) -> None:
        """Fold one event that happened at *now* (UTC seconds)."""
        if not isinstance(event, ev.ControllerStarted):
            for study in self.studies.values():
                self._spend(study, now)
        self._appliers[type(event)](event, now)

    def _decide(self, now: float) -> list[ev.Event]:
        """Return the policy's next decisions; the caller applies them and asks again until there are none."""
        for study in self.studies.values():
            found = self._expired(study, now) or self._stop(study, now) or self._refusals(study)
            if found:
                return found
        for worker in self.workers.values():
            if worker.alive and worker.worker_id not in self._draining and self._lease_of(worker.worker_id) is None:
                decision = self._next_for(worker, now)
                if decision is not None:
                    return [decision]
        return self._finished(now)

    def commands(self) -> list[Command]:
        """Return every effect that is outstanding."""
        found: list[Command] = []
        for study in self.studies.values():
            if study.state is StudyState.ENDED:
                continue
            found.extend(c for trial in study.trials.values() for c in self._trial_commands(study, trial))
            if study.state is StudyState.PUBLISHING:
                found.append(Publish(study_id=study.study_id))
        return found

    # --- what workers and the loop ask -------------------------------------------------------------------------------

    def contact(self, worker_id: str, now: float, *, draining: bool = False) -> None:
        """Note that a worker was heard of; not an event, because it changes no decision until it stops."""
        self._contact[worker_id] = now
        (self._draining.add if draining else self._draining.discard)(worker_id)

    def desired(self, worker_id: str, held: tuple[tuple[str, int, int], ...]) -> Desired:
        """Return the assignment that *worker_id* should work on and what it holds but should drop."""
        trial = self._lease_of(worker_id)
        wanted = (trial.study_id, trial.trial_id, trial.attempt) if trial is not None else None
        study = self.studies[trial.study_id] if trial is not None else None
        if study is not None and study.state is not StudyState.RUNNING:
            return None, held
        cancel = tuple(item for item in held if item != wanted)
        return (self.assignment(trial) if trial is not None else None), cancel

    def assignment(self, trial: Trial) -> Assignment:
        """Return the assignment of a leased trial."""
        spec = self.studies[trial.study_id].spec
        config, launch = dict(trial.config or {}), dict(trial.launch_config or trial.config or {})
        hot = {k: v for k, v in config.items() if k in spec.space.hot_names()} if trial.launch_config else {}
        return Assignment(
            study_id=trial.study_id,
            trial_id=trial.trial_id,
            attempt=trial.attempt,
            epoch=trial.epoch,
            lease_seconds=self.lease_seconds,
            kind=trial.kind,
            model=spec.model,
            config=config,
            launch_config=launch,
            hot=hot,
            workload=spec.workload,
            measure=spec.measure,
            seed=spec.search.seed * 1_000_003 + trial.heat * 1009 + trial.round,
            limits=spec.budget.limits,
        )

    def elapsed(self, study: Study, now: float) -> float:
        """Return the seconds that controllers have worked on *study* so far."""
        running = max(0.0, now - study.last_stamp) if study.state is not StudyState.ENDED else 0.0
        return study.active_seconds + running

    def result(self, study_id: str, now: float) -> StudyResult:
        """Return what is known about a study; partial while it runs."""
        return conclude(self.studies[study_id], now)

    def story(self, study_id: str, trial_id: int | None = None) -> tuple[str, ...]:
        """Return what happened to a trial, or to the study itself, a line per event."""
        study = self.studies[study_id]
        return tuple(study.story if trial_id is None else study.trials[trial_id].story)

    def check(self) -> None:
        """Raise ``InternalError`` when an invariant is broken."""
        held: dict[str, Trial] = {}
        for study in self.studies.values():
            for number, trial in study.trials.items():
                check_trial(study, number, trial, self.epoch)
                if trial.state is TrialState.LEASED:
                    if trial.worker_id in held:
                        raise InternalError(f"worker {trial.worker_id} holds two leases")
                    held[trial.worker_id] = trial
            if study.state is StudyState.ENDED and study.live_trials():
                raise InternalError(f"study {study.study_id} has ended with live trials")

    # --- decisions -----------------------------------------------------------------------------------------------------

    def _expired(self, study: Study, now: float) -> list[ev.Event]:
        return [
            ev.LeaseExpired(study_id=t.study_id, trial_id=t.trial_id, attempt=t.attempt)
            for t in study.trials.values()
            if t.state is TrialState.LEASED and now - self._contact.setdefault(t.worker_id, now) > self.lease_seconds
        ]

    def _stop(self, study: Study, now: float) -> list[ev.Event]:
        if study.state is not StudyState.RUNNING:
            return []
        effort = study.spec.effort
        reason = policy.hopeless(study)
        if effort.wall_seconds is not None and self.elapsed(study, now) > effort.wall_seconds:
            reason = ev.StopReason.WALL_TIME
        if effort.gpu_hours is not None and study.engine_seconds * study.spec.hardware.count / 3600 > effort.gpu_hours:
            reason = ev.StopReason.GPU_HOURS
        return [ev.StopRequested(study_id=study.study_id, reason=reason)] if reason is not None else []

    def _finished(self, now: float) -> list[ev.Event]:
        """Return the end of the studies for which no free worker finds anything left to do."""
        free = [
            w
            for w in self.workers.values()
            if w.alive and w.worker_id not in self._draining and self._lease_of(w.worker_id) is None
        ]
        return [
            ev.StudyFinished(study_id=s.study_id)
            for s in self.studies.values()
            if s.state is StudyState.RUNNING
            and not s.live_trials()
            and any(policy.phase(s, w, self.elapsed(s, now)) is policy.Phase.DONE for w in free)
        ]

    def _refusals(self, study: Study) -> list[ev.Event]:
        for trial in study.trials.values():
            if trial.state is TrialState.READY and trial.kind is TrialKind.EXPLORE and trial.attempt == 0:
                amounts = policy.preflight(study, trial.config or {})
                if amounts:
                    return [ev.PointRefused(study_id=study.study_id, trial_id=trial.trial_id, amounts=amounts)]
        return []

    def _lease_of(self, worker_id: str) -> Trial | None:
        for study in self.studies.values():
            for trial in study.trials.values():
                if trial.state is TrialState.LEASED and trial.worker_id == worker_id:
                    return trial
        return None

    def _next_for(self, worker: Worker, now: float) -> ev.Event | None:
        running = [s for s in self.studies.values() if s.state is StudyState.RUNNING]
        for study in sorted(running, key=lambda s: (sum(t.live for t in s.trials.values()), s.submitted)):
            for trial in study.trials.values():
                owner = self.workers.get(trial.worker_id)
                mine = trial.worker_id == worker.worker_id or owner is None or not owner.alive
                if trial.state is TrialState.READY and mine:
                    return ev.TrialLeased(
                        study_id=study.study_id,
                        trial_id=trial.trial_id,
                        worker_id=worker.worker_id,
                        attempt=trial.attempt + 1,
                        epoch=self.epoch,
                    )
            if any(t.state is TrialState.PROPOSING and t.worker_id == worker.worker_id for t in study.trials.values()):
                continue
            step = policy.next_step(study, worker, len(study.trials) + 1, self.elapsed(study, now))
            if step is not None:
                return step
        return None

    def _trial_commands(self, study: Study, trial: Trial) -> list[Command]:
        if trial.state is TrialState.PROPOSING and study.state is StudyState.RUNNING:
            return [Propose(study_id=trial.study_id, trial_id=trial.trial_id, fixed=trial.fixed, ceiling=trial.ceiling)]
        if trial.told or trial.point is None or not lifecycle.is_final(trial.state):
            return []
        if trial.state is TrialState.ABANDONED:
            return []
        treatment = outcomes.TREATMENT[trial.outcome.outcome] if trial.outcome is not None else None
        amounts = trial.amounts
        if trial.state is TrialState.FAILED and treatment is not None and trial.outcome is not None:
            if not treatment.blames_config:
                return []  # nothing is known about the point
            amounts = ((trial.outcome.outcome.value, treatment.amount),)
        return [
            Tell(
                study_id=trial.study_id,
                trial_id=trial.trial_id,
                config=dict(trial.point),
                value=trial.value,
                constraints=amounts,
                outcome=trial.outcome,
            )
        ]

    # --- folding ---------------------------------------------------------------------------------------------------------

    def _trial(self, study_id: str, trial_id: int) -> Trial:
        study = self.studies.get(study_id)
        trial = study.trials.get(trial_id) if study is not None else None
        if trial is None:
            raise StaleLease(f"trial {trial_id} of study {study_id} is unknown here; drop it")
        return trial

    def _move(self, trial: Trial, event: TrialEvent, now: float, text: str) -> None:
        what = f"trial {trial.trial_id}"
        trial.state = lifecycle.advance(lifecycle.TRIAL, trial.state, event, what=what, story=tuple(trial.story))
        trial.story.append(f"{now:.3f} {text} -> {trial.state.value}")

    def _move_study(self, study: Study, event: StudyEvent, now: float, text: str) -> None:
        what = f"study {study.study_id}"
        study.state = lifecycle.advance(lifecycle.STUDY, study.state, event, what=what, story=tuple(study.story))
        study.story.append(f"{now:.3f} {text} -> {study.state.value}")

    def _spend(self, study: Study, now: float) -> None:
        """Count the time since the last event as worked, while the study has not ended."""
        if study.state is not StudyState.ENDED:
            study.active_seconds += max(0.0, now - study.last_stamp)
        study.last_stamp = now

    def _controller_started(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.ControllerStarted)
        if event.epoch <= self.epoch:
            raise InternalError(f"epoch {event.epoch} does not follow {self.epoch}")
        self.epoch = event.epoch
        self._contact = dict.fromkeys(self.workers, now)
        for study in self.studies.values():
            study.last_stamp = now

    def _study_submitted(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.StudySubmitted)
        if event.study_id in self.studies:
            raise InternalError(f"study {event.study_id} was submitted twice")
        study = Study(study_id=event.study_id, spec=event.spec, submitted=now, last_stamp=now)
        study.story.append(f"{now:.3f} submitted")
        self.studies[event.study_id] = study

    def _study_resumed(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.StudyResumed)
        study = self.studies[event.study_id]
        self._move_study(study, StudyEvent.RESUMED, now, "resumed")
        study.resume(event.effort, now)

    def _worker_ready(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.WorkerReady)
        self.workers[event.worker_id] = Worker(
            worker_id=event.worker_id,
            instance_id=event.instance_id,
            hot_capable=event.hot_capable,
            resident_engines=event.resident_engines,
        )
        self._contact[event.worker_id] = now
        trial = self._lease_of(event.worker_id)
        if trial is not None and (trial.study_id, trial.trial_id, trial.attempt) not in event.held:
            self._give_back(trial, now, "its worker began a new life without it")

    def _worker_lost(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.WorkerLost)
        if event.worker_id in self.workers:
            self.workers[event.worker_id].alive = False
        trial = self._lease_of(event.worker_id)
        if trial is not None:
            self._give_back(trial, now, "its worker said goodbye")

    def _give_back(self, trial: Trial, now: float, why: str) -> None:
        study = self.studies[trial.study_id]
        event = TrialEvent.RETURNED if study.state is StudyState.RUNNING else TrialEvent.DROPPED
        self._move(trial, event, now, f"attempt {trial.attempt}: {why}")
        self._drained(study, now)

    def _trial_created(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.TrialCreated)
        study = self.studies[event.study_id]
        trial = Trial(
            study_id=event.study_id,
            trial_id=event.trial_id,
            kind=event.kind,
            group=event.group,
            worker_id=event.worker_id,
            hot=event.hot,
            fixed=dict(event.fixed),
            ceiling=dict(event.ceiling),
            source=event.source,
            state=TrialState.PROPOSING if event.config is None else TrialState.READY,
            config=dict(event.config) if event.config is not None else None,
            heat=event.heat,
            round=event.round,
        )
        if event.kind is TrialKind.BASELINE and not study.of_kind(TrialKind.BASELINE):
            trial.point = policy.baseline_point(study)
        trial.story.append(f"{now:.3f} created ({event.kind.value}) -> {trial.state.value}")
        study.trials[event.trial_id] = trial

    def _race_began(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.RaceBegan)
        study = self.studies[event.study_id]
        study.heats.append(Heat(number=event.heat, members=tuple(dict(member) for member in event.members)))
        study.story.append(f"{now:.3f} heat {event.heat} of the race begins with {len(event.members)} members")

    def _point_proposed(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.PointProposed)
        trial, study = self._trial(event.study_id, event.trial_id), self.studies[event.study_id]
        if trial.state is not TrialState.PROPOSING:
            return  # answered twice, or dropped in the meantime
        self._move(trial, TrialEvent.PROPOSED, now, f"proposed by {event.source}")
        trial.point, trial.source = dict(event.config), event.source
        trial.config = study.spec.space.full(event.config)
        first = study.trials[trial.group]
        if trial.hot and first is trial:
            raised = policy.ceiling_of(study.spec.space, trial.config)
            trial.launch_config = {**trial.config, **raised} if raised else None
        elif trial.hot:
            trial.launch_config = first.launch_config

    def _point_refused(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.PointRefused)
        trial = self._trial(event.study_id, event.trial_id)
        reasons = "; ".join(name for name, _ in event.amounts)
        self._move(trial, TrialEvent.REFUSED, now, f"refused before any launch: {reasons}")
        trial.amounts = tuple(event.amounts)

    def _nothing_proposed(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.NothingProposed)
        trial, study = self._trial(event.study_id, event.trial_id), self.studies[event.study_id]
        if trial.state is not TrialState.PROPOSING:
            return
        self._move(trial, TrialEvent.EXHAUSTED, now, "the sampler has no further point")
        if trial.fixed:
            study.trials[trial.group].hot = False  # this launch has no new hot point left
        else:
            study.exhausted = True

    def _trial_leased(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.TrialLeased)
        trial = self._trial(event.study_id, event.trial_id)
        self._move(trial, TrialEvent.LEASED, now, f"attempt {event.attempt} leased to {event.worker_id}")
        trial.worker_id, trial.attempt, trial.epoch = event.worker_id, event.attempt, event.epoch
        self._contact[event.worker_id] = now

    def is_replay(self, outcome: Outcome) -> bool:
        """Return whether exactly this outcome was accepted before."""
        return self._trial(outcome.study_id, outcome.trial_id).outcome == outcome

    def _trial_completed(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.TrialCompleted)
        outcome = event.outcome
        trial, study = self._trial(outcome.study_id, outcome.trial_id), self.studies[outcome.study_id]
        current = (trial.attempt, trial.epoch)
        if trial.state is not TrialState.LEASED or (outcome.attempt, outcome.epoch) != current:
            raise StaleLease(
                f"attempt {outcome.attempt} (epoch {outcome.epoch}) of trial {trial.trial_id} is not the current one: "
                f"it is {trial.state.value}, attempt {current[0]} (epoch {current[1]})"
            )
        study.account(outcome)
        self._settle(study, trial, outcome, now)
        self._drained(study, now)

    def _settle(self, study: Study, trial: Trial, outcome: Outcome, now: float) -> None:
        """Decide what an attempt's outcome means for its trial."""
        kind, treatment = outcome.outcome, outcomes.TREATMENT[outcome.outcome]
        text = f"attempt {outcome.attempt}: {kind.value}" + (f": {outcome.message}" if outcome.message else "")
        if kind is OutcomeClass.COMPLETE and outcome.measurement is not None:
            self._move(trial, TrialEvent.MEASURED, now, text)
            trial.outcome = outcome
            trial.value = objective.objective_value(outcome.measurement, study.spec.objective)
            trial.amounts = objective.constraints(outcome.measurement, study.spec.budget)
            return
        trial.outcome = outcome
        if study.state is not StudyState.RUNNING or kind is OutcomeClass.CANCELLED:
            self._move(trial, TrialEvent.DROPPED, now, text)
            return
        trial.faults += 1 if treatment.counts_as_fault else 0
        start_oom = kind is OutcomeClass.OOM_AT_START and trial.launch_config not in (None, trial.config)
        if start_oom:
            trial.launch_config = None  # the launch was larger than the point: give the point one of its own
            if study.trials[trial.group] is trial:
                trial.hot = False
        if (treatment.retry or start_oom) and trial.faults < study.spec.search.max_attempts:
            self._move(trial, TrialEvent.RETURNED, now, text)
        else:
            self._move(trial, TrialEvent.FAILED, now, text)

    def _trial_told(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.TrialTold)
        self._trial(event.study_id, event.trial_id).told = True

    def _lease_expired(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.LeaseExpired)
        trial = self._trial(event.study_id, event.trial_id)
        if trial.state is TrialState.LEASED and trial.attempt == event.attempt:
            worker = self.workers.get(trial.worker_id)
            if worker is not None:
                self.workers[trial.worker_id] = replace(worker, alive=False)
            self._give_back(trial, now, f"no contact with {trial.worker_id} for {self.lease_seconds:g} s")

    def _stop_requested(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.StopRequested)
        study = self.studies[event.study_id]
        self._move_study(study, StudyEvent.STOPPED, now, f"stop: {event.reason.value}")
        study.stop_reason = study.stop_reason or event.reason.value
        for trial in study.live_trials():
            if trial.state is not TrialState.LEASED:
                self._move(trial, TrialEvent.DROPPED, now, "the study stops")
        self._drained(study, now)

    def _drained(self, study: Study, now: float) -> None:
        """Move a stopping study on when nothing of it is in a worker's hands any more."""
        if study.state is StudyState.STOPPING and not study.live_trials():
            self._move_study(study, StudyEvent.DRAINED, now, "nothing is running any more")

    def _study_finished(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.StudyFinished)
        study = self.studies[event.study_id]
        self._move_study(study, StudyEvent.DRAINED, now, "the plan is carried out")
        if not any(trial.state is TrialState.MEASURED for trial in study.trials.values()):
            study.stop_reason = ev.StopReason.NOTHING_MEASURED.value

    def _study_ended(self, event: ev.Event, now: float) -> None:
        assert isinstance(event, ev.StudyEnded)
        if self.studies[event.study_id].state is not StudyState.PUBLISHING:
            return  # it was resumed in the meantime
        self._move_study(self.studies[event.study_id], StudyEvent.PUBLISHED, now, "published")
