"""``autotuner``: the command line.

Exit codes: 0 done, 2 bad input, 3 this machine cannot, 4 refused, 70 a defect of this program, 130 stopped by the user.

Heavy modules are imported inside the commands, so that help and errors come at once.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from autotuner import __version__
from autotuner.errors import AutotunerError, EngineUnavailable, InputError, InternalError, Interrupted

__all__ = ["cli", "main"]

_Command = tuple[str, ...] | None


def _parts(_context: click.Context, _option: click.Parameter, value: str | None) -> _Command:
    """Return the parts of a command that is written as for a shell."""
    if value is None:
        return None
    try:
        parts = tuple(shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no command: {error}") from error
    if not parts:
        raise click.BadParameter("it is empty: give one such as '/opt/vllm/bin/vllm serve'")
    return parts


_STUDY = click.argument("study", type=click.Path(path_type=Path))
_OUT = click.argument("out", type=click.Path(path_type=Path))


def _engine_options(command: Any) -> Any:
    """Add the options that say which engine and model are meant."""
    for option in (
        click.option("--model", help="Path or hub name of the model, instead of the study's."),
        click.option(
            "--engine", "kind", type=click.Choice(["vllm", "simulated"]), help="Instead of the study's engine."
        ),
        click.option(
            "--engine-command",
            callback=_parts,
            metavar="COMMAND",
            help="How to start vLLM, such as '/opt/vllm/bin/vllm serve'.",
        ),
    ):
        command = option(command)
    return command


def _request(study: Path, out: Path, model: str | None, kind: str | None, command: _Command, fresh: bool) -> Any:
    from autotuner.daemon.embedded import TuneRequest

    return TuneRequest(study=study, out=out, model=model, engine_kind=kind, engine_command=command, fresh=fresh)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="autotuner")
def cli() -> None:
    """Find the fastest vLLM configuration that keeps a latency budget, with proof."""


@cli.command()
@_STUDY
@click.option("--out", type=click.Path(path_type=Path), default=Path("out"), show_default=True, help="Results folder.")
@click.option("--fresh", is_flag=True, help="Start anew instead of continuing what the folder holds.")
@_engine_options
def tune(study: Path, out: Path, fresh: bool, model: str | None, kind: str | None, engine_command: _Command) -> None:
    """Tune STUDY on this machine; the same command continues an interrupted run."""
    from autotuner.cli.live import Screen, show
    from autotuner.daemon.embedded import tune as run

    screen = Screen(sys.stderr)
    try:
        result = asyncio.run(run(_request(study, out, model, kind, engine_command, fresh), screen.notify, screen.tick))
    finally:
        screen.close()
    show(result, out)
    if result.stopped == "user":
        raise Interrupted("stopped; the same command continues")
    if result.points == 0:
        then = "the same command goes on" if result.stopped else "start anew with --fresh"
        raise EngineUnavailable(f"{result.verdict.reason}; when that is mended, {then}")


@cli.command()
@_STUDY
@_engine_options
def validate(study: Path, model: str | None, kind: str | None, engine_command: _Command) -> None:
    """Check STUDY against the installed engine and explain its search space."""
    from autotuner.cli.offline import explain

    for line in asyncio.run(explain(_request(study, Path("out"), model, kind, engine_command, False))):
        click.echo(line)


@cli.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path("study.yaml"))
@_engine_options
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(path: Path, model: str | None, kind: str | None, engine_command: _Command, force: bool) -> None:
    """Write a study file to PATH by asking the engine and the hardware."""
    from autotuner.cli.offline import write_study

    asyncio.run(write_study(path, model, kind or "vllm", engine_command or (), force))
    click.echo(f"wrote {path}; check it with: autotuner validate {path}")


@cli.command()
@_OUT
@click.option("--limit", "limits", multiple=True, metavar="NAME=TIME", help="A new limit, such as ttft_p95=300ms.")
@click.option("--only", is_flag=True, help="Drop the study's other limits.")
def report(out: Path, limits: tuple[str, ...], only: bool) -> None:
    """Judge the measurements in OUT again, with other limits where given, without running anything.

    Without --limit the files of the study are written anew; with it they go to OUT/rejudged. Limits of the study that are
    not named stay.
    """
    from autotuner.cli.live import show
    from autotuner.cli.offline import rejudge

    if only and not limits:
        raise click.UsageError("--only drops the limits that no --limit names: give at least one --limit")
    result, folder = rejudge(out, limits, only)
    show(result, folder)


@cli.command()
@_OUT
@click.option("--format", "form", type=click.Choice(["argv", "yaml", "systemd", "kubernetes"]), default="argv")
def export(out: Path, form: str) -> None:
    """Print the winner in OUT as a command, a vLLM configuration file, a systemd drop-in or container arguments."""
    from autotuner.cli.offline import exported

    click.echo(exported(out, form), nl=False)


@cli.command()
@_OUT
@click.argument("trial", type=int, required=False)
def story(out: Path, trial: int | None) -> None:
    """Tell what happened to TRIAL in OUT, or to the whole study."""
    from autotuner.cli.offline import told

    for line in told(out, trial):
        click.echo(line)


@cli.command()
def schema() -> None:
    """Print the JSON schema of study files, for editors."""
    from autotuner.settings.schema import render_schema

    click.echo(render_schema(), nl=False)


def main() -> None:
    """Run the program; end with the exit code of the error's class."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(InputError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(Interrupted.exit_code)
    except AutotunerError as error:
        click.echo(f"autotuner: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        click.echo(f"autotuner: internal error: {type(error).__name__}: {error} (python -X dev shows where)", err=True)
        sys.exit(InternalError.exit_code)
