"""OptunaSampler beyond the port's suite: what the database holds, restarts, lessons, the dashboard."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from autotuner.core.budget import LatencyBudget, LatencyMetric, Limit
from autotuner.core.commands import Tell
from autotuner.core.events import PointProposed
from autotuner.core.space import CrossRule, Parameter, ParameterKind, Space
from autotuner.core.study import SearchPlan
from autotuner.core.trial import Interval, Launch, Measurement, Outcome, OutcomeClass
from autotuner.errors import EnvironmentFault, InputError, InternalError, StorageFault
from autotuner.search.lessons import AMOUNT_CAP, FAILURE_AMOUNT
from autotuner.search.optuna_backend import Observation, Round, distributions, require_sampler, window
from autotuner.search.optuna_sampler import OptunaSampler
from tests.conformance.sampler import STUDY, failed, measured, mixed_spec, propose, tiny_spec


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "empty.db"
    OptunaSampler(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def url(empty_database: Path, tmp_path: Path) -> str:
    shutil.copy(empty_database, tmp_path / "study.db")
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.fixture
def sampler(url: str) -> Iterator[OptunaSampler]:
    sampler = OptunaSampler(url)
    yield sampler
    sampler.close()


def _trials(url: str) -> list[FrozenTrial]:
    storage = optuna.storages.RDBStorage(url)
    try:
        return optuna.load_study(study_name=STUDY, storage=storage).get_trials()
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _config(sampler: OptunaSampler, trial_id: int) -> dict[str, Any]:
    answer = propose(sampler, trial_id)
    assert isinstance(answer, PointProposed)
    return dict(answer.config)


def test_a_restart_answers_the_same_and_remembers_what_was_told(url: str) -> None:
    spec = mixed_spec(seeds=({"max_num_seqs": 64},))
    first = OptunaSampler(url)
    first.open(STUDY, spec)
    before = [propose(first, trial_id) for trial_id in (1, 2, 3)]
    first.tell(measured(1, {"max_num_seqs": 64}, 50.0))
    first.close()

    second = OptunaSampler(url)
    second.open(STUDY, spec)
    assert [propose(second, trial_id) for trial_id in (1, 2, 3)] == before
    assert second.running(STUDY) == (2, 3)
    second.tell(measured(1, {"max_num_seqs": 64}, 99.0))
    after = propose(second, 4)
    assert isinstance(after, PointProposed)
    assert after.source == "tpe"
    second.close()
    assert _trials(url)[0].value == 50.0


def test_equal_seeds_propose_equal_points(url: str, tmp_path: Path) -> None:
    spec = mixed_spec()
    runs = []
    for name in ("a.db", "b.db"):
        sampler = OptunaSampler(f"sqlite:///{tmp_path / name}")
        sampler.open(STUDY, spec)
        runs.append([_config(sampler, trial_id) for trial_id in range(1, 4)])
        sampler.close()
    assert runs[0] == runs[1]


def test_what_the_database_holds(sampler: OptunaSampler, url: str) -> None:
    limit = Limit(metric=LatencyMetric.TTFT, percentile=99.0, seconds=0.5)
    sampler.open(STUDY, mixed_spec(budget=LatencyBudget(limits=(limit,))))
    configs = {trial_id: _config(sampler, trial_id) for trial_id in range(1, 6)}
    sampler.tell(measured(1, configs[1], 120.0, [("ttft_p99", 0.2), ("error_ratio", -1.0)]))
    sampler.tell(measured(2, configs[2], 60.0, [("ttft_p99", -0.1), ("error_ratio", 98.0)]))
    sampler.tell(failed(3, configs[3]))
    sampler.tell(failed(4, configs[4], OutcomeClass.VOID))
    sampler.tell(
        Tell(study_id=STUDY, trial_id=5, config=configs[5], value=None, constraints=(("memory", 0.4),), outcome=None)
    )

    trials = {trial.user_attrs["autotuner_trial_id"]: trial for trial in _trials(url)}
    assert trials[1].constraints == {"ttft_p99": 0.2, "error_ratio": -1.0, "other": 0.0}
    assert trials[2].constraints == {"ttft_p99": -0.1, "error_ratio": AMOUNT_CAP, "other": 0.0}
    assert (trials[3].state, trials[3].value) == (TrialState.COMPLETE, 60.0)
    assert trials[3].constraints == {"ttft_p99": 0.0, "error_ratio": 0.0, "other": FAILURE_AMOUNT}
    assert trials[3].user_attrs["outcome"] == "oom_at_start"
    assert trials[3].user_attrs["message"] == "no memory"
    assert (trials[4].state, trials[4].value) == (TrialState.FAIL, None)
    assert (trials[5].constraints["other"], trials[5].user_attrs["outcome"]) == (0.4, "refused")
    assert all(set(trial.params) == set(trials[1].params) for trial in trials.values())
    assert json.loads(trials[2].user_attrs["autotuner_config"]) == configs[2]


def test_figures_are_kept_for_the_dashboard(sampler: OptunaSampler, url: str) -> None:
    sampler.open(STUDY, tiny_spec())
    measurement = Measurement(
        total_tokens=1000.0,
        warmup_tokens=100.0,
        warmup_end=2.0,
        end_time=12.0,
        prompt_tokens=10.0,
        steady=True,
        requests=20,
        ok=20,
        errors=0,
        aborted=0,
        empty=0,
        latency={"ttft_p95": Interval(value=0.2, low=0.1, high=0.3)},
    )
    outcome = Outcome(
        study_id=STUDY,
        trial_id=1,
        attempt=1,
        epoch=1,
        outcome=OutcomeClass.COMPLETE,
        launch=Launch(launch_id="launch-1"),
        measurement=measurement,
    )
    config = _config(sampler, 1)
    sampler.tell(Tell(study_id=STUDY, trial_id=1, config=config, value=90.0, constraints=(), outcome=outcome))
    attrs = _trials(url)[0].user_attrs
    assert (attrs["throughput"], attrs["ttft_p95"], attrs["launch"]) == (90.0, 0.2, "launch-1")


def test_the_baseline_counts_as_known(sampler: OptunaSampler) -> None:
    spec = tiny_spec()
    sampler.open(STUDY, replace(spec, engine=replace(spec.engine, context_defaults={"max_num_seqs": 32})))
    sampler.tell(measured(1, {"enforce_eager": True}, 10.0))
    proposed = [_config(sampler, trial_id) for trial_id in range(2, 7)]
    assert {"max_num_seqs": 32, "enforce_eager": True} not in proposed
    assert not isinstance(propose(sampler, 7), PointProposed)


def test_a_void_point_may_be_proposed_again(sampler: OptunaSampler) -> None:
    sampler.open(STUDY, tiny_spec())
    for trial_id in range(1, 7):
        sampler.tell(failed(trial_id, _config(sampler, trial_id), OutcomeClass.VOID))
    assert isinstance(propose(sampler, 7), PointProposed)


def test_abandoned_trials_are_closed_once(sampler: OptunaSampler, url: str) -> None:
    sampler.open(STUDY, tiny_spec())
    config = _config(sampler, 1)
    sampler.tell(measured(1, config, 1.0))
    _config(sampler, 2)
    sampler.abandon(STUDY, [1, 2, 3])
    sampler.abandon(STUDY, [2])
    assert sampler.running(STUDY) == ()
    assert [trial.state for trial in _trials(url)] == [TrialState.COMPLETE, TrialState.FAIL]


def test_a_point_that_cannot_be_repaired_is_told_with_its_amount(sampler: OptunaSampler, url: str) -> None:
    spec = tiny_spec()
    rule = CrossRule(left="max_num_seqs", relation="<=", right=20.0, reason="at most 20 while eager")
    rule = replace(rule, when=None)
    space = Space(
        parameters=(
            *(p for p in spec.space if p.name == "enforce_eager"),
            Parameter(name="n", kind=ParameterKind.INT, low=1, high=3),
        ),
        fixed={"max_num_seqs": 25},
        rules=(rule,),
    )
    sampler.open(STUDY, replace(spec, space=space))
    assert not isinstance(propose(sampler, 1), PointProposed)
    trials = _trials(url)
    assert trials
    assert {trial.user_attrs["message"] for trial in trials} == {"at most 20 while eager"}
    assert all(trial.constraints["other"] == pytest.approx(0.25) for trial in trials)
    assert all(trial.state is TrialState.COMPLETE for trial in trials)


def test_a_trial_added_by_hand_does_no_harm(url: str) -> None:
    storage = optuna.storages.RDBStorage(url)
    optuna.create_study(study_name=STUDY, storage=storage, direction="maximize").add_trial(
        optuna.trial.create_trial(value=1.0)
    )
    storage.remove_session()
    storage.engine.dispose()
    sampler = OptunaSampler(url)
    sampler.open(STUDY, tiny_spec())
    for trial_id in range(1, 7):
        sampler.tell(measured(trial_id, _config(sampler, trial_id), 1.0))
    sampler.close()
    assert [trial.number for trial in _trials(url)] == list(range(7))


def test_tpe_learns_from_failures(sampler: OptunaSampler) -> None:
    """Three quarters of the range run out of memory; after a while it is proposed less often than by chance."""
    space = Space(parameters=(Parameter(name="x", kind=ParameterKind.FLOAT, low=0.0, high=1.0),))
    sampler.open(STUDY, tiny_spec(space=space))
    crashes = []
    for trial_id in range(1, 31):
        config = _config(sampler, trial_id)
        bad = config["x"] > 0.25
        crashes.append(bad)
        sampler.tell(failed(trial_id, config) if bad else measured(trial_id, config, 100 * config["x"]))
    assert sum(crashes[10:]) < 13  # by chance: 15


def test_windows_keep_the_best_and_the_newest() -> None:
    history = [Observation(params={"x": i}, value=float(-i), constraints={"other": 0.0}) for i in range(100)]
    kept = [int(o.params["x"]) for o in window(history, "gp")]
    assert kept == [*range(40), *range(60, 100)]
    assert window(history, "random") == []
    assert len(window(history, "tpe")) == 100


def test_a_round_with_a_long_history_is_bounded() -> None:
    spec = mixed_spec()
    space = distributions(spec.space)
    point = {p.name: (p.choices[0] if p.choices else p.low) for p in spec.space}
    history = [
        Observation(params=point | {"max_num_seqs": 8 + i % 200}, value=float(i), constraints={"other": 0.0})  # type: ignore[arg-type]
        for i in range(600)
    ]
    round_ = Round("tpe", 1, space, history, {}, startup=5)
    assert set(round_.ask()) == set(space)


def test_bad_requests_are_typed_errors(sampler: OptunaSampler, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose one of tpe"):
        sampler.open(STUDY, tiny_spec(search=SearchPlan(sampler="annealing")))
    with pytest.raises(InternalError, match="was not opened"):
        propose(sampler, 1)
    with pytest.raises(StorageFault):
        OptunaSampler(f"sqlite:///{tmp_path / 'missing' / 'study.db'}")


def test_gp_without_torch_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EnvironmentFault, match="needs torch"):
        require_sampler("gp")
    require_sampler("tpe")


def test_optuna_is_imported_late() -> None:
    code = "import sys, autotuner.search.optuna_sampler; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_dashboard_serves_the_study(sampler: OptunaSampler, url: str) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    sampler.open(STUDY, tiny_spec())
    sampler.tell(measured(1, _config(sampler, 1), 42.0))
    sampler.tell(failed(2, _config(sampler, 2)))
    _config(sampler, 3)
    storage = optuna.storages.RDBStorage(url)
    app = dashboard.wsgi(storage)

    def get(path: str) -> tuple[str, Any]:
        seen: list[str] = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": io.StringIO(),
        }
        body = b"".join(app(environ, lambda status, _headers, _exc=None: seen.append(status)))
        return seen[0], json.loads(body)

    status, studies = get("/api/studies")
    assert status.startswith("200")
    (summary,) = studies["study_summaries"]
    assert summary["study_name"] == STUDY
    assert any("SIMULATED" in str(attr["value"]) for attr in summary["user_attrs"])
    status, detail = get(f"/api/studies/{summary['study_id']}")
    assert status.startswith("200")
    assert [trial["state"] for trial in detail["trials"]] == ["Complete", "Complete", "Running"]
    assert detail["trials"][0]["values"] == [42.0]
    storage.remove_session()
    storage.engine.dispose()
