"""Writes `report.html` from the trajectories of a run: one self-contained file."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hermes_batch.index import TRAJECTORIES, Row, is_record
from hermes_batch.report.html import Markup, element, join, make_visible
from hermes_batch.report.images import ReportImages
from hermes_batch.report.packing import data_element, pack, pack_json
from hermes_batch.report.statistics import ReportStatistics, list_error_kinds
from hermes_batch.report.summary import estimate_table, failure_tables, histograms, summary_cards, tool_tables
from hermes_batch.report.transcript import transcript
from hermes_batch.row_selection import count_tokens
from hermes_batch.settings import explain_write_errors, read_settings, read_until_solved
from hermes_batch.status_words import describe_failed_programs
from hermes_batch.tally import Tally, outcome, reason
from hermes_batch.trajectories import iterate_rows, read_record_at
from hermes_exec.private_files import open_private

REPORT = "report.html"
_MAX_TRANSCRIPT_BYTES = 96 << 20
"""The most bytes of packed transcripts: browsers open a page of this size in about a second."""
_PROMPT_CHARACTERS = 300
_OUTCOMES = ("solved", "unsolved", "unscored")


def write_report(out: Path) -> Path:
    """Write `out/report.html` from `out/trajectories.jsonl` and `out/run.json`, and return its path.

    Lines that are not records (a killed run may leave half a line) are left out and counted. The report lists all
    records. It has their transcripts up to 96 MiB in compressed form (about 10,000 conversations), with up to 30 MB of
    screenshots. One record is read at a time.

    Raises:
        ConfigError: If there are no trajectories.
        ExecError: If the report cannot be written.
    """
    run = _RunFacts(out)
    path, aside = out / REPORT, out / f".{REPORT}.new"
    with (
        explain_write_errors(out),
        tempfile.TemporaryFile(dir=out) as transcripts,
        open(aside, "wb", opener=open_private) as page,
    ):
        rows = _write_transcripts(run, transcripts)
        page.write(_page(run, rows).encode("utf-8", "replace"))
        transcripts.seek(0)
        shutil.copyfileobj(transcripts, page)
        page.write(b"</body></html>\n")
        aside.replace(path)
    return path


class _RunFacts:
    """Facts about the run as a whole, and the offsets of the records in the file."""

    def __init__(self, out: Path) -> None:
        self.out, self.name, self.settings = out, out.name, read_settings(out)
        self.tally, self.broken = Tally(), 0
        self.statistics = ReportStatistics()
        self.offsets: list[tuple[int, int, int]] = []
        for row in iterate_rows(out):
            if not is_record(row):
                self.broken += 1
                continue
            self.tally.add(row)
            self.offsets.append((int(row["prompt_index"]), int(row["sample"]), row["offset"]))
        first: Mapping[str, Any] = {}
        if self.offsets:
            with (out / TRAJECTORIES).open("rb") as lines:
                first = read_record_at(lines, min(offset for *_, offset in self.offsets))
        metadata = first.get("metadata", {})
        self.model, self.started_at = (str(metadata.get(name, "")) for name in ("model", "timestamp"))
        # Rollouts of another program may have one each.
        self.program = "" if self.settings.get("rollouts") else str(first.get("program") or "")
        self.total = int(self.settings.get("prompts") or self.tally.records)
        self.offsets.sort()


def _write_transcripts(run: _RunFacts, transcripts: IO[bytes]) -> list[list[object]]:
    """Write the packed transcripts of the records, add them to the statistics, and return the rows of the list."""
    images, size = ReportImages(run.out), 0
    rows: list[list[object]] = []
    with (run.out / TRAJECTORIES).open("rb") as lines:
        for *_, offset in run.offsets:
            record = read_record_at(lines, offset)
            run.statistics.add(record)
            number = -1
            if size < _MAX_TRANSCRIPT_BYTES:
                number = len(rows)
                packed = data_element(f"t{number}", pack(transcript(record, images.load(record))))
                size += transcripts.write(packed.encode())
            rows.append(_row(record, number, offset))
    return rows


def _row(record: Row, transcript_number: int, offset: int) -> list[object]:
    """Return the values of a record in the order of `NAMES` in report.js."""
    word = outcome(record)
    turns = (turn for turn in record["conversations"] if isinstance(turn, dict) and turn.get("from") == "human")
    prompt = next((str(turn.get("value", "")) for turn in turns), "")
    why = reason(record)
    return [
        make_visible(str(record.get("id", ""))),
        int(record.get("sample", 0)),
        make_visible(word),
        word if word in _OUTCOMES else "other",
        make_visible(str(record.get("finish", ""))),
        make_visible(str(why)) if why.kind else "",
        *(int(record.get(name, 0)) for name in ("turns", "tool_calls")),
        count_tokens(record),
        *(float(record.get(name, 0)) for name in ("cost", "seconds")),
        None if record.get("reward") in (None, "null") else float(record["reward"]),
        make_visible(prompt[:_PROMPT_CHARACTERS]),
        str(record.get("group", "")),
        [make_visible(kind) for kind in list_error_kinds(record)],
        transcript_number,
        f"{TRAJECTORIES}, at byte {offset:,}",
    ]


def _page(run: _RunFacts, rows: list[list[object]]) -> str:
    """Return the page up to the packed transcripts."""
    here = Path(__file__).parent
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
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
        summary_cards(run.tally, run.total, float(run.settings.get("seconds") or run.tally.seconds)),
        _notes(run, any(row[-2] == -1 for row in rows)),
        estimate_table(run.tally.groups.summarize(read_until_solved(run.out))),
        failure_tables(run.tally),
        tool_tables(run.statistics),
        histograms(run.statistics),
        _prompts(run.tally),
    )
    data = data_element("rows", pack_json(rows))
    return (
        f'<!doctype html>\n<html lang="en">{element("head", head)}<body>{element("main", body)}\n'
        f"{data}<script>{script}</script>\n"
    )


def _subtitle(run: _RunFacts) -> str:
    parts = [
        str(run.settings.get("model") or run.model),
        *([f"program {run.program}"] if run.program else []),
        f"backend {' '.join(sorted(run.tally.backends))}",
        f"isolation {' '.join(sorted(run.tally.levels)) or 'none reached'}",
    ]
    when = run.started_at.replace("T", " ").replace("+00:00", " UTC")
    return " · ".join([*parts, when] if when else parts)


def _notes(run: _RunFacts, is_cut: bool) -> Markup:
    notes = []
    missing = run.total - run.tally.records
    if missing > 0:
        notes.append(f"The run ended before {missing} of its prompts were done.")
    if run.broken:
        notes.append(f"{run.broken} lines of {TRAJECTORIES} are not records and were left out.")
    if failed := run.tally.failed_programs:
        notes.append(f"{describe_failed_programs(failed)}: the exit code and the output are in the record.")
    if is_cut:
        notes.append(f"The conversations of the last records are only in {TRAJECTORIES}.")
    return join(*(element("p", note, cls="note") for note in notes))


def _prompts(tally: Tally) -> Markup:
    """Return the controls of the list of records. The script of the page fills the list."""
    choices = [("", "all")]
    choices += [(name, f"{name} {count}") for name, count in tally.outcomes.items() if count and name in _OUTCOMES]
    if tally.outcomes["unchecked"]:
        choices.append(("other", f"unchecked {tally.outcomes['unchecked']}"))
    radios = [
        Markup(f'<input type="radio" name="show" id="show-{value}" value="{value}"{" checked" if not value else ""}>')
        + element("label", label, **{"for": f"show-{value}"})
        for value, label in choices
    ]
    sorts = ("tokens", "seconds", "turns", "calls", "cost")
    options = [
        element("option", "in order", value=""),
        *(element("option", f"most {name}", value=name) for name in sorts),
        element("option", "lowest reward", value="reward"),
    ]
    controls = [
        Markup('<input type="search" id="search" placeholder="Search ids, prompts, errors" aria-label="Search">'),
        element("select", element("option", "ended by", value=""), id="finish"),
        element("select", element("option", "errors", value=""), id="error"),
        element("select", *options, id="sort"),
    ]
    if tally.groups.most_samples > 1:
        controls.append(
            element("label", Markup('<input type="checkbox" id="grouped" checked>'), " by prompt", cls="check")
        )
    return element(
        "section",
        element("h2", "Prompts"),
        element(
            "div",
            element("div", *map(Markup, radios), cls="filter"),
            element("div", *controls, element("span", "", id="count"), cls="filter"),
            id="controls",
            hidden="",
        ),
        element("div", "", id="list"),
        element("button", "Show more", id="more", hidden=""),
        element("noscript", element("p", "The list of prompts needs JavaScript.", cls="note")),
    )
