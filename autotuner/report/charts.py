"""Charts as inline SVG: pure functions from figures to text.  Colours come from the page's style sheet by class.

Shapes differ as well as colours, and every mark has a ``<title>``, so that no information is in colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from autotuner.report.figures import Status, number

__all__ = [
    "Axis",
    "Mark",
    "Series",
    "gain_chart",
    "history_chart",
    "marker",
    "parts_chart",
    "scatter_chart",
    "windows_chart",
]

_WIDTH, _HEIGHT = 720.0, 280.0
_HALF = 460.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 18.0, 14.0, 46.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One point of a chart."""

    x: float
    y: float | None
    """``None`` puts the mark on the chart's foot: nothing was measured."""
    status: Status
    title: str
    role: str = ""
    """``winner``, ``baseline`` or empty: rings the mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line over windows of equal length."""

    name: str
    style: str
    """``winner`` or ``baseline``."""
    values: tuple[float, ...]
    step: float
    """Seconds per window."""
    warmup: float
    """Seconds until the measured part."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale from data to pixels, with round ticks."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, *, zero: bool = False) -> Axis:
        """Return an axis that holds *values* with a margin, and zero when asked."""
        finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = low - abs(low) * 0.1 - 0.5, high + abs(high) * 0.1 + 0.5
        margin = (high - low) * 0.08
        return cls(low if zero and low == 0 else low - margin, high + margin, start, end)

    def at(self, value: float) -> float:
        """Return the pixel of *value*."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Return at most about *count* round numbers inside the axis."""
        raw = (self.high - self.low) / max(count, 1)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1.0, 2.0, 2.5, 5.0, 10.0) if power * m >= raw * 0.999)
        first = math.ceil(self.low / step)
        return [round(i * step, 10) for i in range(first, math.floor(self.high / step) + 1)]


def history_chart(marks: Sequence[Mark], best: Sequence[float | None], unit: str) -> str:
    """Return the objective per trial with the best so far."""
    x = Axis(0.3, max((mark.x for mark in marks), default=1.0) + 0.7, _LEFT, _WIDTH - _RIGHT)
    values = [mark.y for mark in marks if mark.y is not None]
    y = Axis.around(values, _HEIGHT - _BOTTOM, _TOP, zero=not values)
    parts = [_frame(x, y, "trial", unit, whole=True)]
    steps = [(mark.x, value) for mark, value in zip(marks, best, strict=True) if value is not None]
    if steps:
        path = f"M{x.at(steps[0][0]):.1f},{y.at(steps[0][1]):.1f}"
        path += "".join(f"H{x.at(at):.1f}V{y.at(value):.1f}" for at, value in steps[1:])
        path += f"H{_WIDTH - _RIGHT:.1f}"
        parts.append(
            f'<path class="line-best" d="{path}"><title>best so far: {number(steps[-1][1])} {escape(unit)}</title></path>'
        )
    parts += [_placed(mark, x, y) for mark in marks]
    return _svg("Objective of every trial, and the best so far", parts)


def scatter_chart(marks: Sequence[Mark], x_label: str, y_label: str, limit: float | None, limit_name: str) -> str:
    """Return latency (x) against throughput (y) with the limit drawn."""
    shown = [mark for mark in marks if mark.y is not None]
    xs = [mark.x for mark in shown] + ([limit] if limit is not None else [])
    x = Axis.around(xs, _LEFT, _HALF - _RIGHT)
    y = Axis.around([mark.y for mark in shown if mark.y is not None], _HEIGHT - _BOTTOM, _TOP)
    parts = [_frame(x, y, x_label, y_label)]
    if limit is not None:
        at, foot = x.at(limit), _HEIGHT - _BOTTOM
        parts.append(
            f'<rect class="over" x="{at:.1f}" y="{_TOP}" width="{_HALF - _RIGHT - at:.1f}" height="{foot - _TOP:.1f}"/>'
        )
        parts.append(
            f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{foot}"><title>{escape(limit_name)}</title></line>'
        )
        anchor = "end" if at > _HALF * 0.6 else "start"
        shift = -6 if anchor == "end" else 6
        parts.append(f'<text x="{at + shift:.1f}" y="{_TOP + 12}" text-anchor="{anchor}">limit {limit:.6g}</text>')
    parts += [_placed(mark, x, y) for mark in shown]
    return _svg(f"{y_label} against {x_label}", parts, _HALF)


def windows_chart(series: Sequence[Series], unit: str) -> str:
    """Return throughput per window of some trials, the warm-up of each marked by a thin upright line."""
    times = [len(one.values) * one.step for one in series]
    x = Axis(0.0, max([*times, 1.0]), _LEFT, _WIDTH - _RIGHT)
    y = Axis.around([v for one in series for v in one.values], _HEIGHT - _BOTTOM, _TOP, zero=True)
    parts = [_frame(x, y, "seconds since the first request", unit)]
    for one in series:
        points = " ".join(
            f"{x.at((i + 0.5) * one.step):.1f},{y.at(v):.1f}" for i, v in enumerate(one.values) if math.isfinite(v)
        )
        parts.append(
            f'<polyline class="line-{one.style}" points="{points}"><title>{escape(one.name)}</title></polyline>'
        )
        at = x.at(min(one.warmup, x.high))
        foot = _HEIGHT - _BOTTOM
        row = foot - (10 if one.style == "winner" else 28)
        anchor, shift = ("end", -6) if at > _WIDTH * 0.7 else ("start", 6)
        parts.append(
            f'<line class="mark-{one.style}" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{foot}"/>'
            f'<text x="{at + shift:.1f}" y="{row:.1f}" text-anchor="{anchor}">'
            f"{escape(one.name)}: measured from {one.warmup:.1f} s on</text>"
        )
    return _svg("Throughput per window, warm-up included", parts)


def gain_chart(gain: float, low: float, high: float, floor: float | None) -> str:
    """Return the gain with its interval on a line with zero and the noise floor."""
    width, height, middle = 720.0, 84.0, 34.0
    values = [0.0, gain, low, high, *([floor, -floor] if floor is not None else [])]
    x = Axis.around(values, 20.0, width - 20.0)
    parts = []
    if floor is not None:
        left, right = x.at(-floor), x.at(floor)
        parts.append(
            f'<rect class="over" style="fill:var(--soft);opacity:.16" x="{left:.1f}" y="10" width="{right - left:.1f}" height="48"><title>noise floor: ±{floor * 100:.1f} %</title></rect>'
        )
    for tick in x.ticks(7):
        parts.append(f'<line class="grid" x1="{x.at(tick):.1f}" x2="{x.at(tick):.1f}" y1="10" y2="58"/>')
        parts.append(f'<text x="{x.at(tick):.1f}" y="75" text-anchor="middle">{_signed(tick)} %</text>')
    parts.append(f'<line class="axis" x1="{x.at(0):.1f}" x2="{x.at(0):.1f}" y1="6" y2="60"/>')
    title = f"gain {gain * 100:+.1f} %, interval {low * 100:+.1f} % to {high * 100:+.1f} %"
    parts.append(
        f'<line class="line-winner" style="stroke-width:6;stroke-linecap:round;opacity:.45" x1="{x.at(low):.1f}" x2="{x.at(high):.1f}" y1="{middle}" y2="{middle}"><title>{title}</title></line>'
        f'<circle class="f-winner" cx="{x.at(gain):.1f}" cy="{middle}" r="7"><title>{title}</title></circle>'
    )
    return _svg(title, parts, width, height)


def parts_chart(parts: Sequence[tuple[str, float]]) -> str:
    """Return the latency budget's parts (name, seconds) as one bar with its legend."""
    width, height = 720.0, 26.0
    total = sum(seconds for _, seconds in parts) or 1.0
    at, bars, items = 0.0, [], []
    for index, (name, seconds) in enumerate(parts):
        share = seconds / total * width
        label, style = escape(f"{name} {seconds * 1000:.4g} ms"), f"part{index % 5 + 1}"
        bars.append(
            f'<rect class="{style}" x="{at:.1f}" y="2" width="{max(share - 2, 1):.1f}" height="22" rx="3">'
            f"<title>{label}</title></rect>"
        )
        swatch = f'<svg viewBox="0 0 18 14" aria-hidden="true"><rect class="{style}" x="2" y="1" width="14" height="12" rx="3"/></svg>'
        items.append(f"<li>{swatch}{label}</li>")
        at += share
    legend = f'<ul class="legend">{"".join(items)}</ul>'
    return _svg(f"Latency budget of {total * 1000:.4g} ms", bars, width, height) + legend


def marker(status: Status, x: float, y: float, title: str = "") -> str:
    """Return the shape of *status* at a pixel: disc, triangle, cross or square."""
    inner = f"<title>{escape(title)}</title>" if title else ""
    if status is Status.FEASIBLE:
        return f'<circle class="m-feasible" cx="{x:.1f}" cy="{y:.1f}" r="4.6">{inner}</circle>'
    if status is Status.INFEASIBLE:
        path = f"M{x:.1f},{y - 5.5:.1f}l5.5,9.6h-11z"
        return f'<path class="m-infeasible" d="{path}">{inner}</path>'
    if status in (Status.FAILED, Status.REFUSED):
        path = f"M{x - 4:.1f},{y - 4:.1f}l8,8m0,-8l-8,8"
        return f'<path class="m-failed" d="{path}">{inner}</path>'
    return f'<rect class="m-void" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8">{inner}</rect>'


def _signed(share: float) -> str:
    return f"{share * 100:+g}" if share else "0"


def _placed(mark: Mark, x: Axis, y: Axis) -> str:
    px = x.at(mark.x)
    py = y.at(mark.y) if mark.y is not None else _HEIGHT - _BOTTOM - 7
    shape = marker(mark.status, px, py, mark.title)
    if mark.role:
        shape += f'<circle class="m-{mark.role}" cx="{px:.1f}" cy="{py:.1f}" r="9"><title>{escape(mark.title)}</title></circle>'
    return shape


def _frame(x: Axis, y: Axis, x_label: str, y_label: str, *, whole: bool = False) -> str:
    foot, right = _HEIGHT - _BOTTOM, x.end
    parts = []
    for tick in y.ticks():
        at = y.at(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{tick:,.6g}</text>')
    for tick in x.ticks(10 if whole else round((right - _LEFT) / 90)):
        if whole and tick != int(tick):
            continue
        at = x.at(tick)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{foot}" y2="{foot + 4}"/>')
        parts.append(f'<text x="{at:.1f}" y="{foot + 18}" text-anchor="middle">{tick:,.6g}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{foot}" y2="{foot}"/>')
    parts.append(
        f'<text class="strong" x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    middle = (_TOP + foot) / 2
    parts.append(
        f'<text class="strong" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _svg(label: str, parts: Sequence[str], width: float = _WIDTH, height: float = _HEIGHT) -> str:
    body = "\n".join(parts)
    kind = ' class="wide"' if height == _HEIGHT and width == _WIDTH else ""
    svg = f'<svg{kind} viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">\n{body}\n</svg>'
    return f'<div class="scroll">{svg}</div>' if kind else svg
