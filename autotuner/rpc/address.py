"""Where a server listens: ``unix:/path/to/socket`` or ``127.0.0.1:PORT`` (0 takes a free port)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from autotuner.errors import EnvironmentFault, InputError, Problem

__all__ = ["Address", "claim_socket", "parse_address"]

_LONGEST_PATH = 107
"""Bytes of a socket's path that the kernel takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed address: exactly one of socket path and TCP host is given."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def render(self, port: int | None = None) -> str:
        """Return the text that gRPC takes, with *port* in place of the asked one when given."""
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port if port is None else port}"


def parse_address(text: str) -> Address:
    """Return the address in *text*; raise ``InputError`` for one that cannot be listened on."""
    if text.startswith("unix:"):
        return _unix(text)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise _refusal(text, "is neither unix:/path nor HOST:PORT", "write unix:/run/autotuner/socket or 127.0.0.1:0")
    if host != "localhost" and not _is_loopback(host):
        raise _refusal(
            text,
            "is open to other hosts, and this channel is neither encrypted nor authenticated",
            "listen on 127.0.0.1 or on a unix socket, and forward it (ssh -L) where other hosts need it",
        )
    return Address(host=host, port=int(port))


def claim_socket(path: Path) -> None:
    """Remove a socket that a dead server left at *path*; raise ``EnvironmentFault`` when it is alive or a file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise EnvironmentFault(f"cannot look at {path}: {error.strerror}; give a path that you may use") from error
    if not stat.S_ISSOCK(mode):
        raise EnvironmentFault(f"{path} exists and is not a socket; move it away or give another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
        except OSError as error:
            raise EnvironmentFault(f"cannot use {path}: {error}; remove it or give another path") from error
    raise EnvironmentFault(f"another server listens on {path}; stop it or give another path")


def _unix(text: str) -> Address:
    path = Path(text.removeprefix("unix:").removeprefix("//"))
    if not path.is_absolute():
        raise _refusal(text, "is not an absolute path", "write unix:/path/to/socket")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise _refusal(
            text, f"is longer than the {_LONGEST_PATH} bytes that a socket's path may have", "choose a shorter path"
        )
    return Address(path=path)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refusal(text: str, message: str, remedy: str) -> InputError:
    return InputError([Problem(field="address", value=text, message=message, remedy=remedy)])
