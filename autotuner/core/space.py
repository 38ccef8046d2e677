"""The search space as values: parameters, their domains, conditions and the rules across parameters.

A *configuration* is a mapping from parameter name to value.  Parameter names are the engine's own flag names with
underscores (``max_num_seqs``); parts of a JSON flag are addressed with a dot (``speculative_config.method``).
Absent means "the engine's default".  This module knows no engine: flags, types and choices come from
:class:`EngineFlag` records that the engine reported about itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "Condition",
    "Config",
    "CrossRule",
    "EngineDescription",
    "EngineFlag",
    "Lever",
    "Parameter",
    "ParameterKind",
    "Space",
    "Value",
    "config_key",
    "freeze",
]

Value = bool | int | float | str
Config = Mapping[str, Value]


class ParameterKind(StrEnum):
    """How a parameter's domain is described."""

    INT = "int"
    """Whole numbers in ``low..high``."""
    FLOAT = "float"
    """Real numbers in ``low..high``."""
    CHOICE = "choice"
    """One of ``choices`` (any scalar type; order is kept)."""


class Lever(StrEnum):
    """When a parameter can change (R8)."""

    COLD = "cold"
    """Only by restarting the engine."""
    HOT = "hot"
    """In a running engine as well, up to the value it was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The parameter exists only while ``parameter`` has one of ``values``."""

    parameter: str
    values: tuple[Value, ...]

    def holds(self, config: Config) -> bool:
        """Return whether the condition is met by *config*."""
        return config.get(self.parameter) in self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One dimension of the search."""

    name: str
    """Flag name with underscores; a dot addresses a part of a JSON flag."""
    kind: ParameterKind
    low: float | None = None
    high: float | None = None
    log: bool = False
    """Search on a logarithmic scale."""
    step: float | None = None
    """Grid of an INT or FLOAT; ``None`` means 1 for INT and continuous for FLOAT."""
    choices: tuple[Value, ...] = ()
    lever: Lever = Lever.COLD
    condition: Condition | None = None
    neutral: Value | None = None
    """Value that stands in the sampler's flat space while the condition does not hold."""
    absent: Value | None = None
    """The choice that stands for leaving the flag out (``none`` for a method that may be off)."""

    def contains(self, value: Value) -> bool:
        """Return whether *value* lies in the domain (grid included)."""
        if self.kind is ParameterKind.CHOICE:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind is ParameterKind.INT and not isinstance(value, int):
            return False
        if self.low is None or self.high is None or not (self.low <= value <= self.high):
            return False
        if self.step is None or self.log:
            return True
        steps = (value - self.low) / self.step
        return math.isclose(steps, round(steps), abs_tol=1e-9)

    def clip(self, value: float) -> Value:
        """Return the member of a numeric domain that is nearest to *value*."""
        assert self.low is not None and self.high is not None
        bounded = min(max(value, self.low), self.high)
        if self.step is not None and not self.log:
            last = math.floor((self.high - self.low) / self.step + 1e-9)
            bounded = round(self.low + min(round((bounded - self.low) / self.step), last) * self.step, 12)
        return round(bounded) if self.kind is ParameterKind.INT else float(bounded)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossRule:
    """``left >= right`` (or ``<=``) between two parameters, or a parameter and a number, when both are set."""

    left: str
    relation: str
    """``">="`` or ``"<="``."""
    right: str | float
    reason: str
    """Shown to the user when the rule is broken."""
    when: Condition | None = None
    factors: tuple[str, ...] = ()
    """Parameters that multiply ``left``; in such a product an unset one counts as 1."""

    def violation(self, config: Config) -> float:
        """Return the relative excess over the rule: 0.0 when it holds or does not apply."""
        if self.when is not None and not self.when.holds(config):
            return 0.0
        left = self._product(config) if self.factors else config.get(self.left)
        right = config.get(self.right) if isinstance(self.right, str) else self.right
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return 0.0
        short = float(right - left) if self.relation == ">=" else float(left - right)
        return max(0.0, short / max(abs(float(right)), 1.0))

    def _product(self, config: Config) -> float:
        product = 1.0
        for name in (self.left, *self.factors):
            value = config.get(name, 1)
            product *= value if isinstance(value, int | float) else 1
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlag:
    """One command-line flag as the engine reports it about itself."""

    name: str
    """Long name without dashes, underscores inside: ``max_num_seqs``."""
    kind: str
    """``int``, ``float``, ``str``, ``bool`` or ``json``."""
    choices: tuple[str, ...] = ()
    default: Value | None = None
    """The engine's default; ``None`` when unset or derived from the context."""
    negatable: bool = False
    """A ``--no-`` form exists."""
    aliases: tuple[str, ...] = ()
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """What an installed engine says about itself; cached by version."""

    kind: str
    """``vllm`` or ``simulated``."""
    version: str
    platform: str
    """``cpu``, ``cuda``, ``rocm``, …"""
    flags: tuple[EngineFlag, ...] = ()
    context_defaults: Mapping[str, Value] = field(default_factory=dict)
    """Defaults that depend on platform and memory (server usage): ``max_num_seqs``, ``max_num_batched_tokens`` …"""
    model: Mapping[str, Value] = field(default_factory=dict)
    """Facts of the model's own configuration, flattened: ``architecture``, ``max_position_embeddings``,
    ``num_attention_heads``, ``num_key_value_heads``, ``num_hidden_layers``, ``hidden_size``, ``is_moe``,
    ``has_mtp``, ``uses_mla``, ``weight_bytes``."""
    no_ops: Mapping[str, str] = field(default_factory=dict)
    """Flags that this platform accepts and ignores → the reason."""

    def flag(self, name: str) -> EngineFlag | None:
        """Return the flag called *name* (aliases count), or ``None``."""
        wanted = name.split(".", 1)[0]
        for flag in self.flags:
            if flag.name == wanted or wanted in flag.aliases:
                return flag
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Parameters, values that never change, and the rules across parameters."""

    parameters: tuple[Parameter, ...]
    fixed: Config = field(default_factory=dict)
    """Flags that every launch gets, searched or not."""
    rules: tuple[CrossRule, ...] = ()

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter called *name*, or ``None``."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)

    def active(self, config: Config) -> dict[str, Value]:
        """Return *config* without the parameters whose condition does not hold."""
        kept: dict[str, Value] = {}
        for name, value in config.items():
            parameter = self.parameter(name)
            if parameter is None or parameter.condition is None or parameter.condition.holds(config):
                kept[name] = value
        return kept

    def full(self, config: Config) -> dict[str, Value]:
        """Return the active *config* laid over the fixed flags: what the engine is started with."""
        full = {**self.fixed, **self.active(config)}
        return {name: value for name, value in full.items() if not self._left_out(name, value)}

    def _left_out(self, name: str, value: Value) -> bool:
        parameter = self.parameter(name)
        return parameter is not None and parameter.absent is not None and value == parameter.absent

    def hot_names(self) -> frozenset[str]:
        """Return the names of the hot parameters."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.lever is Lever.HOT)

    def cold_part(self, config: Config) -> dict[str, Value]:
        """Return the part of *config* that needs a restart to change."""
        hot = self.hot_names()
        return {name: value for name, value in config.items() if name not in hot}

    def violations(self, config: Config) -> dict[str, float]:
        """Return the broken rules' reasons with their relative excess; empty when *config* is allowed."""
        full = self.full(config)
        found = {rule.reason: rule.violation(full) for rule in self.rules}
        return {reason: amount for reason, amount in found.items() if amount > 0}


def freeze(config: Config) -> tuple[tuple[str, Value], ...]:
    """Return *config* as a sorted, hashable tuple."""
    return tuple(sorted(config.items()))


def config_key(config: Config) -> str:
    """Return a stable text that is equal exactly for equal configurations (types count)."""
    return ";".join(f"{name}={type(value).__name__}:{value!r}" for name, value in sorted(config.items()))
