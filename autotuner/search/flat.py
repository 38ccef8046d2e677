"""The flat space: every parameter has a value in every point, and nothing here knows a sampler.

A sampler works best when all points have the same coordinates.  A *flat* point therefore gives each parameter a
value: one whose condition does not hold has its neutral value, one that a configuration leaves to the engine has the
engine's default (or the member of the domain nearest to it).  A *configuration* is the other direction: the active
part of a flat point, which is what the engine is started with.

Chance is an argument (``random.Random``), so equal seeds give equal points.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from autotuner.core.space import Config, CrossRule, Parameter, ParameterKind, Space, Value, config_key
from autotuner.core.study import StudySpec

__all__ = ["FlatSpace", "Frame", "levels", "snap"]

_REPAIR_PASSES = 8
_LEVELS_MAX = 100_000


def snap(parameter: Parameter, value: Value | None) -> Value:
    """Return the member of the parameter's domain that is nearest to *value* (its first member without a value)."""
    if parameter.kind is ParameterKind.CHOICE:
        for choice in parameter.choices:
            if choice == value and type(choice) is type(value):
                return choice
        number = _number(value)
        distances = [
            (abs(n - number), c) for c in parameter.choices if number is not None and (n := _number(c)) is not None
        ]
        return min(distances, key=lambda pair: pair[0])[1] if distances else parameter.choices[0]
    number = _number(value)
    low, high = _bounds(parameter)
    if number is None:
        number = low
    value = parameter.clip(min(max(number, low), high))
    return float(f"{value:.10g}") if isinstance(value, float) else value


def levels(parameter: Parameter, count: int) -> tuple[Value, ...]:
    """Return at most *count* members of the domain, spread over it (on its own scale), without repeats."""
    if parameter.kind is ParameterKind.CHOICE:
        return parameter.choices
    low, high = _bounds(parameter)
    size = _size(parameter)
    number = count if size is None else min(count, size)
    if number <= 1 or low == high:
        return (snap(parameter, low),)
    shares = [index / (number - 1) for index in range(number)]
    if parameter.log:
        values = [math.exp(math.log(low) + share * (math.log(high) - math.log(low))) for share in shares]
    else:
        values = [low + share * (high - low) for share in shares]
    return tuple(dict.fromkeys(snap(parameter, value) for value in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a proposal must respect: nothing for a free choice, the running launch otherwise."""

    fixed: Config = field(default_factory=dict)
    """Values that must stay; a cold parameter that is missing here stays the engine's default."""
    ceiling: Config = field(default_factory=dict)
    """Largest values of the hot parameters."""

    @property
    def in_launch(self) -> bool:
        """Return whether the proposal is for an engine that already runs."""
        return bool(self.fixed) or bool(self.ceiling)


@dataclass(frozen=True, slots=True)
class FlatSpace:
    """The flat view of a study's space."""

    space: Space
    defaults: Mapping[str, Value]
    """The engine's own defaults of searched parameters, where it reports them."""

    @classmethod
    def of(cls, spec: StudySpec) -> FlatSpace:
        """Return the flat view of *spec*'s space."""
        defaults: dict[str, Value] = {}
        for parameter in spec.space:
            default: Value | None = spec.engine.context_defaults.get(parameter.name)
            if default is None and "." not in parameter.name and parameter.name not in spec.space.fixed:
                flag = spec.engine.flag(parameter.name)
                default = flag.default if flag is not None else None
            if default is not None:
                defaults[parameter.name] = default
        return cls(spec.space, defaults)

    def flatten(self, config: Config) -> dict[str, Value]:
        """Return the flat point of *config*: every parameter with a member of its domain."""
        active = self.active(config)
        flat: dict[str, Value] = {}
        for parameter in self.space:
            value = active.get(parameter.name)
            if value is None:
                value = self.defaults.get(parameter.name) if self._applies(parameter, active) else None
            if value is None:
                value = parameter.neutral
            flat[parameter.name] = snap(parameter, value)
        return flat

    def neutralise(self, flat: Config) -> dict[str, Value]:
        """Return *flat* on its grids and with the neutral value in the place of every inactive parameter."""
        active = self.active(flat)
        return {
            parameter.name: snap(parameter, flat[parameter.name])
            if parameter.name in active
            else snap(parameter, parameter.neutral if parameter.neutral is not None else None)
            for parameter in self.space
        }

    def active(self, config: Config) -> dict[str, Value]:
        """Return *config* without inactive parameters, those that hang on inactive ones included."""
        kept = dict(config)
        while True:
            again = self.space.active(kept)
            if again == kept:
                return again
            kept = again

    def configuration(self, flat: Config, frame: Frame) -> dict[str, Value]:
        """Return the configuration of a flat point within *frame*."""
        if not frame.in_launch:
            return self.active(flat)
        hot = self.space.hot_names()
        kept = {name: value for name, value in flat.items() if name in hot and name not in frame.fixed}
        searched = {name: value for name, value in frame.fixed.items() if self.space.parameter(name) is not None}
        return self.active({**searched, **kept})

    def key(self, config: Config) -> str:
        """Return a text that is equal for configurations that the engine would run alike.

        Values equal to the engine's default and values equal to the fixed flags make no difference.
        """
        active = self.active(config)
        own = {name: value for name, value in active.items() if self.space.fixed.get(name) != value}
        for parameter in self.space:
            if parameter.name not in own and self._applies(parameter, active):
                default = self.defaults.get(parameter.name)
                if default is not None and parameter.name not in self.space.fixed:
                    own[parameter.name] = default
        return config_key(own)

    def problem(self, config: Config) -> str:
        """Return why *config* lies outside of the space; empty when it lies inside."""
        for name, value in config.items():
            parameter = self.space.parameter(name)
            if parameter is None:
                if self.space.fixed.get(name) != value:
                    return f"{name} is not searched"
            elif not parameter.contains(value):
                return f"{name} = {value!r} is outside of its domain"
        return "; ".join(self.space.violations(config))

    def cap(self, parameter: Parameter, frame: Frame) -> float | None:
        """Return the largest value that a hot parameter may take within *frame*; ``None`` without a bound."""
        if not frame.in_launch or parameter.name not in self.space.hot_names():
            return None
        return _number(frame.ceiling.get(parameter.name, self.defaults.get(parameter.name)))

    def free(self, frame: Frame) -> tuple[Parameter, ...]:
        """Return the parameters that a proposal within *frame* may choose."""
        if not frame.in_launch:
            return self.space.parameters
        hot = self.space.hot_names()
        return tuple(p for p in self.space if p.name in hot and p.name not in frame.fixed and self.allowed(p, frame))

    def pinned(self, frame: Frame) -> dict[str, Value]:
        """Return the flat values that a proposal within *frame* must not touch."""
        if not frame.in_launch:
            return {}
        free = {parameter.name for parameter in self.free(frame)}
        base = self.flatten({**frame.ceiling, **frame.fixed})
        return {name: value for name, value in base.items() if name not in free}

    def allowed(self, parameter: Parameter, frame: Frame) -> bool:
        """Return whether *parameter* has any member below its cap."""
        cap = self.cap(parameter, frame)
        if cap is None:
            return True
        if parameter.kind is ParameterKind.CHOICE:
            return any((_number(choice) is None or (_number(choice) or 0.0) <= cap) for choice in parameter.choices)
        return parameter.low is not None and parameter.low <= cap

    def within_caps(self, flat: Config, frame: Frame) -> bool:
        """Return whether no free hot value exceeds its cap."""
        return not self._over(flat, frame)

    def lower(self, flat: Config, frame: Frame, rng: random.Random) -> dict[str, Value]:
        """Return *flat* with every value above its cap replaced by a random member below it."""
        lowered = dict(flat)
        for parameter in self._over(flat, frame):
            lowered[parameter.name] = self.random_value(parameter, frame, rng)
        return lowered

    def random_value(self, parameter: Parameter, frame: Frame, rng: random.Random) -> Value:
        """Return a random member of the domain below the cap, uniform on the parameter's own scale."""
        cap = self.cap(parameter, frame)
        if parameter.kind is ParameterKind.CHOICE:
            choices = [c for c in parameter.choices if cap is None or (_number(c) or 0.0) <= cap]
            return rng.choice(choices or list(parameter.choices))
        low, high = _bounds(parameter)
        high = high if cap is None else max(low, min(high, cap))
        if parameter.log:
            value = math.exp(rng.uniform(math.log(low), math.log(high)))
        else:
            half = (parameter.step or (1.0 if parameter.kind is ParameterKind.INT else 0.0)) / 2
            value = rng.uniform(low - half, high + half)
        return _at_most(parameter, min(max(value, low), high), cap)

    def random_point(self, frame: Frame, rng: random.Random) -> dict[str, Value]:
        """Return a random flat point within *frame*."""
        point = self.pinned(frame)
        for parameter in self.free(frame):
            point[parameter.name] = self.random_value(parameter, frame, rng)
        return self.neutralise(point)

    def neighbour(self, flat: Config, frame: Frame, rng: random.Random) -> dict[str, Value]:
        """Return *flat* with one or two free values changed at random."""
        free = self.free(frame)
        point = dict(flat)
        for parameter in rng.sample(free, min(len(free), rng.choice((1, 1, 2)))):
            point[parameter.name] = self.random_value(parameter, frame, rng)
        return self.neutralise(point)

    def size(self, frame: Frame) -> int | None:
        """Return the number of flat points within *frame*; ``None`` when it is not finite."""
        total = 1
        for parameter in self.free(frame):
            count = _size(self._narrowed(parameter, frame))
            if count is None:
                return None
            total *= count
        return total

    def points(self, frame: Frame, count: int = _LEVELS_MAX) -> Iterator[dict[str, Value]]:
        """Yield the flat points within *frame* of the grid with at most *count* levels per numeric parameter."""
        pinned, free = self.pinned(frame), self.free(frame)
        axes = [levels(self._narrowed(parameter, frame), count) for parameter in free]
        for values in itertools.product(*axes):
            yield self.neutralise({**pinned, **{p.name: v for p, v in zip(free, values, strict=True)}})

    def repair(self, flat: Config, frame: Frame) -> dict[str, Value] | None:
        """Return a point near *flat* that breaks no rule, or ``None`` when moving single values does not get there."""
        point = dict(flat)
        for _ in range(_REPAIR_PASSES):
            config = self.configuration(point, frame)
            broken = [rule for rule in self.space.rules if rule.violation(self.space.full(config)) > 0]
            if not broken:
                return self.neutralise(point)
            if not self._mend(broken[0], point, frame):
                return None
        return None

    def _mend(self, rule: CrossRule, point: dict[str, Value], frame: Frame) -> bool:
        """Move one side of *rule* in place so that it holds; return whether that was possible."""
        full = self.space.full(self.configuration(point, frame))
        right = full.get(rule.right) if isinstance(rule.right, str) else rule.right
        left = full.get(rule.left)
        free = {parameter.name: parameter for parameter in self.free(frame)}
        moves = [(rule.left, _number(right), rule.relation == ">=")]
        if isinstance(rule.right, str):
            moves.append((rule.right, _number(left), rule.relation == "<="))
        for name, target, upwards in moves:
            parameter = free.get(name)
            if parameter is None or target is None:
                continue
            value = _at_least(parameter, target) if upwards else _at_most(parameter, target, target)
            trial = {**point, name: value}
            within = self.within_caps({name: value}, frame)
            if within and rule.violation(self.space.full(self.configuration(trial, frame))) <= 0:
                point[name] = value
                return True
        return False

    def _narrowed(self, parameter: Parameter, frame: Frame) -> Parameter:
        """Return *parameter* without the members above its cap."""
        cap = self.cap(parameter, frame)
        if cap is None:
            return parameter
        if parameter.kind is ParameterKind.CHOICE:
            kept = tuple(c for c in parameter.choices if (n := _number(c)) is None or n <= cap)
            return replace(parameter, choices=kept or parameter.choices[:1])
        low, high = _bounds(parameter)
        return replace(parameter, high=max(low, min(high, cap)))

    def _over(self, flat: Config, frame: Frame) -> list[Parameter]:
        found = []
        for parameter in self.free(frame):
            cap, number = self.cap(parameter, frame), _number(flat.get(parameter.name))
            if cap is not None and number is not None and number > cap:
                found.append(parameter)
        return found

    def _applies(self, parameter: Parameter, active: Config) -> bool:
        return parameter.condition is None or parameter.condition.holds(active)


def _number(value: Value | None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _bounds(parameter: Parameter) -> tuple[float, float]:
    """Return the smallest and the largest member of a numeric domain (the grid's own last point)."""
    assert parameter.low is not None and parameter.high is not None
    if parameter.step is None or parameter.log:
        return parameter.low, parameter.high
    steps = math.floor((parameter.high - parameter.low) / parameter.step + 1e-9)
    return parameter.low, parameter.low + steps * parameter.step


def _size(parameter: Parameter) -> int | None:
    if parameter.kind is ParameterKind.CHOICE:
        return len(parameter.choices)
    low, high = _bounds(parameter)
    step = parameter.step if not parameter.log else None
    if step is None:
        if parameter.kind is ParameterKind.FLOAT:
            return None if low < high else 1
        step = 1.0
    return round((high - low) / step) + 1


def _at_least(parameter: Parameter, target: float) -> Value:
    """Return the smallest member not below *target*, or the largest member."""
    if parameter.kind is ParameterKind.CHOICE:
        numeric = [c for c in parameter.choices if (n := _number(c)) is not None and n >= target]
        return min(numeric, key=lambda c: _number(c) or 0.0) if numeric else snap(parameter, target)
    value = snap(parameter, target)
    step = parameter.step or (1.0 if parameter.kind is ParameterKind.INT else 0.0)
    number = _number(value)
    return snap(parameter, number + step) if number is not None and number < target else value


def _at_most(parameter: Parameter, target: float, cap: float | None) -> Value:
    """Return the member nearest to *target* that does not exceed *cap*, or the smallest member."""
    if parameter.kind is ParameterKind.CHOICE:
        bound = math.inf if cap is None else cap
        numeric = [c for c in parameter.choices if (n := _number(c)) is not None and n <= bound]
        return max(numeric, key=lambda c: _number(c) or 0.0) if numeric else snap(parameter, target)
    value = snap(parameter, target)
    step = parameter.step or (1.0 if parameter.kind is ParameterKind.INT else 0.0)
    number = _number(value)
    return snap(parameter, number - step) if number is not None and cap is not None and number > cap else value
