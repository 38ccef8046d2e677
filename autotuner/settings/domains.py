"""Turns the domain that a user wrote for one parameter into a parameter of the space."""

from __future__ import annotations

import dataclasses

from autotuner.core.space import EngineDescription, Parameter, ParameterKind, Value
from autotuner.settings.flags import Findings, check_value
from autotuner.settings.study_file import DomainSection

__all__ = ["custom_parameter"]

_MAY_BE_OFF = ("speculative_config.method", "quantization")
"""Parameters whose choice ``none`` means that the flag is left out."""

Place = tuple[str | int, ...]


def custom_parameter(
    name: str,
    domain: DomainSection,
    automatic: Parameter | None,
    engine: EngineDescription,
    found: Findings,
    place: Place,
) -> Parameter | None:
    """Return the parameter, with what was left out taken from *automatic*; ``None`` after reporting problems."""
    if domain.choices is not None:
        return _choices(name, domain.choices, automatic, engine, found, place)
    kind = _numeric_kind(name, domain, automatic, engine)
    if kind is None:
        found.problem(place, None, f"{name} has no range", "give choices: [..]")
        return None
    return _range(name, kind, domain, automatic, found, place)


def _choices(
    name: str,
    written: list[Value],
    automatic: Parameter | None,
    engine: EngineDescription,
    found: Findings,
    place: Place,
) -> Parameter | None:
    absent = "none" if name in _MAY_BE_OFF and "none" in written else None
    checked = [value if value == absent else check_value(name, value, engine, found, place) for value in written]
    choices = tuple(value for value in checked if value is not None)
    if len(choices) < len(written):
        return None
    return Parameter(
        name=name,
        kind=ParameterKind.CHOICE,
        choices=choices,
        absent=absent,
        condition=automatic.condition if automatic is not None else None,
        neutral=automatic.neutral if automatic is not None else None,
    )


def _numeric_kind(
    name: str, domain: DomainSection, automatic: Parameter | None, engine: EngineDescription
) -> ParameterKind | None:
    flag = engine.flag(name)
    if "." not in name and flag is not None:
        return {"int": ParameterKind.INT, "float": ParameterKind.FLOAT}.get(flag.kind)
    if automatic is not None and automatic.kind is not ParameterKind.CHOICE:
        return automatic.kind
    ends = [end for end in (domain.low, domain.high, domain.step) if end is not None]
    return ParameterKind.INT if all(isinstance(end, int) for end in ends) else ParameterKind.FLOAT


def _range(
    name: str,
    kind: ParameterKind,
    domain: DomainSection,
    automatic: Parameter | None,
    found: Findings,
    place: Place,
) -> Parameter | None:
    numeric = automatic if automatic is not None and automatic.kind is not ParameterKind.CHOICE else None
    low = domain.low if domain.low is not None else numeric.low if numeric is not None else None
    high = domain.high if domain.high is not None else numeric.high if numeric is not None else None
    if low is None or high is None:
        found.problem(place, None, "no automatic end of the range exists", "give low and high")
        return None
    if low > high:
        found.problem(place, f"{low:g}..{high:g}", "low is above high (one of them is automatic)", "give both ends")
        return None
    if kind is ParameterKind.INT and (low != int(low) or high != int(high)):
        found.problem(place, f"{low:g}..{high:g}", f"{name} takes whole numbers", "give whole numbers")
        return None
    log = domain.log if domain.log is not None else numeric.log if numeric is not None and not domain.step else False
    if log and low <= 0:
        found.problem(place, f"{low:g}", "a logarithmic scale begins above 0", "give a positive low, or log: false")
        return None
    inherited = numeric.step if numeric is not None and domain.low is None else None
    step = None if log else domain.step if domain.step is not None else inherited
    base = numeric or Parameter(name=name, kind=kind)
    return dataclasses.replace(base, kind=kind, low=_end(kind, low), high=_end(kind, high), log=log, step=step)


def _end(kind: ParameterKind, value: float) -> float:
    return int(value) if kind is ParameterKind.INT else float(value)
