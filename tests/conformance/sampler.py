"""What every ``Sampler`` must do.  Subclass ``SamplerConformance`` in a test module and give it ``make``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from autotuner.core.commands import Propose, Tell
from autotuner.core.events import NothingProposed, PointProposed
from autotuner.core.space import (
    Condition,
    Config,
    CrossRule,
    EngineDescription,
    EngineFlag,
    Lever,
    Parameter,
    Space,
    config_key,
)
from autotuner.core.space import ParameterKind as Kind
from autotuner.core.study import Effort, SearchPlan, StudySpec
from autotuner.core.trial import Outcome, OutcomeClass
from autotuner.ports import Sampler

__all__ = ["STUDY", "SamplerConformance", "failed", "measured", "mixed_spec", "propose", "tiny_spec"]

STUDY = "study-1"


def mixed_spec(**changes: object) -> StudySpec:
    """Return a study with every kind of parameter, a condition and a rule."""
    space = Space(
        parameters=(
            Parameter(name="max_num_seqs", kind=Kind.INT, low=8, high=256, log=True, lever=Lever.HOT),
            Parameter(name="max_num_batched_tokens", kind=Kind.INT, low=128, high=4096, step=128, lever=Lever.HOT),
            Parameter(name="gpu_memory_utilization", kind=Kind.FLOAT, low=0.5, high=0.95, step=0.05),
            Parameter(name="block_size", kind=Kind.CHOICE, choices=(16, 32, 64)),
            Parameter(name="enable_prefix_caching", kind=Kind.CHOICE, choices=(True, False)),
            Parameter(name="speculative_config.method", kind=Kind.CHOICE, choices=("none", "ngram"), neutral="none"),
            Parameter(
                name="speculative_config.num_speculative_tokens",
                kind=Kind.INT,
                low=1,
                high=8,
                neutral=1,
                condition=Condition(parameter="speculative_config.method", values=("ngram",)),
            ),
        ),
        fixed={"dtype": "float16"},
        rules=(
            CrossRule(
                left="max_num_batched_tokens",
                relation=">=",
                right="max_num_seqs",
                reason="max_num_batched_tokens must not be below max_num_seqs",
            ),
        ),
    )
    engine = EngineDescription(
        kind="vllm",
        version="0.32.0",
        platform="cpu",
        flags=(EngineFlag(name="block_size", kind="int", default=16),),
        context_defaults={"max_num_seqs": 128, "max_num_batched_tokens": 2048},
    )
    spec = StudySpec(name="mixed", model="m", engine=engine, space=space, search=SearchPlan(seed=7))
    return replace(spec, **changes)  # type: ignore[arg-type]


def tiny_spec(**changes: object) -> StudySpec:
    """Return a study with six points, one of which breaks a rule that cannot be repaired within a launch."""
    space = Space(
        parameters=(
            Parameter(name="max_num_seqs", kind=Kind.CHOICE, choices=(16, 32, 64), lever=Lever.HOT),
            Parameter(name="enforce_eager", kind=Kind.CHOICE, choices=(True, False)),
        ),
    )
    engine = EngineDescription(kind="simulated", version="1", platform="cpu")
    spec = StudySpec(name="tiny", model="m", engine=engine, space=space, search=SearchPlan(seed=3))
    return replace(spec, **changes)  # type: ignore[arg-type]


def propose(
    sampler: Sampler, trial_id: int, fixed: Config | None = None, ceiling: Config | None = None
) -> PointProposed | NothingProposed:
    """Ask for the point of a trial."""
    return sampler.propose(Propose(study_id=STUDY, trial_id=trial_id, fixed=fixed or {}, ceiling=ceiling or {}))


def measured(trial_id: int, config: Config, value: float, amounts: Sequence[tuple[str, float]] = ()) -> Tell:
    """Return the end of a trial that was measured."""
    outcome = Outcome(study_id=STUDY, trial_id=trial_id, attempt=1, epoch=1, outcome=OutcomeClass.COMPLETE)
    return Tell(
        study_id=STUDY, trial_id=trial_id, config=config, value=value, constraints=tuple(amounts), outcome=outcome
    )


def failed(trial_id: int, config: Config, kind: OutcomeClass = OutcomeClass.OOM_AT_START) -> Tell:
    """Return the end of a trial that was not measured."""
    outcome = Outcome(study_id=STUDY, trial_id=trial_id, attempt=1, epoch=1, outcome=kind, message="no memory")
    return Tell(study_id=STUDY, trial_id=trial_id, config=config, value=None, constraints=(), outcome=outcome)


def _point(answer: PointProposed | NothingProposed) -> PointProposed:
    assert isinstance(answer, PointProposed), answer
    return answer


class SamplerConformance:
    """The suite; ``make`` returns a new sampler with an empty memory."""

    sampler_name = "tpe"

    @pytest.fixture
    def sampler(self, make: Sampler) -> Sampler:
        """Return the sampler under test; subclasses provide ``make``."""
        return make

    def spec(self, base: StudySpec) -> StudySpec:
        """Return *base* with the sampler's name in it."""
        return replace(base, search=replace(base.search, sampler=self.sampler_name))

    def test_points_lie_in_the_space_and_break_no_rule(self, sampler: Sampler) -> None:
        spec = self.spec(mixed_spec())
        sampler.open(STUDY, spec)
        for trial_id in range(1, 11):
            config = _point(propose(sampler, trial_id)).config
            for name, value in config.items():
                parameter = spec.space.parameter(name)
                assert parameter is not None
                assert parameter.contains(value), (name, value)
            assert not spec.space.violations(config)
            assert spec.space.active(config) == config
            sampler.tell(measured(trial_id, config, 100.0 + trial_id))

    def test_asking_again_answers_the_same(self, sampler: Sampler) -> None:
        sampler.open(STUDY, self.spec(mixed_spec()))
        first = _point(propose(sampler, 1))
        assert propose(sampler, 1) == first
        sampler.tell(measured(1, first.config, 5.0))
        assert propose(sampler, 1) == first

    def test_opening_again_keeps_the_memory(self, sampler: Sampler) -> None:
        spec = self.spec(mixed_spec())
        sampler.open(STUDY, spec)
        first = _point(propose(sampler, 1))
        sampler.open(STUDY, spec)
        assert propose(sampler, 1) == first

    def test_no_point_twice(self, sampler: Sampler) -> None:
        sampler.open(STUDY, self.spec(mixed_spec()))
        configs = [_point(propose(sampler, trial_id)).config for trial_id in range(1, 9)]
        assert len({config_key(config) for config in configs}) == len(configs)

    def test_a_small_space_is_exhausted_and_says_so(self, sampler: Sampler) -> None:
        sampler.open(STUDY, self.spec(tiny_spec()))
        keys = set()
        for trial_id in range(1, 7):
            config = _point(propose(sampler, trial_id)).config
            keys.add(config_key(config))
            sampler.tell(measured(trial_id, config, float(trial_id)))
        assert len(keys) == 6
        assert propose(sampler, 7) == NothingProposed(study_id=STUDY, trial_id=7)

    def test_seeds_come_first_and_bad_ones_are_skipped(self, sampler: Sampler) -> None:
        seeds = (
            {"max_num_seqs": 32, "enforce_eager": True},
            {"max_num_seqs": 33, "enforce_eager": True},
            {"max_num_seqs": 32, "enforce_eager": True},
            {"max_num_seqs": 64, "enforce_eager": False},
        )
        sampler.open(STUDY, self.spec(tiny_spec(seeds=seeds)))
        first, second, third = (_point(propose(sampler, trial_id)) for trial_id in (1, 2, 3))
        assert (first.config, first.source) == (seeds[0], "seed:1")
        assert (second.config, second.source) == (seeds[3], "seed:4")
        assert not third.source.startswith("seed")

    def test_within_a_launch_the_cold_part_stays_and_the_ceiling_holds(self, sampler: Sampler) -> None:
        spec = self.spec(mixed_spec(seeds=({"max_num_seqs": 200},)))
        sampler.open(STUDY, spec)
        cold: Config = {"gpu_memory_utilization": 0.9, "block_size": 32}
        ceiling: Config = {"max_num_seqs": 40, "max_num_batched_tokens": 512}
        for trial_id in range(1, 6):
            answer = _point(propose(sampler, trial_id, cold, ceiling))
            assert spec.space.cold_part(answer.config) == cold
            assert {n: v for n, v in answer.config.items() if n in ceiling}.keys() == ceiling.keys()
            assert int(answer.config["max_num_seqs"]) <= 40
            assert int(answer.config["max_num_batched_tokens"]) <= 512
            assert not spec.space.violations(answer.config)
            sampler.tell(measured(trial_id, answer.config, 10.0))

    def test_failures_and_refusals_and_unknown_trials_can_be_told(self, sampler: Sampler) -> None:
        sampler.open(STUDY, self.spec(mixed_spec()))
        sampler.tell(measured(1, {}, 80.0, [("error_ratio", -1.0)]))
        config = _point(propose(sampler, 2)).config
        sampler.tell(failed(2, config))
        config = _point(propose(sampler, 3)).config
        refused = Tell(
            study_id=STUDY, trial_id=3, config=config, value=None, constraints=(("memory", 0.4),), outcome=None
        )
        sampler.tell(refused)
        sampler.tell(refused)
        for trial_id, kind in enumerate(OutcomeClass, start=4):
            if kind is not OutcomeClass.COMPLETE:
                config = _point(propose(sampler, trial_id)).config
                sampler.tell(failed(trial_id, config, kind))
        assert isinstance(propose(sampler, 40), PointProposed)

    def test_effort_does_not_bound_the_sampler(self, sampler: Sampler) -> None:
        sampler.open(STUDY, self.spec(tiny_spec(effort=Effort(trials=1))))
        assert isinstance(propose(sampler, 1), PointProposed)
        assert isinstance(propose(sampler, 2), PointProposed)
