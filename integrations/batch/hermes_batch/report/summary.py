"""The upper part of a report: figures, causes, tools, estimates and histograms."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from hermes_batch.groups import Estimate
from hermes_batch.report.html import Markup, element, join
from hermes_batch.report.statistics import ReportStatistics
from hermes_batch.status_words import format_cost, format_count, format_duration
from hermes_batch.tally import Tally

_Show = Callable[[float], str]
_BINS = 24
_MOST_ERRORS = 15
_CAUSES = {
    "policy": "the model",
    "task": "the task's data",
    "infra": "the sandbox, the stream or this library",
    "provider": "a service behind it, such as the model's endpoint",
    "config": "a setting",
    "budget": "a limit of turns, calls or tokens",
    "cancelled": "cancellation",
}


def summary_cards(tally: Tally, total: int, seconds: float) -> Markup:
    """Return the main figures and the bar of outcomes."""
    outcomes = tally.outcomes
    checked = outcomes["solved"] + outcomes["unsolved"]
    tokens = format_count(tally.prompt_tokens + tally.completion_tokens)
    figures = [
        (f"{outcomes['solved']} of {checked}", "solved"),
        (str(outcomes["unscored"]), "unscored"),
        *([(str(outcomes["unchecked"]), "unchecked")] if outcomes["unchecked"] else []),
        (f"{tally.records} of {total}", "done"),
        (format_count(tally.tool_calls), "tool calls"),
        (tokens, f"tokens, {format_count(tally.completion_tokens)} written"),
        *([(format_cost(tally.cost), "cost")] if tally.cost else []),
        (format_duration(seconds), "wall time"),
    ]
    cards = join(*(element("div", element("b", figure), element("span", name), cls="card") for figure, name in figures))
    shares = [(name, count) for name, count in outcomes.items() if count]
    bar = join(
        *(element("i", "", cls=name, style=f"flex-grow:{count}", title=f"{count} {name}") for name, count in shares)
    )
    return element("section", element("div", cards, cls="cards"), element("div", bar, cls="bar"))


def estimate_table(estimates: dict[str, Estimate]) -> Markup:
    """Return the table of pass@k and the mean reward, with standard errors."""
    rows = [
        (
            name,
            f"{estimate.mean:.3f}",
            "-" if estimate.error is None else f"± {estimate.error:.3f}",
            str(estimate.prompts),
        )
        for name, estimate in estimates.items()
    ]
    return table("Estimates over prompts", "estimates", ("Estimate", "Mean", "Standard error", "Prompts"), rows)


def failure_tables(tally: Tally) -> Markup:
    """Return the tables of causes and of errors that prevent a score."""
    causes = [(cause, _CAUSES.get(cause, ""), end, str(count)) for (cause, end), count in tally.ends.most_common()]
    errors = [(kind, tally.examples[kind], str(count)) for kind, count in tally.errors.most_common()]
    return join(
        table("Not solved, by cause", "causes", ("Cause", "Meaning", "Ended by", "Records"), causes),
        table("Unscored, by error", "errors", ("Error", "First message", "Records"), errors),
    )


def tool_tables(figures: ReportStatistics) -> Markup:
    """Return the tables of tools and of the errors of their calls."""
    tools = sorted(figures.tools.items(), key=lambda item: -item[1].calls)
    rows = [
        (
            name,
            f"{tool.failures} ({100 * tool.failures / tool.calls:.1f} %)",
            f"{tool.seconds / tool.calls:.2f} s",
            str(tool.calls),
        )
        for name, tool in tools
    ]
    errors = sorted(
        ((count, name, kind) for name, tool in tools for kind, count in tool.errors.items()),
        key=lambda error: (-error[0], *error[1:]),
    )
    return join(
        table("Tools", "tools", ("Tool", "Failed calls", "Mean time", "Calls"), rows),
        table(
            "Errors of tool calls",
            "tool-errors",
            ("Tool", "Error", "Calls"),
            [(name, kind, str(count)) for count, name, kind in errors[:_MOST_ERRORS]],
        ),
    )


def table(title: str, cls: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a section with a table, or nothing if there are no rows."""
    if not rows:
        return Markup("")
    head = element("tr", *(element("th", name) for name in names))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows)
    content = element("table", element("thead", head), element("tbody", *body), cls=cls)
    return element("section", element("h2", title), element("div", content, cls="wide"))


def histograms(figures: ReportStatistics) -> Markup:
    """Return the histograms of turns, tokens, seconds and cost."""
    if not figures.turns:
        return Markup("")
    charts = [
        _histogram("Turns", figures.turns, lambda value: f"{value:.0f}"),
        _histogram("Tokens", figures.tokens, lambda value: format_count(int(value))),
        _histogram("Seconds", figures.seconds, format_duration),
        *([_histogram("Cost", figures.costs, format_cost)] if any(figures.costs) else []),
    ]
    return element("section", element("h2", "Distribution"), element("div", *charts, cls="charts"))


def _histogram(title: str, values: Sequence[float], show: _Show) -> Markup:
    """Return a histogram up to the 99th percentile. Its last bar has all larger values."""
    ordered = sorted(values)
    top = _percentile(ordered, 0.99) or 1.0
    counts = [0] * _BINS
    for value in ordered:
        counts[min(_BINS - 1, int(value / top * _BINS))] += 1
    bars = (
        element(
            "i",
            "",
            style=f"height:{100 * count / max(counts):.1f}%",
            title=f"{count} from {show(top * number / _BINS)}",
        )
        for number, count in enumerate(counts)
    )
    median, most = show(statistics.median(ordered)), show(ordered[-1])
    facts = f"median {median}, 90 % up to {show(_percentile(ordered, 0.9))}, most {most}"
    axis = element("p", element("span", "0"), element("span", show(top)), cls="axis")
    return element(
        "figure", element("figcaption", element("b", title), " ", facts), element("div", *bars, cls="bars"), axis
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
