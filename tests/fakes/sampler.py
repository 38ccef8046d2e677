"""A sampler without any cleverness: it walks over the space's grid in order, and keeps its memory in itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from autotuner.core.commands import Propose, Tell
from autotuner.core.events import NothingProposed, PointProposed
from autotuner.core.space import Config, Value, config_key
from autotuner.core.study import StudySpec
from autotuner.search.flat import FlatSpace, Frame

__all__ = ["FakeSampler"]


@dataclass(slots=True)
class _Study:
    spec: StudySpec
    points: dict[int, tuple[dict[str, Value], str]] = field(default_factory=dict)
    told: dict[int, Tell] = field(default_factory=dict)


@dataclass(slots=True)
class FakeSampler:
    """Implements ``Sampler``: seeds first, then the grid with three levels per parameter."""

    studies: dict[str, _Study] = field(default_factory=dict)
    abandoned: set[tuple[str, int]] = field(default_factory=set)

    def open(self, study_id: str, spec: StudySpec) -> None:
        """Create or keep the study's memory."""
        self.studies.setdefault(study_id, _Study(spec))

    def propose(self, request: Propose) -> PointProposed | NothingProposed:
        """Return the first point of the grid that is new and allowed."""
        study = self.studies[request.study_id]
        if request.trial_id not in study.points:
            known = {config_key(config) for config, _ in study.points.values()}
            known |= {config_key(tell.config) for tell in study.told.values()}
            found = next((c for c in self._candidates(study, request) if config_key(c[0]) not in known), None)
            if found is None:
                return NothingProposed(study_id=request.study_id, trial_id=request.trial_id)
            study.points[request.trial_id] = found
        config, source = study.points[request.trial_id]
        return PointProposed(study_id=request.study_id, trial_id=request.trial_id, config=dict(config), source=source)

    def tell(self, result: Tell) -> None:
        """Keep the first thing told about a trial."""
        self.studies[result.study_id].told.setdefault(result.trial_id, result)

    def abandon(self, study_id: str, trial_ids: Iterable[int]) -> None:
        """Keep the trials in mind: their points stay taken."""
        self.abandoned |= {(study_id, trial_id) for trial_id in trial_ids} - {
            (study_id, known) for known in self.studies[study_id].told
        }

    def told(self, study_id: str) -> dict[int, Tell]:
        """Return what was told, by trial."""
        return dict(self.studies[study_id].told)

    def _candidates(self, study: _Study, request: Propose) -> Iterator[tuple[dict[str, Value], str]]:
        flat, frame = FlatSpace.of(study.spec), Frame(fixed=request.fixed, ceiling=request.ceiling)
        if not frame.in_launch:
            for index, seed in enumerate(study.spec.seeds):
                if not flat.problem(seed):
                    yield dict(seed), f"seed:{index + 1}"
        for point in flat.points(frame, 3):
            repaired = flat.repair(point, frame)
            if repaired is not None:
                yield _plain(flat.configuration(repaired, frame)), "fake"


def _plain(config: Config) -> dict[str, Value]:
    return dict(config)
