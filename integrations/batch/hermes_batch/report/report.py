"""Writes `report.html` from the trajectories of a run: one self-contained file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_batch.index import TRAJECTORIES, is_record
from hermes_batch.report.html import Markup, element, join
from hermes_batch.report.images import ReportImages
from hermes_batch.report.transcript import transcript
from hermes_batch.settings import explain_write_errors, read_settings
from hermes_batch.tally import Tally, outcome, reason
from hermes_batch.trajectories import iterate_rows, read_record_at
from hermes_exec.private_files import open_private

REPORT = "report.html"
_MAX_EPISODES = 500
_CAUSES = {
    "policy": "the model",
    "task": "the task's data",
    "infra": "the sandbox, the stream or this library",
    "provider": "a service behind it, such as the model's endpoint",
    "config": "a setting",
    "budget": "a limit of turns, calls or tokens",
    "cancelled": "cancellation",
}


def write_report(out: Path) -> Path:
    """Write `out/report.html` from `out/trajectories.jsonl` and `out/run.json`, and return its path.

    Lines that are not records (a killed run may leave half a line) are left out and counted. The report has the
    transcripts of the first 500 prompts, with up to 30 MB of screenshots. Memory use does not grow with the number of
    records, because one record is read at a time.

    Raises:
        ConfigError: If there are no trajectories.
        ExecError: If the report cannot be written.
    """
    run = _RunFacts(out)
    path = out / REPORT
    images = ReportImages(out)
    with (
        explain_write_errors(out),
        open(path, "w", encoding="utf-8", errors="replace", opener=open_private) as page,
        (out / TRAJECTORIES).open("rb") as lines,
    ):
        before, after = _page(run)
        page.write(before)
        page.writelines(_episode(read_record_at(lines, offset), images) for *_, offset in run.offsets[:_MAX_EPISODES])
        page.write(after)
    return path


class _RunFacts:
    """Facts about the run as a whole, and the offsets of the prompts in the file."""

    def __init__(self, out: Path) -> None:
        self.name, self.settings = out.name, read_settings(out)
        self.tally, self.broken = Tally(), 0
        self.offsets: list[tuple[int, int, int]] = []
        for row in iterate_rows(out):
            if not is_record(row):
                self.broken += 1
                continue
            self.tally.add(row)
            self.offsets.append((int(row["prompt_index"]), int(row["sample"]), row["offset"]))
        metadata: Mapping[str, Any] = {}
        if self.offsets:
            with (out / TRAJECTORIES).open("rb") as lines:
                metadata = read_record_at(lines, min(offset for *_, offset in self.offsets)).get("metadata", {})
        self.model, self.started_at = (str(metadata.get(name, "")) for name in ("model", "timestamp"))
        self.offsets.sort()


def _page(run: _RunFacts) -> tuple[str, str]:
    """Return the parts of the page before and after the transcripts."""
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = join(
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        element("title", f"Batch run {run.name}"),
        element("style", Markup(style)),
    )
    body = join(
        element("header", element("h1", "Batch run ", element("code", run.name)), element("p", _subtitle(run))),
        _summary(run),
        _failures(run.tally),
        _notes(run),
    )
    before = f'<!doctype html>\n<html lang="en">{element("head", head)}<body><main>{body}'
    prompts = f"<section>{element('h2', 'Prompts')}{_filter(run.tally)}"
    return before + prompts, "</section></main></body></html>\n"


def _subtitle(run: _RunFacts) -> str:
    parts = [
        str(run.settings.get("model") or run.model),
        f"backend {' '.join(sorted(run.tally.backends))}",
        f"isolation {' '.join(sorted(run.tally.levels)) or 'none reached'}",
    ]
    when = run.started_at.replace("T", " ").replace("+00:00", " UTC")
    return " · ".join([*parts, when] if when else parts)


def _summary(run: _RunFacts) -> Markup:
    tally, words, settings = run.tally, run.tally.words, run.settings
    checked = words["solved"] + words["unsolved"]
    figures = [
        (f"{words['solved']} of {checked}", "solved"),
        (str(words["unscored"]), "not scored"),
        (str(tally.records), f"of {settings['prompts']} prompts" if settings.get("prompts") else "prompts"),
        (str(tally.tool_calls), "tool calls"),
        (f"{tally.completion_tokens:,}", "tokens written"),
        (f"{float(settings.get('seconds') or tally.seconds):.1f} s", "wall time"),
    ]
    cards = join(*(element("div", element("b", figure), element("span", name), cls="card") for figure, name in figures))
    parts = [(name, words[name]) for name in ("solved", "unsolved", "unscored") if words[name]]
    rest = tally.records - sum(count for _, count in parts)
    shares = [*parts, ("other", rest)] if rest else parts
    bar = join(
        *(element("i", "", cls=name, style=f"flex-grow:{count}", title=f"{count} {name}") for name, count in shares)
    )
    return element("section", element("div", cards, cls="cards"), element("div", bar, cls="bar"))


def _failures(tally: Tally) -> Markup:
    causes = [(cause, _CAUSES.get(cause, ""), end, str(count)) for (cause, end), count in tally.ends.most_common()]
    errors = [(kind, tally.examples[kind], str(count)) for kind, count in tally.errors.most_common()]
    return join(
        _table("Not solved, by cause", "causes", ("Cause", "Meaning", "Ended by", "Prompts"), causes),
        _table("Not scored, by error", "errors", ("Error", "First message", "Prompts"), errors),
    )


def _table(title: str, cls: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a section with a table, or nothing if there are no rows."""
    if not rows:
        return Markup("")
    head = element("tr", *(element("th", name) for name in names))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows)
    table = element("table", element("thead", head), element("tbody", *body), cls=cls)
    return element("section", element("h2", title), table)


def _notes(run: _RunFacts) -> Markup:
    notes = []
    missing = int(run.settings.get("prompts") or 0) - run.tally.records
    if missing > 0:
        notes.append(f"The run ended before {missing} of its prompts were done.")
    if run.broken:
        notes.append(f"{run.broken} lines of {TRAJECTORIES} are not records and were left out.")
    if run.tally.records > _MAX_EPISODES:
        notes.append(f"Transcripts of the first {_MAX_EPISODES} prompts; the others are in {TRAJECTORIES}.")
    return join(*(element("p", note, cls="note") for note in notes))


def _filter(tally: Tally) -> Markup:
    choices = [Markup('<input type="radio" name="show" id="show-all" checked><label for="show-all">all</label>')]
    for name in ("solved", "unsolved", "unscored"):
        if tally.words[name]:
            label = f'<label for="show-{name}">{name} {tally.words[name]}</label>'
            choices.append(Markup(f'<input type="radio" name="show" id="show-{name}">{label}'))
    return element("div", *choices, cls="filter")


def _episode(record: Mapping[str, Any], images: ReportImages) -> Markup:
    word = outcome(record)
    kind = word if word in {"solved", "unsolved", "unscored"} else "other"
    turns = (turn for turn in record["conversations"] if isinstance(turn, dict) and turn.get("from") == "human")
    prompt = next((str(turn.get("value", "")) for turn in turns), "")
    calls, seconds = int(record.get("tool_calls", 0)), float(record.get("seconds", 0))
    facts = f"{calls} call{'' if calls == 1 else 's'} · {seconds:.1f} s"
    summary = element(
        "summary",
        element("span", word, cls=f"badge {kind}"),
        element("code", str(record.get("id", ""))),
        element("span", prompt, cls="prompt"),
        element("span", facts, cls="facts"),
        *([element("span", str(why), cls="why")] if (why := reason(record)).kind else []),
    )
    return element("details", summary, transcript(record, images.load(record)), cls=f"episode {kind}")
