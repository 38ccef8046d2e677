"""Builds the search space from what the engine says about itself and what the study asks for.

Nothing disappears silently: every parameter of the catalogue gets an :class:`Explanation`, and whatever was asked for
and cannot be had is a problem or a note.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotuner.core.space import Config, Lever, Parameter, ParameterKind, Space, Value
from autotuner.settings.catalog import BY_NAME, CATALOG, HOT, METHOD, METHOD_NEEDS, propose
from autotuner.settings.context import Proposal, SpaceContext
from autotuner.settings.domains import custom_parameter
from autotuner.settings.flags import Findings, check_value, no_op, resolve_name
from autotuner.settings.gates import cross_rules, impossible, unfit_here
from autotuner.settings.study_file import DomainSection, SpaceSection

__all__ = ["BuiltSpace", "Explanation", "build_space", "describe_domain"]

_PLACE = ("search", "space")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why one parameter is searched or not."""

    name: str
    searched: bool
    reason: str
    domain: str = ""
    """The searched values in short, such as ``4..64 log``; empty when it is not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSpace:
    """The space with its explanation."""

    space: Space
    explanations: tuple[Explanation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """The user's section with canonical names."""

    auto: bool
    domains: Mapping[str, tuple[str, DomainSection]]
    """Canonical name → name as written, domain."""
    include: frozenset[str]
    exclude: frozenset[str]

    @property
    def named(self) -> frozenset[str]:
        return self.include | self.domains.keys()


def build_space(context: SpaceContext, section: SpaceSection, baseline: Config, found: Findings) -> BuiltSpace:
    """Return the space of a study; problems and notes go to *found*.

    Flags of *baseline* that are not searched are fixed, so that every launch keeps what is in production.
    """
    wish = _wish(section, context, found)
    pinned = _pinned(wish, context, found)
    context = dataclasses.replace(context, fixed={**context.fixed, **pinned})
    context = _settle(context, wish)
    parameters: list[Parameter] = []
    explanations: list[Explanation] = []
    for name in [*CATALOG, *sorted(wish.named - CATALOG.keys())]:
        parameter, reason = _decide(name, wish, context, found)
        if parameter is not None:
            parameters.append(parameter)
        text = describe_domain(parameter) if parameter is not None else ""
        explanations.append(Explanation(name=name, searched=parameter is not None, reason=reason, domain=text))
    if not parameters and not found.problems:
        found.problem(_PLACE, None, "nothing is left to search", "list parameters, or write space: auto")
    searched = frozenset(parameter.name for parameter in parameters)
    kept = {name: value for name, value in baseline.items() if name not in searched and name not in context.fixed}
    if kept:
        found.note(
            f"kept in every launch, as in the baseline: {', '.join(f'{n}={v}' for n, v in sorted(kept.items()))}"
        )
    fixed = {**kept, **context.fixed}
    rules = cross_rules(context, fixed, searched)
    return BuiltSpace(
        space=Space(parameters=tuple(parameters), fixed=fixed, rules=rules), explanations=tuple(explanations)
    )


def _wish(section: SpaceSection, context: SpaceContext, found: Findings) -> _Wish:
    domains: dict[str, tuple[str, DomainSection]] = {}
    for written, domain in section.parameters.items():
        name = resolve_name(written, context.engine, found, (*_PLACE, written))
        if name is not None:
            domains[name] = (written, domain)
    lists: dict[str, frozenset[str]] = {}
    for key, names in (("include", section.include), ("exclude", section.exclude)):
        resolved = [resolve_name(n, context.engine, found, (*_PLACE, key, i)) for i, n in enumerate(names)]
        lists[key] = frozenset(name for name in resolved if name is not None)
    include = lists["include"]
    if METHOD in include | domains.keys():  # a method cannot run without them
        needs = METHOD_NEEDS if context.draft is not None else METHOD_NEEDS[:1]
        include |= {name for name in needs if name not in context.fixed and name not in domains}
    return _Wish(auto=section.auto, domains=domains, include=include, exclude=lists["exclude"])


def _pinned(wish: _Wish, context: SpaceContext, found: Findings) -> dict[str, Value]:
    """Return the parameters with one fixed value; report those that engine.args fixes as well."""
    pinned: dict[str, Value] = {}
    for name, (written, domain) in wish.domains.items():
        place = (*_PLACE, written)
        if name in context.fixed:
            value = context.fixed[name]
            found.problem(place, None, f"fixed at {value} in engine.args and searched as well", "remove one of the two")
        elif domain.fixed is not None:
            value_or_none = check_value(name, domain.fixed, context.engine, found, place)
            refusal = impossible(name, value_or_none, context) if value_or_none is not None else None
            if refusal is not None:
                found.problem(place, domain.fixed, *refusal)
            elif value_or_none is not None:
                pinned[name] = value_or_none
    return pinned


def _settle(context: SpaceContext, wish: _Wish) -> SpaceContext:
    """Return the context with the names that will be searched: proposals may depend on each other's presence."""
    names = wish.named - wish.exclude - context.fixed.keys()
    if wish.auto:
        chosen = {name for name in CATALOG if propose(name, context).auto and name not in wish.exclude}
        names |= chosen
    names = frozenset(
        name for name in names if name in wish.domains or propose(name, context).parameter or name != METHOD
    )
    return dataclasses.replace(context, searched=frozenset(names))


def _decide(name: str, wish: _Wish, context: SpaceContext, found: Findings) -> tuple[Parameter | None, str]:
    proposal = propose(name, context)
    if name in wish.exclude:
        return None, "excluded by the study"
    if name in context.fixed:
        return None, proposal.reason if name not in wish.domains else f"fixed at {context.fixed[name]} by the study"
    if name in wish.named and no_op(context.engine, name) is not None:
        found.note(f"{name} is not searched: {proposal.reason}")
        return None, proposal.reason
    if name in wish.domains:
        return _custom(name, wish, proposal, context, found)
    if name in wish.include:
        if proposal.parameter is None and name in CATALOG:
            found.note(f"{name} is not searched: {proposal.reason}")
        elif proposal.parameter is None:
            found.problem((*_PLACE, "include"), name, "it has no automatic domain", "give low and high, or choices")
        return proposal.parameter, proposal.reason.replace(BY_NAME, "")
    if not wish.auto:
        return None, f"not listed by the study ({proposal.reason})"
    return (proposal.parameter if proposal.auto else None), proposal.reason


def _custom(
    name: str, wish: _Wish, proposal: Proposal, context: SpaceContext, found: Findings
) -> tuple[Parameter | None, str]:
    written, domain = wish.domains[name]
    place = (*_PLACE, written)
    if domain.fixed is not None:
        return None, "its value has problems"
    parameter = custom_parameter(name, domain, proposal.parameter, context.engine, found, place)
    if parameter is None:
        return None, "its domain has problems"
    parameter = dataclasses.replace(parameter, lever=Lever.HOT if name in HOT else Lever.COLD)
    if parameter.kind is ParameterKind.CHOICE:
        kept = tuple(_usable(parameter, context, found, place))
        if not kept:
            found.note(f"{name} is not searched: this device can use none of its values")
            return None, "this device can use none of its values"
        parameter = dataclasses.replace(parameter, choices=kept)
    else:
        for end in (parameter.low, parameter.high):
            refusal = impossible(name, end, context) if end is not None and name != "block_size" else None
            if refusal is not None:
                found.problem(place, end, *refusal)
    return _neutral_inside(parameter), "listed by the study"


def _usable(parameter: Parameter, context: SpaceContext, found: Findings, place: tuple[str, ...]) -> Iterator[Value]:
    for value in parameter.choices:
        refusal = impossible(parameter.name, value, context)
        unfit = unfit_here(parameter.name, value, context) or no_op(context.engine, parameter.name, value)
        if refusal is not None:
            found.problem(place, value, *refusal)
        if unfit is not None:
            found.note(f"{parameter.name}={value} is not searched: {unfit}")
        else:
            yield value


def _neutral_inside(parameter: Parameter) -> Parameter:
    if parameter.condition is None or (parameter.neutral is not None and parameter.contains(parameter.neutral)):
        return parameter
    neutral = parameter.choices[0] if parameter.choices else parameter.clip(parameter.low or 0)
    return dataclasses.replace(parameter, neutral=neutral)


def describe_domain(parameter: Parameter) -> str:
    """Return the values of *parameter* in short."""
    if parameter.kind is ParameterKind.CHOICE:
        return ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in parameter.choices)
    scale = " log" if parameter.log else f" step {parameter.step:g}" if parameter.step else ""
    low, high = parameter.low or 0.0, parameter.high or 0.0
    return f"{low:.10g}..{high:.10g}{scale}"
