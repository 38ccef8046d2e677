"""The decision core: whole studies, faults, restarts, and what may never happen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotuner.core import events as ev
from autotuner.core import race
from autotuner.core.lifecycle import StudyState, TrialState, is_final
from autotuner.core.results import VerdictKind
from autotuner.core.space import Lever
from autotuner.core.study import Effort, SearchPlan
from autotuner.core.trial import Assignment, Outcome, OutcomeClass, TrialKind
from autotuner.errors import IllegalTransition, StaleLease
from tests.fakes import studies
from tests.fakes.world import World, on_surface


def test_a_study_runs_its_plan_and_finds_the_better_configuration() -> None:
    world = World()
    world.submit(studies.spec(trials=12, limit=1.2))
    world.worker()
    world.run()
    study = world.machine.studies["s"]
    result = world.results["s"]
    assert study.state is StudyState.ENDED
    kinds = [t.kind for t in study.trials.values()]
    assert kinds[:3] == [TrialKind.BASELINE] * 3
    assert kinds.count(TrialKind.EXPLORE) == 11
    assert kinds.count(TrialKind.RACE) == 8
    assert result.complete
    assert result.verdict.kind in (VerdictKind.BETTER, VerdictKind.NO_DIFFERENCE)
    assert all(t.told for t in study.trials.values() if t.kind is TrialKind.EXPLORE)


def test_the_race_interleaves_baseline_and_finalist() -> None:
    world = World()
    world.submit(studies.spec(limit=None))
    world.worker()
    world.run()
    race = [t.key for t in world.machine.studies["s"].of_kind(TrialKind.RACE)]
    base, best = race[0], race[1]
    assert race == [base, best, best, base, base, best, best, base]


def test_hot_points_share_a_launch_whose_values_bound_them() -> None:
    world = World()
    world.submit(studies.spec())
    world.worker()
    groups: dict[int, list[Assignment]] = {}
    while (given := world.step()) is not None:
        if given.kind is TrialKind.EXPLORE:
            group = world.machine.studies["s"].trials[given.trial_id].group
            groups.setdefault(group, []).append(given)
    sizes = [len(points) for points in groups.values()]
    assert max(sizes) == 4
    for points in groups.values():
        assert len({p.launch_config["block_size"] for p in points}) == 1
        for point in points:
            assert point.launch_config["max_num_seqs"] == 128
            assert set(point.hot) == {"max_num_seqs", "max_num_batched_tokens"}


def test_a_worker_that_cannot_change_hot_parameters_gets_cold_launches() -> None:
    world = World()
    world.submit(studies.spec())
    world.worker(hot=False)
    while (given := world.step()) is not None:
        assert given.hot == {}
        assert given.launch_config == given.config


def test_a_restart_at_any_point_loses_nothing() -> None:
    world = World()
    world.submit(studies.spec(trials=6))
    world.worker()
    steps = 0
    while True:
        world.effects()
        held = world.assignment()
        holding = ((held.study_id, held.trial_id, held.attempt),) if held is not None and steps % 2 else ()
        world.restart()
        world.worker(held=holding)
        steps += 1
        if world.step() is None:
            break
        assert steps < 100
    study = world.machine.studies["s"]
    assert study.state is StudyState.ENDED
    assert len(study.of_kind(TrialKind.EXPLORE)) == 5
    assert all(t.state is TrialState.MEASURED for t in study.trials.values())


def test_a_stale_attempt_is_refused_and_changes_nothing() -> None:
    world = World()
    world.submit(studies.spec())
    world.worker()
    world.effects()
    first = world.assignment()
    assert first is not None
    world.worker()  # a new life of the worker that does not hold it
    second = world.assignment()
    assert second is not None
    assert (second.trial_id, second.attempt) == (first.trial_id, first.attempt + 1)
    before = world.machine.story("s", first.trial_id)
    with pytest.raises(StaleLease, match="not the current one"):
        world.post(ev.TrialCompleted(outcome=on_surface(first)))
    assert world.machine.story("s", first.trial_id) == before
    world.post(ev.TrialCompleted(outcome=on_surface(second)))
    assert world.machine.is_replay(on_surface(second))


def test_a_lease_ends_only_after_its_full_time_without_contact() -> None:
    world = World()
    world.submit(studies.spec())
    world.worker("a")
    world.effects()
    given = world.assignment("a")
    assert given is not None
    world.now += 599
    world.post(None)
    assert world.assignment("a") is not None
    world.now += 2
    world.post(None)
    world.worker("b")
    again = world.assignment("b")
    assert again is not None
    assert (again.trial_id, again.attempt) == (given.trial_id, 2)


@pytest.mark.parametrize("kind", [OutcomeClass.VOID, OutcomeClass.INFRASTRUCTURE])
def test_a_fault_that_is_not_the_configurations_is_tried_again_and_never_told(kind: OutcomeClass) -> None:
    world = World(answer=lambda given: studies.failed(given, kind) if given.trial_id == 5 else on_surface(given))
    world.submit(studies.spec())
    world.worker()
    world.run()
    trial = world.machine.studies["s"].trials[5]
    assert (trial.state, trial.attempt) == (TrialState.FAILED, 2)
    assert ("s", 5) not in world.tells


def test_a_configuration_that_runs_out_of_memory_is_told_as_a_constraint() -> None:
    def answer(given: Assignment) -> Outcome:
        fails = given.kind is TrialKind.EXPLORE and given.config["block_size"] == 16
        return studies.failed(given, OutcomeClass.OOM_UNDER_LOAD) if fails else on_surface(given)

    world = World(answer=answer)
    world.submit(studies.spec(trials=20))
    world.worker()
    world.run()
    told = [t for t in world.tells.values() if t.outcome and t.outcome.outcome is OutcomeClass.OOM_UNDER_LOAD]
    assert told
    assert all(t.value is None and t.constraints == (("oom_under_load", 3.0),) for t in told)
    winner = world.results["s"].winner
    assert winner is not None
    assert winner.config["block_size"] != 16


def test_out_of_memory_in_a_raised_launch_gets_a_launch_of_its_own() -> None:
    def answer(given: Assignment) -> Outcome:
        big = given.kind is TrialKind.EXPLORE and given.launch_config.get("max_num_seqs") == 128
        return studies.failed(given, OutcomeClass.OOM_AT_START) if big else on_surface(given)

    world = World(answer=answer)
    world.submit(studies.spec(trials=4))
    world.worker()
    world.run()
    explored = world.machine.studies["s"].of_kind(TrialKind.EXPLORE)
    assert all(t.state is TrialState.MEASURED and t.attempt == 2 for t in explored)


def test_out_of_memory_in_a_launch_that_was_not_raised_is_not_tried_again() -> None:
    def answer(given: Assignment) -> Outcome:
        fails = given.kind is TrialKind.EXPLORE
        return studies.failed(given, OutcomeClass.OOM_AT_START) if fails else on_surface(given)

    top = tuple(replace(p, low=p.high) if p.lever is Lever.HOT else p for p in studies.SPACE)
    world = World(answer=answer)
    world.submit(studies.spec(trials=3, space=replace(studies.SPACE, parameters=top)))
    world.worker()
    world.run()
    explored = world.machine.studies["s"].of_kind(TrialKind.EXPLORE)
    assert [(t.state, t.attempt) for t in explored] == [(TrialState.FAILED, 1)] * 2


def test_when_nothing_ever_starts_the_study_stops_by_itself() -> None:
    world = World(answer=lambda given: studies.failed(given, OutcomeClass.INFEASIBLE_CONFIG, "no such model"))
    world.submit(studies.spec(trials=50))
    world.worker()
    world.run()
    result = world.results["s"]
    assert result.stopped == "nothing_starts"
    assert result.verdict.kind is VerdictKind.INFEASIBLE
    assert "no such model" in result.verdict.reason
    assert result.winner is None


def test_nothing_within_the_budget_is_said_plainly_with_what_binds() -> None:
    world = World()
    world.submit(studies.spec(limit=0.001))
    world.worker()
    world.run()
    verdict = world.results["s"].verdict
    assert verdict.kind is VerdictKind.INFEASIBLE
    assert verdict.binding == ("ttft_p95",)
    assert verdict.gain is None


def test_equal_configurations_are_no_difference() -> None:
    world = World(answer=lambda given: studies.complete(given, 500.0 + given.trial_id % 3))
    world.submit(studies.spec())
    world.worker()
    world.run()
    result = world.results["s"]
    assert result.verdict.kind is VerdictKind.NO_DIFFERENCE
    assert result.winner == result.baseline


def test_a_baseline_outside_the_budget_loses_to_a_slower_point_that_keeps_it() -> None:
    world = World()
    world.submit(studies.spec(limit=0.5, trials=20))  # the baseline's 128 sequences need 1.28 s
    world.worker()
    world.run()
    result = world.results["s"]
    assert result.verdict.kind is VerdictKind.BETTER
    assert "baseline breaks ttft_p95" in result.verdict.reason
    assert result.winner is not None
    assert int(result.winner.config["max_num_seqs"]) <= 50


def test_a_stop_drops_what_runs_and_publishes_partial_results_and_a_resume_goes_on() -> None:
    world = World()
    world.submit(studies.spec(trials=10))
    world.worker()
    for _ in range(5):
        world.step()
    world.effects()
    running = world.assignment()
    assert running is not None
    world.post(ev.StopRequested(study_id="s", reason=ev.StopReason.USER))
    nothing, cancel = world.machine.desired("w", (("s", running.trial_id, running.attempt),))
    assert nothing is None
    assert cancel == (("s", running.trial_id, running.attempt),)
    world.post(ev.TrialCompleted(outcome=studies.failed(running, OutcomeClass.CANCELLED)))
    world.effects()
    assert world.results["s"].stopped == "user"
    assert not world.results["s"].complete
    assert world.results["s"].points == 5
    world.post(ev.StudyResumed(study_id="s"))
    world.run()
    study = world.machine.studies["s"]
    assert study.state is StudyState.ENDED
    assert len(study.of_kind(TrialKind.EXPLORE)) == 9
    assert world.results["s"].complete


def test_the_wall_time_leaves_room_for_the_race() -> None:
    world = World()
    world.submit(studies.spec(trials=1000, wall_seconds=600))
    world.worker()
    world.run()
    result = world.results["s"]
    assert result.complete
    assert result.wall_seconds <= 600
    assert any(t.kind is TrialKind.RACE for t in result.trials)
    assert 5 < sum(t.kind is TrialKind.EXPLORE for t in result.trials) < 60


def test_a_hopeless_point_is_refused_without_a_launch() -> None:
    world = World()
    world.submit(studies.spec())
    world.worker()
    world.effects()
    for _ in range(2):
        world.step()
    last_baseline = world.assignment()
    assert last_baseline is not None
    world.post(ev.TrialCompleted(outcome=on_surface(last_baseline)))
    bad = {"block_size": 16, "max_num_seqs": 100, "max_num_batched_tokens": 64}
    world.post(ev.PointProposed(study_id="s", trial_id=4, config=bad, source="planted"))
    refused = world.machine.studies["s"].trials[4]
    assert (refused.state, refused.attempt) == (TrialState.REFUSED, 0)
    world.effects()
    assert world.tells["s", 4].constraints[0][0] == "max_num_batched_tokens must be at least max_num_seqs"
    world.run()
    assert world.results["s"].complete


def test_two_workers_share_a_study_and_never_a_trial() -> None:
    world = World()
    world.submit(studies.spec(trials=16))
    world.worker("a")
    world.worker("b")
    seen: set[tuple[str, int]] = set()
    for _ in range(200):
        world.effects()
        pair = [world.assignment("a"), world.assignment("b")]
        held = [(p.study_id, p.trial_id) for p in pair if p is not None]
        assert len(held) == len(set(held))
        seen.update(held)
        if not held:
            break
        for name in ("a", "b"):
            world.step(name)
    assert world.machine.studies["s"].state is StudyState.ENDED


def test_an_event_that_the_life_cycle_does_not_allow_is_refused_with_the_story() -> None:
    world = World()
    world.submit(studies.spec())
    world.worker()
    world.effects()
    with pytest.raises(IllegalTransition, match="does not allow"):
        world.post(ev.TrialLeased(study_id="s", trial_id=1, worker_id="x", attempt=9, epoch=1))


def test_final_states_are_those_without_a_way_on() -> None:
    assert {s for s in TrialState if is_final(s)} == {
        TrialState.MEASURED,
        TrialState.FAILED,
        TrialState.REFUSED,
        TrialState.ABANDONED,
    }


def test_every_finalist_is_raced_in_every_round() -> None:
    world = World()
    world.submit(studies.spec(limit=None, trials=15, search=SearchPlan(finalists=3, race_pairs=2)))
    world.worker()
    world.run()
    study = world.machine.studies["s"]
    field = len(study.heats[0].members)
    assert field == 1 + min(3, len(race.candidates(study)))
    assert field > 2
    keys = [t.key for t in study.of_kind(TrialKind.RACE)]
    assert keys == [*keys[:field], *reversed(keys[:field])]
    assert len(set(keys)) == field


def test_a_void_race_measurement_is_made_up_for() -> None:
    void: set[int] = set()

    def answer(given: Assignment) -> Outcome:
        if given.kind is TrialKind.RACE and (given.trial_id in void or len(void) < 2):
            void.add(given.trial_id)
            return studies.failed(given, OutcomeClass.VOID)
        return on_surface(given)

    world = World(answer=answer)
    world.submit(studies.spec(limit=None))
    world.worker()
    world.run()
    assert len(void) == 2
    assert world.results["s"].verdict.pairs == 4


def test_a_race_on_a_host_that_measures_nothing_ends() -> None:
    def answer(given: Assignment) -> Outcome:
        return studies.failed(given, OutcomeClass.VOID) if given.kind is TrialKind.RACE else on_surface(given)

    world = World(answer=answer)
    world.submit(studies.spec(limit=None))
    world.worker()
    world.run()
    assert world.results["s"].verdict.kind is VerdictKind.INCONCLUSIVE


def test_a_baseline_that_could_not_be_measured_is_tried_again_and_never_taken_for_a_bad_one() -> None:
    def answer(given: Assignment) -> Outcome:
        base = given.config == {"max_model_len": 1024}
        return studies.failed(given, OutcomeClass.VOID) if base else on_surface(given)

    world = World(answer=answer)
    world.submit(studies.spec(limit=None))
    world.worker()
    world.run()
    assert len(world.machine.studies["s"].of_kind(TrialKind.BASELINE)) == 6
    assert world.results["s"].verdict.kind is VerdictKind.INCONCLUSIVE


def test_a_baseline_that_does_not_start_loses_to_any_point_that_keeps_the_budget() -> None:
    def answer(given: Assignment) -> Outcome:
        base = given.config == {"max_model_len": 1024}
        return studies.failed(given, OutcomeClass.OOM_AT_START) if base else on_surface(given)

    world = World(answer=answer)
    world.submit(studies.spec(limit=None))
    world.worker()
    world.run()
    verdict = world.results["s"].verdict
    assert (verdict.kind, verdict.gain) == (VerdictKind.BETTER, None)
    assert "does not work here" in verdict.reason


def test_a_study_in_which_nothing_started_may_be_resumed_when_the_fault_is_mended() -> None:
    broken = [True]

    def answer(given: Assignment) -> Outcome:
        return studies.failed(given, OutcomeClass.INFRASTRUCTURE) if broken else on_surface(given)

    world = World(answer=answer)
    world.submit(studies.spec(limit=None))
    world.worker()
    world.run()
    assert world.results["s"].stopped == "infrastructure"
    broken.clear()
    world.post(ev.StudyResumed(study_id="s"))
    world.run()
    assert world.results["s"].complete
    assert world.results["s"].points > 10


def test_a_raised_budget_explores_more_and_races_again() -> None:
    world = World()
    world.submit(studies.spec(trials=5, limit=None))
    world.worker()
    world.run()
    first = len(world.machine.studies["s"].trials)
    world.post(ev.StudyResumed(study_id="s", effort=Effort(trials=14)))
    world.run()
    study = world.machine.studies["s"]
    assert len(study.of_kind(TrialKind.EXPLORE)) == 13
    assert len(study.heats) == 2
    assert any(t.kind is TrialKind.RACE and t.trial_id > first for t in study.trials.values())


def test_a_plan_without_a_single_measurement_is_not_complete_and_may_be_tried_again() -> None:
    broken = [True]

    def answer(given: Assignment) -> Outcome:
        return studies.failed(given, OutcomeClass.OOM_AT_START) if broken else on_surface(given)

    world = World(answer=answer)
    world.submit(studies.spec(trials=3, limit=None))
    world.worker()
    world.run()
    assert (world.results["s"].complete, world.results["s"].stopped) == (False, "nothing_measured")
    broken.clear()
    world.post(ev.StudyResumed(study_id="s"))
    world.run()
    assert world.results["s"].complete
    assert len(world.machine.studies["s"].of_kind(TrialKind.BASELINE)) == 3


def test_all_points_of_a_round_see_the_same_schedule() -> None:
    world = World()
    world.submit(studies.spec(limit=None))
    world.worker()
    seeds: dict[tuple[int, int], set[int]] = {}
    while (given := world.step()) is not None:
        trial = world.machine.studies["s"].trials[given.trial_id]
        seeds.setdefault((trial.heat, trial.round), set()).add(given.seed)
    assert all(len(used) == 1 for used in seeds.values())
    assert len({seed for used in seeds.values() for seed in used}) == len(seeds) == 5
