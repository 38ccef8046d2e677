"""NVIDIA devices through NVML: what there is and how busy it is.

The library (``nvidia-ml-py``) and the driver are optional: without them there are no devices, never an exception.  A figure
that a device does not offer (under MIG, on consumer cards, on shared-memory systems) is ``None``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Gpu", "GpuUsage", "Nvml", "memory_utilisation"]

_MAX_LINKS = 18
_CORES_PER_SM = {  # by compute capability; NVML tells cores, seeds want multiprocessors
    (6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128,
    (9, 0): 128, (10, 0): 128, (10, 3): 128, (11, 0): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device; ``None`` and 0 mean that the driver does not say."""

    index: int
    name: str
    uuid: str
    memory_total: int
    """Bytes."""
    memory_used: int
    """Bytes, of all processes."""
    compute_capability: tuple[int, int] | None
    multiprocessors: int | None
    pcie_generation: int | None
    """Of the link at its best."""
    pcie_width: int | None
    """Lanes of the link at its best."""
    nvlink: bool
    """At least one NVLink is active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """One sample; shares are of the driver's last sampling period (about a second)."""

    index: int
    busy: float | None
    """Share of time with a kernel running, 0–1."""
    memory_busy: float | None
    """Share of time with device memory being read or written, 0–1 (R2)."""
    memory_used: int
    """Bytes."""
    memory_total: int
    """Bytes."""
    power_watts: float | None
    temperature: float | None
    """Degrees Celsius."""


def memory_utilisation(allocated: float, total: float) -> float:
    """Return memory in use in per cent: allocated ÷ total × 100 (R24); 0 when *total* is 0."""
    return allocated / total * 100.0 if total > 0 else 0.0


class Nvml:
    """A session with the driver; usable as a context manager, empty when there is no driver."""

    def __init__(self, module: str = "pynvml") -> None:
        """Load and initialise the library; any failure leaves a session without devices."""
        self._api: Any = None
        self.reason = ""
        """Why there are no devices; empty when the driver answered."""
        try:
            api = importlib.import_module(module)
            api.nvmlInit()
        except Exception as error:  # noqa: BLE001 - an optional probe: whatever is broken there, there are no devices
            self.reason = f"{type(error).__name__}: {error}"
        else:
            self._api = api

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session; may be called twice."""
        if self._api is not None:
            self._ask("nvmlShutdown")
            self._api = None

    def inventory(self) -> tuple[Gpu, ...]:
        """Return the devices in the driver's order (PCI bus order)."""
        return tuple(self._describe(index, handle) for index, handle in self._handles())

    def sample(self) -> tuple[GpuUsage, ...]:
        """Return how busy each device is."""
        return tuple(self._usage(index, handle) for index, handle in self._handles())

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Return the driver's answer, ``None`` when it has none or the library is too old for the question."""
        with contextlib.suppress(Exception):  # the library raises a class of its own for each code
            return getattr(self._api, function)(*arguments)
        return None

    def _handles(self) -> Iterator[tuple[int, Any]]:
        if self._api is None:
            return
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                yield index, handle

    def _describe(self, index: int, handle: Any) -> Gpu:
        ask = self._ask
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
        capability = (int(capability[0]), int(capability[1])) if capability else None
        return Gpu(
            index=index,
            name=_text(ask("nvmlDeviceGetName", handle)),
            uuid=_text(ask("nvmlDeviceGetUUID", handle)),
            memory_total=int(memory.total) if memory else 0,
            memory_used=int(memory.used) if memory else 0,
            compute_capability=capability,
            multiprocessors=self._multiprocessors(handle, capability),
            pcie_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            nvlink=any(ask("nvmlDeviceGetNvLinkState", handle, link) == 1 for link in range(_MAX_LINKS)),
        )

    def _multiprocessors(self, handle: Any, capability: tuple[int, int] | None) -> int | None:
        attributes = self._ask("nvmlDeviceGetAttributes_v2", handle) or self._ask("nvmlDeviceGetAttributes", handle)
        if attributes is not None and attributes.multiprocessorCount > 0:
            return int(attributes.multiprocessorCount)
        cores = self._ask("nvmlDeviceGetNumGpuCores", handle)
        per_unit = _CORES_PER_SM.get(capability) if capability else None
        return int(cores) // per_unit if cores and per_unit else None

    def _usage(self, index: int, handle: Any) -> GpuUsage:
        ask = self._ask
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        power = ask("nvmlDeviceGetPowerUsage", handle)
        heat = ask("nvmlDeviceGetTemperature", handle, 0)
        return GpuUsage(
            index=index,
            busy=rates.gpu / 100.0 if rates else None,
            memory_busy=rates.memory / 100.0 if rates else None,
            memory_used=int(memory.used) if memory else 0,
            memory_total=int(memory.total) if memory else 0,
            power_watts=power / 1000.0 if power is not None else None,
            temperature=float(heat) if heat is not None else None,
        )


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if value is not None else ""
