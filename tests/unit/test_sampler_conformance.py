"""The Sampler port's suite on every sampler that we ship, and on the fake."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotuner.ports import Sampler
from autotuner.search.optuna_sampler import OptunaSampler
from tests.conformance.sampler import SamplerConformance
from tests.fakes.sampler import FakeSampler


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables, made once: making them is most of a short test."""
    path = tmp_path_factory.mktemp("database") / "empty.db"
    OptunaSampler(f"sqlite:///{path}").close()
    return path


class _OnOptuna(SamplerConformance):
    @pytest.fixture
    def make(self, empty_database: Path, tmp_path: Path) -> Iterator[Sampler]:
        path = tmp_path / "study.db"
        shutil.copy(empty_database, path)
        sampler = OptunaSampler(f"sqlite:///{path}")
        yield sampler
        sampler.close()


class TestTpe(_OnOptuna):
    sampler_name = "tpe"


class TestRandom(_OnOptuna):
    sampler_name = "random"


class TestGrid(_OnOptuna):
    sampler_name = "grid"


class TestFake(SamplerConformance):
    @pytest.fixture
    def make(self) -> Sampler:
        return FakeSampler()
