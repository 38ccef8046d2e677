"""A world for the decision core: a journal in memory, a sampler of seeded random points and workers on a surface.

Time only passes when a test says so.  ``restart`` throws the machine away and folds the journal into a new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from autotuner.core import events as ev
from autotuner.core.commands import Command, Propose, Publish, Tell
from autotuner.core.machine import Machine
from autotuner.core.results import StudyResult
from autotuner.core.space import ParameterKind, Value
from autotuner.core.study import StudySpec
from autotuner.core.trial import Assignment, Outcome
from tests.fakes import studies

__all__ = ["World"]

Answer = Callable[[Assignment], Outcome]


def on_surface(given: Assignment) -> Outcome:
    """Answer an assignment by the known surface, without noise."""
    speed, ttft = studies.surface(given.config)
    return studies.complete(given, speed, ttft)


class World:
    """Drives one machine."""

    def __init__(self, answer: Answer = on_surface, seed: int = 0) -> None:
        self.machine = Machine(lease_seconds=600.0)
        self.answer = answer
        self.now = 1000.0
        self.journal: list[tuple[float, ev.Event]] = []
        self.tells: dict[tuple[str, int], Tell] = {}
        self.results: dict[str, StudyResult] = {}
        self._random = random.Random(seed)
        self.post(ev.ControllerStarted(epoch=1))

    def post(self, event: ev.Event | None) -> list[Command]:
        """Handle one event, journal it and check the invariants."""
        recorded, commands = self.machine.handle(event, self.now)
        self.journal.extend((self.now, entry) for entry in recorded)
        self.machine.check()
        return commands

    def submit(self, spec: StudySpec, study_id: str = "s") -> str:
        """Submit a study."""
        self.post(ev.StudySubmitted(study_id=study_id, spec=spec))
        return study_id

    def worker(self, worker_id: str = "w", *, hot: bool = True, held: tuple[tuple[str, int, int], ...] = ()) -> None:
        """Let a worker introduce itself."""
        self.post(ev.WorkerReady(worker_id=worker_id, instance_id="i", hot_capable=hot, resident_engines=2, held=held))

    def effects(self) -> None:
        """Carry out every outstanding command until none is left."""
        while commands := self.machine.commands():
            for command in commands:
                self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Propose():
                self.post(self._propose(command))
            case Tell():
                key = (command.study_id, command.trial_id)
                assert key not in self.tells or self.tells[key] == command, "told twice, differently"
                self.tells[key] = command
                self.post(ev.TrialTold(study_id=command.study_id, trial_id=command.trial_id))
            case Publish():
                self.results[command.study_id] = self.machine.result(command.study_id, self.now)
                self.post(ev.StudyEnded(study_id=command.study_id))

    def _propose(self, command: Propose) -> ev.PointProposed:
        space = self.machine.studies[command.study_id].spec.space
        point: dict[str, Value] = {}
        for parameter in space:
            if parameter.kind is ParameterKind.CHOICE:
                point[parameter.name] = self._random.choice(parameter.choices)
            else:
                assert parameter.low is not None and parameter.high is not None
                point[parameter.name] = parameter.clip(self._random.uniform(parameter.low, parameter.high))
        point.update(command.fixed)
        return ev.PointProposed(study_id=command.study_id, trial_id=command.trial_id, config=point, source="random")

    def assignment(self, worker_id: str = "w") -> Assignment | None:
        """Return what a worker should work on."""
        return self.machine.desired(worker_id, ())[0]

    def step(self, worker_id: str = "w", seconds: float = 10.0) -> Assignment | None:
        """Let a worker do the one trial that it has, and return it."""
        self.effects()
        given = self.assignment(worker_id)
        if given is not None:
            self.now += seconds
            self.machine.contact(worker_id, self.now)
            self.post(ev.TrialCompleted(outcome=self.answer(given)))
        self.effects()
        return given

    def run(self, worker_id: str = "w", limit: int = 500) -> None:
        """Let a worker do everything that there is."""
        for _ in range(limit):
            if self.step(worker_id) is None:
                self.post(None)
                if self.assignment(worker_id) is None and not self.machine.commands():
                    return
        raise AssertionError("the study does not end")

    def restart(self) -> None:
        """Lose the process: fold the journal into a new machine and begin a new epoch."""
        epoch = self.machine.epoch + 1
        before = self.machine
        self.machine = Machine(lease_seconds=600.0)
        for stamp, event in self.journal:
            self.machine.apply(event, stamp)
        assert self.machine.studies == before.studies, "folding the journal gives another state"
        self.post(ev.ControllerStarted(epoch=epoch))
