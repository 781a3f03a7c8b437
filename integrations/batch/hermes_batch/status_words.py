"""The words for the progress and the results of a run: the same on the terminal, in the log and in the report."""

from __future__ import annotations

from collections.abc import Mapping

from hermes_batch.report.html import make_visible
from hermes_batch.status import EndpointFacts, RunStatus

_REASON_WIDTH = 160
_ACTIVITIES = {
    "queue": "waiting for a slot",
    "setup": "in setup",
    "model": "waiting for the model",
    "tools": "in tools",
    "check": "in checks",
}


def describe_outcomes(outcomes: Mapping[str, int], why_unscored: str = "") -> str:
    """Return the results in words: "218 of 280 solved, 20 unscored".

    The solved ones are counted among the checked ones, because an unscored result does not measure the model.

    Args:
        outcomes: The number of records by `solved`, `unsolved`, `unscored` and `unchecked`.
        why_unscored: The reasons of the unscored ones.
    """
    solved, unscored, unchecked = (outcomes.get(name, 0) for name in ("solved", "unscored", "unchecked"))
    checked = solved + outcomes.get("unsolved", 0)
    parts = [f"{solved} of {checked} solved"] if checked or not unchecked else []
    if unchecked:
        parts.append(f"{unchecked} unchecked")
    if unscored:
        parts.append(f"{unscored} unscored" + (f" ({why_unscored})" if why_unscored else ""))
    return ", ".join(parts)


def describe_failed_programs(count: int) -> str:
    """Return the number of programs that failed after an answer of the model in words."""
    return f"{count} program{'' if count == 1 else 's'} failed after an answer"


def describe_progress(status: RunStatus) -> str:
    """Return how far the run is: "300 of 400 done (75 %), 12.3 a minute, 8 min left"."""
    share = f" ({100 * status.records // status.total} %)" if status.total else ""
    parts = [f"{status.records} of {status.total} done{share}"]
    if status.rate is not None and not status.ended:
        parts.append(f"{60 * status.rate:.3g} a minute")
    if status.left_s is not None:
        parts.append(f"{format_duration(status.left_s)} left")
    return ", ".join(parts)


def describe_use(prompt_tokens: int, completion_tokens: int, cost: float) -> str:
    """Return tokens and cost in words: "1.2M tokens read, 45k written, cost 1.23"."""
    parts = [f"{format_count(prompt_tokens)} tokens read, {format_count(completion_tokens)} written"]
    if cost:
        parts.append(f"cost {format_cost(cost)}")
    return ", ".join(parts)


def describe_workers(status: RunStatus) -> str:
    """Return what the workers do, and where: "workers: 40 waiting for the model, 12 in tools; sandboxes: 4 ready"."""
    workers = [f"{status.workers[name]} {words}" for name, words in _ACTIVITIES.items() if status.workers.get(name)]
    parts = [f"workers: {', '.join(workers)}"] if workers else []
    if status.sandboxes:
        parts.append("sandboxes: " + ", ".join(f"{count} {phase}" for phase, count in status.sandboxes.items()))
    if status.hosts:
        parts.append("hosts: " + ", ".join(f"{to_line(host, 40)} {count}" for host, count in status.hosts.items()))
    return "; ".join(parts)


def describe_endpoint(endpoint: EndpointFacts | None) -> str:
    """Return the state of the model's endpoint if it holds requests back, else an empty text."""
    if endpoint is None:
        return ""
    if endpoint.away_s is not None:
        reason = to_line(endpoint.reason, _REASON_WIDTH)
        return f"waiting for the endpoint, which completes no requests: {reason} (for {endpoint.away_s:.0f} s)"
    away = [(url, part) for url, part in endpoint.parts.items() if part.away_s is not None]
    if away:
        url, part = max(away, key=lambda each: each[1].away_s or 0.0)
        reason = to_line(part.reason, _REASON_WIDTH)
        return f"{len(away)} of {len(endpoint.parts)} endpoints away: {url}: {reason} (for {part.away_s:.0f} s)"
    if endpoint.rate is not None:
        return f"the endpoint allows {endpoint.rate:.1f} requests/s: {endpoint.waiting} requests are held back"
    return ""


def describe_status(status: RunStatus) -> list[str]:
    """Return the progress of a run as lines."""
    use = describe_use(status.prompt_tokens, status.completion_tokens, status.cost)
    lines = [
        describe_progress(status),
        f"{describe_outcomes(status.outcomes)}, {use}",
        describe_workers(status),
        describe_endpoint(status.endpoint),
    ]
    return [line for line in lines if line]


def format_duration(seconds: float) -> str:
    """Return a time in words of one or two units: "45 s", "12 min", "3 h 05 min", "2 d 4 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def format_count(number: int) -> str:
    """Return a number with three digits: "512", "45.2k", "1.23M"."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            digits = number / size
            return f"{digits:.{2 if digits < 10 else 1 if digits < 100 else 0}f}{unit}"
    return str(number)


def format_cost(cost: float) -> str:
    """Return a cost with two decimals, or with two digits if it is small."""
    return f"{cost:,.2f}" if cost >= 0.1 else f"{cost:.2g}"


def to_line(text: str, width: int) -> str:
    """Return the text in one line without control characters, cut to the width."""
    line = make_visible(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= width else line[: width - 1] + "…"
