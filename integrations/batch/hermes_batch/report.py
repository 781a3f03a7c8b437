"""Writes `report.html` from the trajectories of a run: one file that needs nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_batch.html import Markup, element, join
from hermes_batch.transcript import transcript
from hermes_exec.errors import ConfigError

_EPISODES = 500
_CAUSES = {
    "policy": "the model's own doing",
    "task": "the task's data",
    "infra": "the box, the stream or this library",
    "provider": "a service behind it, such as the model's endpoint",
    "config": "a setting",
    "budget": "a limit of turns, calls or tokens",
    "cancelled": "called off",
}


def write_report(out: Path) -> Path:
    """Write `out/report.html` from `out/trajectories.jsonl` and `out/run.json`; return its path.

    Lines that are no record (a run that was killed may leave half of one) are left out and counted. The transcripts of
    the first 500 prompts are in it. Raises ConfigError when there are no trajectories.
    """
    records, broken = read_records(out)
    path = out / "report.html"
    path.write_text(_page(out, records, broken, read_settings(out)), encoding="utf-8", errors="replace")
    return path


def read_records(out: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a run by prompt, and the number of other lines. Raises ConfigError without trajectories."""
    try:
        lines = (out / "trajectories.jsonl").read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{out} has no trajectories.jsonl: {error.strerror or error}") from error
    records: list[dict[str, Any]] = []
    broken = 0
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            broken += 1
            continue
        if isinstance(record, dict) and "prompt_index" in record and isinstance(record.get("conversations"), list):
            records.append(record)
        else:
            broken += 1
    return sorted(records, key=lambda record: int(record["prompt_index"])), broken


def outcome(record: Mapping[str, Any]) -> str:
    """One word for what became of a prompt: solved, unsolved, unscored, or how it ended where nothing was checked."""
    if not record.get("trainable", True):
        return "unscored"
    if record.get("solved") is None:
        return str(record.get("finish", "done"))
    return "solved" if record["solved"] else "unsolved"


def read_settings(out: Path) -> dict[str, Any]:
    """What `run.json` says of a run; nothing where there is none."""
    try:
        settings = json.loads((out / "run.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _page(out: Path, records: list[dict[str, Any]], broken: int, settings: Mapping[str, Any]) -> str:
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = join(
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        element("title", f"Batch run {out.name}"),
        element("style", Markup(style)),
    )
    body = join(
        element(
            "header", element("h1", "Batch run ", element("code", out.name)), element("p", _subtitle(settings, records))
        ),
        _summary(records, settings),
        _failures(records),
        _notes(records, broken, settings),
        _episodes(records),
    )
    return f'<!doctype html>\n<html lang="en">{element("head", head)}{element("body", element("main", body))}</html>\n'


def _subtitle(settings: Mapping[str, Any], records: list[dict[str, Any]]) -> str:
    first: Mapping[str, Any] = records[0] if records else {}
    model = settings.get("model") or first.get("metadata", {}).get("model", "")
    places = {str(record.get("backend", "")) for record in records}
    rungs = {str(record.get("isolation", "")) for record in records} - {""}
    parts = [
        str(model),
        f"backend {' '.join(sorted(places))}",
        f"isolation {' '.join(sorted(rungs)) or 'none reached'}",
    ]
    when = str(first.get("metadata", {}).get("timestamp", ""))
    return " · ".join([*parts, when.replace("T", " ").replace("+00:00", " UTC")] if when else parts)


def _summary(records: list[dict[str, Any]], settings: Mapping[str, Any]) -> Markup:
    words = Counter(outcome(record) for record in records)
    checked = words["solved"] + words["unsolved"]
    calls = sum(int(record.get("tool_calls", 0)) for record in records)
    tokens = sum(int(record.get("completion_tokens", 0)) for record in records)
    seconds = float(settings.get("seconds") or sum(float(record.get("seconds", 0)) for record in records))
    figures = [
        (f"{words['solved']} of {checked}", "solved"),
        (str(words["unscored"]), "not scored"),
        (str(len(records)), f"of {settings['prompts']} prompts" if settings.get("prompts") else "prompts"),
        (str(calls), "tool calls"),
        (f"{tokens:,}", "tokens written"),
        (f"{seconds:.1f} s", "wall time"),
    ]
    cards = join(*(element("div", element("b", figure), element("span", name), cls="card") for figure, name in figures))
    parts = [(name, words[name]) for name in ("solved", "unsolved", "unscored") if words[name]]
    rest = len(records) - sum(count for _, count in parts)
    shares = [*parts, ("other", rest)] if rest else parts
    bar = join(
        *(element("i", "", cls=name, style=f"flex-grow:{count}", title=f"{count} {name}") for name, count in shares)
    )
    return element("section", element("div", cards, cls="cards"), element("div", bar, cls="bar"))


def _failures(records: list[dict[str, Any]]) -> Markup:
    failed = [record for record in records if outcome(record) not in {"solved", "answered"}]
    if not failed:
        return Markup("")
    counts = Counter((str(record.get("cause", "")), str(record.get("finish", ""))) for record in failed)
    rows = join(
        *(
            element(
                "tr",
                element("td", cause),
                element("td", _CAUSES.get(cause, "")),
                element("td", finish),
                element("td", str(count)),
            )
            for (cause, finish), count in counts.most_common()
        )
    )
    head = element("tr", *(element("th", name) for name in ("Cause", "Whose doing the end was", "Ended by", "Prompts")))
    table = element("table", element("thead", head), element("tbody", rows))
    return element("section", element("h2", "Not solved, by cause"), table)


def _notes(records: list[dict[str, Any]], broken: int, settings: Mapping[str, Any]) -> Markup:
    notes = []
    missing = int(settings.get("prompts") or 0) - len(records)
    if missing > 0:
        notes.append(f"The run was ended before {missing} of its prompts were done.")
    if broken:
        notes.append(f"{broken} lines of trajectories.jsonl are no records and were left out.")
    if len(records) > _EPISODES:
        notes.append(f"Transcripts of the first {_EPISODES} prompts; the others are in trajectories.jsonl.")
    return join(*(element("p", note, cls="note") for note in notes))


def _episodes(records: list[dict[str, Any]]) -> Markup:
    words = Counter(outcome(record) for record in records)
    choices = [Markup('<input type="radio" name="show" id="show-all" checked><label for="show-all">all</label>')]
    for name in ("solved", "unsolved", "unscored"):
        if words[name]:
            label = f'<label for="show-{name}">{name} {words[name]}</label>'
            choices.append(Markup(f'<input type="radio" name="show" id="show-{name}">{label}'))
    listed = join(*(_episode(record) for record in records[:_EPISODES]))
    return element("section", element("h2", "Prompts"), element("div", *choices, cls="filter"), listed)


def _episode(record: Mapping[str, Any]) -> Markup:
    word = outcome(record)
    kind = word if word in {"solved", "unsolved", "unscored"} else "other"
    prompt = next((str(turn.get("value", "")) for turn in record["conversations"] if turn.get("from") == "human"), "")
    calls, seconds = int(record.get("tool_calls", 0)), float(record.get("seconds", 0))
    facts = f"{calls} call{'' if calls == 1 else 's'} · {seconds:.1f} s"
    summary = element(
        "summary",
        element("span", word, cls=f"badge {kind}"),
        element("code", str(record.get("id", ""))),
        element("span", prompt, cls="prompt"),
        element("span", facts, cls="facts"),
    )
    return element("details", summary, transcript(record), cls=f"episode {kind}")
