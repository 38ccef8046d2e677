"""The embedded tuner: controller and worker as processes of one command, over the same protocol as the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autotuner.core import events as ev
from autotuner.core.lifecycle import StudyState, TrialState
from autotuner.core.machine import Machine
from autotuner.core.results import StudyResult
from autotuner.core.state import Study
from autotuner.core.study import StudySpec
from autotuner.core.workers import HostReport
from autotuner.daemon import outfolder
from autotuner.daemon.clock import SystemClock
from autotuner.daemon.loop import Controller
from autotuner.daemon.publish import publish
from autotuner.daemon.workerprocess import Lives, WorkerProcess, describe_host, make_small_model, write_worker_config
from autotuner.errors import EnvironmentFault, InputError, Interrupted, Problem
from autotuner.rpc.server import RpcServer
from autotuner.rpc.worker_service import WorkerService
from autotuner.search.optuna_sampler import OptunaSampler
from autotuner.settings.build import BuiltStudy, build_study
from autotuner.settings.loader import load_study
from autotuner.settings.study_file import AUTO, StudyFile
from autotuner.storage.journal_sql import SqlJournal, sqlite_url

__all__ = ["Running", "TuneRequest", "ask_host", "cache_folder", "load_request", "prepare_worker", "tune"]

WORKER_ID = "local"
SIMULATED_MODEL = "simulated-8b"
LEASE_SECONDS = 600.0
STOP_PATIENCE = 5.0
"""Seconds for a worker to answer a stop before it is ended."""
MAX_WORKER_LIVES = 3
"""Deaths of the worker in a row, without any measurement between them, that end the run."""
_LONGEST_PLACE = 70
"""Bytes of a folder's path in which a socket still has room: its whole path may have 107."""
_ENGINE_BYTES = 3 * 1024**3
"""Memory that an engine takes beside weights and KV cache: interpreters, libraries, activations."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """What the user asked for."""

    study: Path
    out: Path
    model: str | None = None
    engine_kind: str | None = None
    engine_command: tuple[str, ...] | None = None
    fresh: bool = False
    """Start anew instead of going on with what *out* holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A look at a running study."""

    controller: Controller
    study_id: str
    now: float

    @property
    def result(self) -> StudyResult:
        """What is known so far."""
        return self.controller.machine.result(self.study_id, self.now)


Notify = Callable[[str], None]
Tick = Callable[[Running], None]


def cache_folder() -> Path:
    """Return where compile caches and engine descriptions are kept; raise ``EnvironmentFault`` without any place."""
    if chosen := os.environ.get("AUTOTUNER_CACHE_DIR"):
        return Path(chosen).absolute()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-autotuner"
    except RuntimeError as error:
        raise EnvironmentFault(
            "this user has no home folder to keep caches in: set AUTOTUNER_CACHE_DIR to a folder that you may write"
        ) from error


def load_request(request: TuneRequest) -> StudyFile:
    """Read the study file and lay the command line's choices over it; raise ``StudyFileError``."""
    study = load_study(request.study)
    engine = study.engine
    if request.engine_kind is not None:
        engine = engine.model_copy(update={"kind": request.engine_kind})
    if request.engine_command is not None:
        engine = engine.model_copy(update={"command": request.engine_command})
    if engine.kind == "vllm" and not engine.command:
        engine = engine.model_copy(update={"command": ("vllm", "serve")})
    model = request.model or study.model
    if model == AUTO and engine.kind == "simulated":
        model = SIMULATED_MODEL
    return study.model_copy(update={"engine": engine, "model": model})


async def _with_model(study: StudyFile, scratch: Path, notify: Notify) -> StudyFile:
    """Return *study* with the small model, which is made once per machine."""
    folder = cache_folder() / "models" / "tiny-llama"
    if not (folder / "config.json").is_file():
        notify(f"no model is named: making a small Llama with random weights in {folder}")
        await make_small_model(prepare_worker(study, scratch, "unix:/none", 1), folder)
    else:
        notify(f"no model is named: using the small Llama with random weights in {folder}")
    return study.model_copy(update={"model": str(folder)})


def prepare_worker(study: StudyFile, folder: Path, controller: str, resident: int, *, out: Path | None = None) -> Path:
    """Write the worker's configuration into *folder*, where it also keeps its state, and return its path.

    Results go to *out*, by default to *folder*.
    """
    path = folder / "worker.json"
    write_worker_config(
        path,
        {
            "worker_id": WORKER_ID,
            "controller": controller,
            "engine_kind": study.engine.kind,
            "engine_command": list(study.engine.command) if study.engine.kind == "vllm" else [],
            "engine_python": study.engine.python or None,
            "engine_env": dict(study.engine.env),
            "model": study.model if study.model != AUTO else None,
            "out_dir": str(out or folder),
            "state_dir": str(folder),
            "cache_dir": str(cache_folder()),
            "resident_engines": resident,
        },
    )
    return path


async def ask_host(study: StudyFile, notify: Notify) -> tuple[StudyFile, HostReport]:
    """Ask this machine and the engine about themselves; return *study* with a model, and the answer.

    No trace is left outside the cache.
    """
    with _temporary_folder() as folder:
        if study.model == AUTO:
            study = await _with_model(study, folder, notify)
        return study, await describe_host(prepare_worker(study, folder, "unix:/none", 1), study.model)


def resident_engines(spec: StudySpec, host: HostReport) -> int:
    """Return how many engines fit in memory beside each other, at most the race's members.

    Only a cache of fixed size can be budgeted; an engine that takes a share of the device is alone on it.
    """
    if spec.engine.kind == "simulated":
        return 1 + spec.search.finalists
    cache = spec.space.fixed.get("kv_cache_memory_bytes")
    if spec.hardware.device != "cpu" or not isinstance(cache, int):
        return 1
    weights = spec.engine.model.get("weight_bytes", 0)
    per_engine = _ENGINE_BYTES + cache + 2 * (weights if isinstance(weights, int) else 0)
    return max(1, min(1 + spec.search.finalists, int(host.memory_available * 0.8) // per_engine))


def _url(out: Path) -> str:
    return sqlite_url(out / "study.db")


def _differs(old: StudySpec, new: StudySpec) -> bool:
    return replace(old, effort=new.effort, labels=new.labels) != new


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    usual = tempfile.gettempdir()
    place = usual if len(os.fsencode(usual)) <= _LONGEST_PLACE else "/tmp"  # noqa: S108 - mkdtemp makes it private
    folder = Path(tempfile.mkdtemp(prefix="autotuner-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let the signals that end a program cancel the present task, and turn that into ``Interrupted``."""
    task = asyncio.current_task()
    assert task is not None
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        yield
    except asyncio.CancelledError:
        raise Interrupted("stopped before anything was begun") from None


async def tune(request: TuneRequest, notify: Notify, tick: Tick) -> StudyResult:
    """Run or continue a study on this machine and return what it found; partial when the user stops it.

    Raises ``InputError`` for a bad study, ``EnvironmentFault`` when this machine cannot run it.
    """
    request = replace(request, out=request.out.absolute())
    study = load_request(request)
    outfolder.begin(request.out)
    with _interruptible():
        notify("asking the engine about itself")
        study, host = await ask_host(study, notify)
        built = build_study(study, host.engine, host.hardware)
        for note in built.notes:
            notify(note)
        if request.fresh:
            outfolder.clear(request.out)
        with _temporary_folder() as folder:
            return await _Session(request, study, built, host, f"unix:{folder / 'controller.sock'}").run(notify, tick)


class _Session:
    """One run of the embedded tuner."""

    def __init__(
        self, request: TuneRequest, study: StudyFile, built: BuiltStudy, host: HostReport, address: str
    ) -> None:
        notes = {f"note{index:03d}": text for index, text in enumerate(built.notes)}
        self.spec = replace(built.spec, labels={**built.spec.labels, **notes})
        self.study, self.host = study, host
        self.out = request.out
        self.study_id = self.spec.name
        self.clock = SystemClock()
        self.address = address
        self.worker = WorkerProcess.for_config(self.out / "worker" / "worker.json", self.out / "worker" / "worker.log")
        self.stopping: asyncio.Task[None] | None = None
        self.lives = Lives()
        self.earlier = ""
        """The worker's instance that the journal knew when the present one was started."""

    async def run(self, notify: Notify, tick: Tick) -> StudyResult:
        """Run until the study has ended and everything that was started is gone."""
        controller = Controller(
            machine=Machine(lease_seconds=LEASE_SECONDS),
            journal=SqlJournal(_url(self.out)),
            sampler=OptunaSampler(_url(self.out)),
            clock=self.clock,
            publish=lambda result: publish(result, self.out),
        )
        server = RpcServer(self.address, [WorkerService(controller)])
        ticking: asyncio.Task[None] | None = None
        try:
            await controller.start()
            if not await self._open_study(controller, notify):
                return controller.machine.result(self.study_id, self.clock.utc())
            await server.start()
            for number in _STOP_SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self._stop, controller, notify)
            prepare_worker(
                self.study,
                self.out / "worker",
                self.address,
                resident_engines(self.spec, self.host),
                out=self.out,
            )
            await self._start_worker(controller)
            ticking = asyncio.create_task(self._tick(controller, tick, notify))
            ticking.add_done_callback(lambda task: _pass_on(task, controller))
            study = controller.machine.studies[self.study_id]
            await controller.run_until(lambda: study.state is StudyState.ENDED)
            controller.dismiss_workers()
            tick(self._look(controller))
            return controller.machine.result(self.study_id, self.clock.utc())
        finally:
            for task in (ticking, self.stopping):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await self.worker.end(STOP_PATIENCE if self.stopping is not None else 4 * STOP_PATIENCE)
            await server.stop(0.2)
            await controller.close()

    def _look(self, controller: Controller) -> Running:
        return Running(controller=controller, study_id=self.study_id, now=self.clock.utc())

    async def _open_study(self, controller: Controller, notify: Notify) -> bool:
        """Submit the study or continue it; return whether there is anything left to do."""
        known = controller.machine.studies
        if not known:
            await controller.submit(ev.StudySubmitted(study_id=self.study_id, spec=self.spec))
            return True
        study = known.get(self.study_id)
        if study is None or _differs(study.spec, self.spec):
            raise InputError(
                [
                    Problem(
                        field="--out",
                        value=str(self.out),
                        message=f"the folder holds another study ({', '.join(known)}), or this one was changed since",
                        remedy="start anew with --fresh (make tune FRESH=1), or give another folder",
                    )
                ]
            )
        changed = study.spec.effort != self.spec.effort
        if study.state is StudyState.ENDED and not study.stop_reason and not changed:
            notify("this study is complete; these are its results (start anew with --fresh, or raise its budget)")
            return False
        done = sum(not trial.live for trial in study.trials.values())
        notify(f"continuing with {done} of its trials done")
        if study.state is not StudyState.RUNNING or changed:
            await controller.resume(ev.StudyResumed(study_id=self.study_id, effort=self.spec.effort))
        return True

    async def _start_worker(self, controller: Controller) -> None:
        self.earlier = _instance(controller)
        await self.worker.start()

    async def _tick(self, controller: Controller, tick: Tick, notify: Notify) -> None:
        """Show progress and keep a worker alive."""
        while True:
            tick(self._look(controller))
            if self.worker.ended and self.stopping is None:
                failure = self.worker.failure()
                if failure is not None and _instance(controller) == self.earlier:
                    raise failure  # it could not even begin: another would end alike
                controller.post(ev.WorkerLost(worker_id=WORKER_ID))
                deaths = self.lives.lost(_measured(controller.machine.studies[self.study_id]))
                if deaths >= MAX_WORKER_LIVES:
                    words = self.worker.last_words()
                    raise EnvironmentFault(f"the worker ended {deaths} times in a row; its last words: {words}")
                notify("the worker ended unexpectedly; starting another")
                await self._start_worker(controller)
            await asyncio.sleep(0.5)

    def _stop(self, controller: Controller, notify: Notify) -> None:
        """Begin an orderly end at the first signal; end the worker, and with it the engines, at once at the second."""
        study = controller.machine.studies[self.study_id]
        if self.stopping is None:
            notify("stopping: partial results follow (again: end the engine at once)")
            if study.state is StudyState.RUNNING:
                controller.post(ev.StopRequested(study_id=self.study_id, reason=ev.StopReason.USER))
            self.stopping = asyncio.create_task(self._force(controller))
        else:
            self.worker.kill()
            if study.live_trials():
                controller.post(ev.WorkerLost(worker_id=WORKER_ID))

    async def _force(self, controller: Controller) -> None:
        """End a worker that does not answer the stop, so that the study can end."""
        await asyncio.sleep(STOP_PATIENCE)
        if controller.machine.studies[self.study_id].live_trials():
            self.worker.kill()
            controller.post(ev.WorkerLost(worker_id=WORKER_ID))


def _measured(study: Study) -> int:
    """Return how many trials were measured."""
    return sum(trial.state is TrialState.MEASURED for trial in study.trials.values())


def _instance(controller: Controller) -> str:
    """Return which life of the worker was the last to introduce itself."""
    worker = controller.machine.workers.get(WORKER_ID)
    return worker.instance_id if worker is not None else ""


def _pass_on(task: asyncio.Task[None], controller: Controller) -> None:
    """End the run with the failure of *task*."""
    if not task.cancelled() and (error := task.exception()) is not None:
        controller.fail(error)
