"""NVML through a stand-in for the library: a full device, one that offers little, and none at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from autotuner_worker.probes.nvml import Nvml, memory_utilisation

GIB = 2**30


class NvmlError(Exception):
    """What the library raises."""


class FakeLibrary:
    """Two devices: number 0 answers everything, number 1 only its name, memory and capability."""

    def __init__(self) -> None:
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's names
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:  # noqa: N802
        return b"H200" if handle == 0 else "Slice"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=140 * GIB, used=35 * GIB)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> list[int]:  # noqa: N802
        return [9, 0]

    def nvmlDeviceGetNumGpuCores(self, handle: int) -> Any:  # noqa: N802
        return self._only_first(handle, 132 * 128)

    def nvmlDeviceGetAttributes_v2(self, handle: int) -> Any:  # noqa: N802
        if handle == 1:
            return SimpleNamespace(multiprocessorCount=16)
        raise NvmlError("not supported")

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> Any:  # noqa: N802
        return self._only_first(handle, 5)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> Any:  # noqa: N802
        return self._only_first(handle, 16)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> Any:  # noqa: N802
        return self._only_first(handle, 1 if link == 2 else 0)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return self._only_first(handle, SimpleNamespace(gpu=92, memory=45))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:  # noqa: N802
        return self._only_first(handle, 350_500)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:  # noqa: N802
        return self._only_first(handle, 61)

    @staticmethod
    def _only_first(handle: int, answer: Any) -> Any:
        if handle:
            raise NvmlError("not supported")
        return answer


@pytest.fixture
def library() -> Iterator[FakeLibrary]:
    """The stand-in, importable as ``fake_nvml``."""
    fake = FakeLibrary()
    sys.modules["fake_nvml"] = fake  # type: ignore[assignment]
    yield fake
    del sys.modules["fake_nvml"]


def test_inventory(library: FakeLibrary) -> None:
    with Nvml("fake_nvml") as nvml:
        first, second = nvml.inventory()
    assert library.open == 0
    assert (first.name, first.memory_total, first.memory_used) == ("H200", 140 * GIB, 35 * GIB)
    assert (first.compute_capability, first.multiprocessors) == ((9, 0), 132)
    assert (first.pcie_generation, first.pcie_width, first.nvlink) == (5, 16, True)
    assert first.uuid == ""  # the stand-in has no such function
    assert (second.name, second.multiprocessors) == ("Slice", 16)
    assert (second.pcie_generation, second.pcie_width, second.nvlink) == (None, None, False)


def test_sampling(library: FakeLibrary) -> None:
    with Nvml("fake_nvml") as nvml:
        first, second = nvml.sample()
        nvml.close()
        assert nvml.sample() == ()
        assert nvml.inventory() == ()
    assert (first.busy, first.memory_busy, first.power_watts, first.temperature) == (0.92, 0.45, 350.5, 61.0)
    assert (second.busy, second.power_watts, second.memory_used) == (None, None, 35 * GIB)
    assert library.open == 0


def test_absent_library_or_driver() -> None:
    nvml = Nvml("no_such_nvml_module")
    assert nvml.inventory() == ()
    assert nvml.sample() == ()
    assert "no_such_nvml_module" in nvml.reason
    nvml.close()
    with Nvml() as real:
        assert real.reason or real.inventory()


def test_memory_utilisation() -> None:
    assert memory_utilisation(30, 40) == 75.0
    assert memory_utilisation(1, 0) == 0.0
