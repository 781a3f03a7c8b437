"""`hermes-exec trace`: the calls of a trace, slowest first, or the timeline of one call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import emit_json, one_line, stdout, table
from hermes_exec.cli.kit.pools import AsJson
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.tracing import Call

BAR = 48
SHOWN_FRAMES = 20
WORDS = {"queue": "queue", "out": "wire →", "exec": "exec", "back": "wire ←"}


def trace(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="A file of --trace or `SandboxPool(trace=...)`."
        ),
    ],
    call: Annotated[int | None, typer.Option("--call", help="Show the timeline of the call with this id.")] = None,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", help="Only this sandbox; the beginning of its name is enough.")
    ] = None,
    slower_s: Annotated[
        float, typer.Option("--slower", min=0.0, help="Only calls that took at least so many seconds.")
    ] = 0.0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="List at most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the calls of a trace, slowest first, with the phases of their time; with --call show one of them.

    `queue` is the wait for earlier commands of its session or for a stream. `exec` is the time that the command ran in
    the sandbox. `wire` is the rest: the way there and back (half each), and the runner's own work.
    """
    from hermes_exec.tracing import read_trace

    record = read_trace(file)
    calls = [each for each in record.calls if each.total_s >= slower_s and each.sandbox.startswith(sandbox or "")]
    if call is not None:
        chosen = [each for each in calls if each.id == call]
        if len(chosen) != 1:
            sandboxes = ", ".join(sorted({str(_word(each.sandbox)) for each in chosen}))
            why = (
                f"several sandboxes have a call {call}: choose one with --sandbox ({sandboxes})"
                if chosen
                else f"no call {call}"
            )
            raise ConfigError(f"{file}: {why}")
        if as_json:
            emit_json(_facts(chosen[0], frames=True))
        else:
            _show(chosen[0])
        raise typer.Exit(exits.OK)
    calls.sort(key=lambda each: each.total_s, reverse=True)
    if as_json:
        emit_json([_facts(each) for each in calls[:limit]])
        raise typer.Exit(exits.OK)
    rows = [
        (
            each.id,
            _word(each.sandbox, 20),
            _word(each.slot),
            _word(each.method),
            *map(_ms, (each.total_s, each.queue_s, each.wire_s, each.exec_s)),
            _word(each.error),
            each.why,
        )
        for each in calls[:limit]
    ]
    columns = ("call", "sandbox", "slot", "method", "total ms", "queue", "wire", "exec", "error", "why")
    table(columns, rows, title=f"calls: {len(calls)}, frames: {record.frames}, events: {len(record.events)}")


def _word(text: object, most: int = 40) -> str | None:
    """Return a name with control characters made visible: the file may come from anybody."""
    return None if text is None else one_line(str(text)[:most])


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _facts(call: Call, *, frames: bool = False) -> dict[str, object]:
    names = (
        "sandbox",
        "id",
        "slot",
        "method",
        "begun",
        "error",
        "sent_bytes",
        "received_bytes",
        "frame_count",
        "reconnected",
    )
    facts: dict[str, object] = {name: getattr(call, name) for name in names}
    facts |= {"total_s": call.total_s, "phases_s": call.phases, "why": call.why}
    if frames:
        facts["frames"] = [frame._asdict() for frame in call.frames]
    return facts


def _show(call: Call) -> None:
    from rich.text import Text

    from hermes_exec.tracing.writer import FRAME_NAMES

    console = stdout()
    where = (
        f"slot {_word(call.slot)} of sandbox {_word(call.sandbox)}" if call.slot else f"sandbox {_word(call.sandbox)}"
    )
    console.print(Text(f"call {call.id}: {_word(call.method)} in {where}", style="bold"))
    ended = f" ({_word(call.error)})" if call.error else ""
    console.print(Text(f"{_ms(call.total_s)} ms{ended}: {call.why}\n"))
    scale, at = BAR / call.total_s if call.total_s else 0.0, 0.0
    for name, seconds in call.phases.items():
        before, width = int(at * scale), int((at + seconds) * scale) - int(at * scale)
        bar = " " * before + ("━" * width if width else ("╵" if seconds else ""))
        console.print(Text.assemble(f"{WORDS[name]:<7}{_ms(seconds):>9} ms  ", (bar, "cyan")))
        at += seconds
    console.print(Text(f"\n{call.frame_count} frames, {call.sent_bytes} bytes sent, {call.received_bytes} received"))
    frames = call.frames
    if len(frames) > SHOWN_FRAMES:
        frames = (*frames[: SHOWN_FRAMES - 1], frames[-1])
    rows = [
        (_ms(each.time - call.begun), each.direction, FRAME_NAMES[each.type], each.channel or None, each.bytes)
        for each in frames
    ]
    table(("ms", "", "frame", "channel", "bytes"), rows)
    if len(frames) < call.frame_count:
        console.print(Text(f"{call.frame_count - len(frames)} more before the last"))


def add_to(app: typer.Typer) -> None:
    """Add the command `trace`."""
    app.command(epilog="Example: hermes-exec trace calls.jsonl --slower 0.5; hermes-exec trace calls.jsonl --call 17")(
        trace
    )
