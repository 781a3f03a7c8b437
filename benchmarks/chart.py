"""Charts in SVG: bars by contender, and curves, on logarithmic scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from benchmarks.measurements import Curves, Point

OURS = "#2f6f4f"
COLOURS = {"hermes-exec": OURS, "naive": "#c9a13b", "host": "#8a8f98", "in the container": "#8a8f98"}
LINES = {"hermes-exec, local": OURS, "hermes-exec, Docker": "#3f7fbf", "host": "#8a8f98", "in the container": "#b9683b"}
OTHER = "#b9683b"
WIDTH = 760
LEFT, RIGHT, PANEL = 70, 730, 220


def bars(panels: Sequence[tuple[str, str, Mapping[str, float]]]) -> str:
    """Draw panels of bars, each with a title, a number format and values by name."""
    height = sum(24 * len(values) + 50 for _, _, values in panels) + 10
    parts: list[str] = []
    y = 30
    for title, form, values in panels:
        parts.append(_text(20, y, f"{title} (logarithmic)", 'font-weight="bold"'))
        y = _bars(parts, y, form, values) + 50
    return _svg(height, parts)


def _bars(parts: list[str], y: int, form: str, values: Mapping[str, float]) -> int:
    low, high = log10(min(values.values()) / 2), log10(max(values.values()))
    for name, value in values.items():
        y += 24
        width = max(2, round(380 * (log10(value) - low) / max(high - low, 0.01)))
        parts.append(_text(255, y, name, 'text-anchor="end"'))
        parts.append(f'<rect x="265" y="{y - 13}" width="{width}" height="17" rx="2" fill="{_colour(COLOURS, name)}"/>')
        parts.append(_text(272 + width, y, form.format(value)))
    return y


def curves(all_of: Curves) -> str:
    """Draw latency above (p50 solid, p95 dashed) and throughput below."""
    parts = [_text(20, 26, all_of.title, 'font-weight="bold"')]
    for number, name in enumerate(all_of.lines):
        x, y = 20 + 365 * (number % 2), 50 + 20 * (number // 2)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="18" height="4" fill="{_colour(LINES, name)}"/>')
        parts.append(_text(x + 26, y, name))
    top = 60 + 20 * ceil(len(all_of.lines) / 2)
    latency: list[tuple[str, Callable[[Point], float]]] = [
        ("", lambda point: point.p50_ms),
        (' stroke-dasharray="5 4"', lambda point: point.p95_ms),
    ]
    _panel(parts, top, "milliseconds, p50 and (broken) p95", all_of, latency)
    _panel(parts, top + PANEL + 60, "calls a second", all_of, [("", lambda point: point.per_second)])
    return _svg(top + 2 * (PANEL + 60) + 10, parts)


def _panel(
    parts: list[str], top: int, title: str, all_of: Curves, drawn: list[tuple[str, Callable[[Point], float]]]
) -> None:
    points = [point for line in all_of.lines.values() for point in line]
    numbers = sorted({point.x for point in points})
    values = [value(point) for _, value in drawn for point in points]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    bottom = top + 20 + PANEL - 20

    def place_x(number: float) -> float:
        return LEFT + (RIGHT - LEFT) * log10(number / numbers[0]) / max(log10(numbers[-1] / numbers[0]), 0.01)

    def place_y(value: float) -> float:
        return bottom - (PANEL - 20) * (log10(value) - low) / max(high - low, 1)

    parts.append(_text(20, top + 10, title))
    for power in range(low, high + 1):
        y = place_y(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{y:.0f}" x2="{RIGHT}" y2="{y:.0f}" stroke="#e3e3e3"/>')
        parts.append(_text(LEFT - 8, round(y) + 4, f"{10.0**power:,g}", 'text-anchor="end" font-size="11"'))
    middle = 'text-anchor="middle" font-size="11"'
    parts += [_text(round(place_x(number)), bottom + 16, f"{number:,}", middle) for number in numbers]
    parts.append(_text(RIGHT, bottom + 32, all_of.x_label, 'text-anchor="end" font-size="11"'))
    for name, line in all_of.lines.items():
        colour = _colour(LINES, name)
        for style, value in drawn:
            path = " ".join(f"{place_x(point.x):.1f},{place_y(value(point)):.1f}" for point in line)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{style}/>')
        for point in line:
            x, y = place_x(point.x), place_y(drawn[0][1](point))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')


def _colour(colours: Mapping[str, str], name: str) -> str:
    return next((colour for word, colour in colours.items() if word in name), OTHER)


def _text(x: int, y: int, text: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}"{" " if style else ""}{style}>{escape(text)}</text>'


def _svg(height: int, parts: list[str]) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13"'
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', ground, *parts, "</svg>\n"])
