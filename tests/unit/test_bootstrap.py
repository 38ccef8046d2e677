"""What a worker needs of its host before it does anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotuner.errors import EnvironmentFault
from autotuner_worker.agent.bootstrap import make_model, report_host
from autotuner_worker.agent.config import WorkerConfig


async def test_a_cache_that_cannot_be_written_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = WorkerConfig(
        worker_id="w",
        controller="unix:/none",
        engine_kind="vllm",
        engine_command=("vllm", "serve"),
        out_dir=tmp_path,
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "file" / "cache",
    )
    with pytest.raises(EnvironmentFault, match=r"file/cache \(Not a directory\): set AUTOTUNER_CACHE_DIR"):
        await report_host(config, None)
    with pytest.raises(EnvironmentFault, match="AUTOTUNER_CACHE_DIR"):
        await make_model(config, tmp_path / "model")
