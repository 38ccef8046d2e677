"""The command line: quick help, exit codes by kind of error, and what a watcher sees of a run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotuner import __version__
from autotuner.cli import main as program
from autotuner.cli.live import LOG_EVERY, Screen
from autotuner.core.machine import Machine
from autotuner.core.results import StudyResult
from autotuner.core.trial import OutcomeClass
from autotuner.daemon.embedded import Running, TuneRequest
from autotuner.daemon.loop import Controller
from autotuner.errors import (
    EngineUnavailable,
    InputError,
    InternalError,
    Interrupted,
    Problem,
    Refused,
    StorageFault,
)
from autotuner.storage.journal_memory import MemoryJournal
from tests.fakes import studies
from tests.fakes.clock import ManualClock
from tests.fakes.results import infeasible_result, study_result, unmeasured_result
from tests.fakes.sampler import FakeSampler
from tests.fakes.world import World

HEAVY = ("optuna", "numpy", "pandas", "plotly", "grpc", "pydantic", "sqlalchemy", "scipy", "aiohttp", "google.protobuf")
COMMANDS = ("tune", "validate", "init", "report", "export", "story", "schema")


def test_help_loads_no_heavy_library() -> None:
    code = f"""
import sys
from autotuner.cli.main import cli
for command in ([], *([name] for name in {COMMANDS!r})):
    cli.main([*command, "--help"], standalone_mode=False)
cli.main(["--version"], standalone_mode=False)
sys.exit(" ".join(name for name in {HEAVY!r} if name in sys.modules) or 0)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert ended.returncode == 0, ended.stderr
    assert __version__ in ended.stdout
    assert ended.stdout.count("Usage:") == 1 + len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    shown = CliRunner().invoke(program.cli, [command, "-h"])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) >= 4


def ended(monkeypatch: pytest.MonkeyPatch, arguments: list[str], raised: BaseException | None = None) -> int:
    """Run the program with *arguments*, its work replaced by *raised*; return the exit code."""

    async def work(*_: object) -> StudyResult:
        if raised is not None:
            raise raised
        return study_result()

    monkeypatch.setattr(sys, "argv", ["autotuner", *arguments])
    monkeypatch.setattr("autotuner.daemon.embedded.tune", work)
    with pytest.raises(SystemExit) as caught:
        program.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (InputError([Problem(field="a.b", value="1", message="is wrong", remedy="write 2")]), 2),
        (EngineUnavailable("no engine here"), 3),
        (StorageFault("the disk is full"), 3),
        (Refused("not allowed"), 4),
        (Interrupted("stopped"), 130),
        (KeyboardInterrupt(), 130),
        (InternalError("an invariant is broken"), 70),
        (ZeroDivisionError("division by zero"), 70),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    assert ended(monkeypatch, ["tune", "study.yaml"], raised) == code
    shown = capsys.readouterr()
    assert str(raised) in shown.err
    assert "Traceback" not in shown.err
    if isinstance(raised, InputError):
        assert shown.err == "autotuner: a.b = 1: is wrong; write 2\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["tune"], "STUDY"),
        (["tune", "a.yaml", "--engine", "other"], "simulated"),
        (["tune", "a.yaml", "--engine-command", "  "], "is empty: give one"),
        (["tune", "a.yaml", "--engine-command", "'unclosed"], "--engine-command"),
        (["init", "a.yaml", "--engine-command", "'unclosed"], "--engine-command"),
        (["tnue"], "tnue"),
        (["story", "out", "first"], "first"),
        (["export", "out", "--format", "toml"], "kubernetes"),
        (["report", "out", "--limit", "ttft_p95"], "OUT"),
    ],
)
def test_bad_arguments_are_bad_input(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(monkeypatch, arguments) == 2
    shown = capsys.readouterr()
    assert word in shown.err
    assert "internal error" not in shown.err


def test_options_reach_the_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[TuneRequest] = []

    async def work(request: TuneRequest, *_: object) -> StudyResult:
        seen.append(request)
        return study_result()

    monkeypatch.setattr("autotuner.daemon.embedded.tune", work)
    arguments = ["tune", "s.yaml", "--out", "o", "--fresh", "--model", "m", "--engine", "vllm"]
    shown = CliRunner().invoke(program.cli, [*arguments, "--engine-command", "'/opt/my vllm/vllm' serve"])
    assert shown.exit_code == 0, shown.output
    assert seen == [
        TuneRequest(
            study=Path("s.yaml"),
            out=Path("o"),
            model="m",
            engine_kind="vllm",
            engine_command=("/opt/my vllm/vllm", "serve"),
            fresh=True,
        )
    ]


@pytest.mark.parametrize(
    ("result", "code", "word"),
    [
        (study_result, 0, ""),
        (infeasible_result, 0, ""),
        (unmeasured_result, 3, "--fresh"),
    ],
)
def test_a_study_without_any_measurement_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    result: Callable[[], StudyResult],
    code: int,
    word: str,
) -> None:
    async def work(*_: object) -> StudyResult:
        return result()

    monkeypatch.setattr("autotuner.daemon.embedded.tune", work)
    monkeypatch.setattr(sys, "argv", ["autotuner", "tune", "s.yaml"])
    if code:
        with pytest.raises(SystemExit) as caught:
            program.main()
        assert caught.value.code == code
    else:
        program.main()
    assert word in capsys.readouterr().err


def test_a_reader_that_leaves_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr("autotuner.settings.schema.render_schema", write)
    assert ended(monkeypatch, ["schema"]) == 0


# --- what a watcher sees ------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Watched:
    """A study that goes on when told, and a screen on it."""

    def __init__(self, stream: io.StringIO) -> None:
        self.world = World()
        self.world.submit(studies.spec(trials=3))
        self.world.worker("local")
        self.screen = Screen(stream)
        self.controller = Controller(
            machine=Machine(),
            journal=MemoryJournal(),
            sampler=FakeSampler(),
            clock=ManualClock(),
            publish=lambda _: None,
        )
        self.controller.machine = self.world.machine

    def tick(self) -> None:
        self.screen.tick(Running(controller=self.controller, study_id="s", now=self.world.now))


def test_a_log_gets_a_line_per_trial_and_progress_now_and_then() -> None:
    stream = io.StringIO()
    watched = Watched(stream)
    watched.tick()
    watched.tick()
    assert stream.getvalue().count("trial 0/") + stream.getvalue().count("trial 1/") == 1
    watched.world.step("local", seconds=1.0)
    watched.tick()
    watched.tick()
    assert stream.getvalue().count("trial   1 baseline") == 1
    before = stream.getvalue()
    watched.world.now += LOG_EVERY
    watched.tick()
    assert "\n" in stream.getvalue().removeprefix(before)
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_one_live_line() -> None:
    stream = Terminal()
    watched = Watched(stream)
    watched.tick()
    watched.world.step("local")
    watched.tick()
    watched.screen.close()
    shown = stream.getvalue()
    assert shown.count("\r\x1b[K") >= 3
    assert shown.endswith("\r\x1b[K")
    assert "SIMULATED" in shown


def test_trials_of_an_earlier_run_are_not_told_again() -> None:
    stream = io.StringIO()
    watched = Watched(stream)
    watched.world.step("local")
    watched.tick()
    assert "trial   1 baseline" not in stream.getvalue()
    watched.world.step("local")
    watched.tick()
    assert "trial   2 baseline" in stream.getvalue()


def test_a_failed_trial_says_why() -> None:
    stream = io.StringIO()
    watched = Watched(stream)
    watched.tick()
    watched.world.answer = lambda given: studies.failed(given, OutcomeClass.GARBAGE, "not tokens")
    watched.world.step("local")
    watched.tick()
    assert "garbage: not tokens" in stream.getvalue()


def test_a_stop_is_no_reason_to_fail_where_nobody_reads() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    watched = Watched(Gone())
    watched.tick()
    watched.screen.notify("anything")
    watched.screen.close()
