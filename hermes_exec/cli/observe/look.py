"""`hermes-exec shell --slot ID`: a read-only view of a slot that another process on this host holds."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import one_line, printable, say, table
from hermes_exec.cli.observe.answers import Processes, RunningProcess, ViewEvent
from hermes_exec.cli.observe.client import PoolClient, connect, list_slots
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError, SlotClosed


async def look(slot: str, words: Sequence[str]) -> int:
    """Show the output in the slot until it is released, or with the word `ps` its processes.

    Raises:
        ConfigError: If no pool here holds such a slot, or for another word.
    """
    if words and list(words) != ["ps"]:
        raise ConfigError("a slot of another process is read-only: ps, or nothing to follow its output")
    path = await _find(slot)
    try:
        if words:
            async with connect(path) as client:
                await _list_processes(client, slot)
        else:
            await _follow_until_closed(path, slot)
    except (FileNotFoundError, ConnectionRefusedError):
        raise SlotClosed("the process that held the slot is gone") from None
    return exits.OK


async def _follow_until_closed(path: Path, slot: str) -> None:
    try:
        async with connect(path) as client:
            await _follow(client, path, slot)
    except SlotClosed as closed:
        say(str(closed))


async def _find(slot: str) -> Path:
    slots: dict[str, Path] = {}
    for path, facts in await list_slots():
        slots.setdefault(facts.id, path)  # another user's pool cannot take an id of root's
    if slot in slots:
        return slots[slot]
    if not slots:
        raise ConfigError(f"no slot {slot!r}: no process of yours on this host has a slot now")
    raise ConfigError(f"no slot {slot!r} is in use on this host; {nearest(slot, slots)}")


async def _follow(client: PoolClient, path: Path, slot: str) -> None:
    screen = Screen(raw=not sys.stdout.isatty())
    async for event in client.view(slot):
        if event.event == "viewing":
            async with connect(path) as other:
                await _list_processes(other, slot)
            say("read-only; output follows (Ctrl-C to leave)")
        sys.stdout.buffer.write(screen.show(event))
        sys.stdout.buffer.flush()
        if event.event == "released":
            return


class Screen:
    """The output of several commands in one stream of text, as `tail -f` shows several files.

    Unless `raw`, control characters are made visible: a program in a slot must not control the terminal of the
    observer.
    """

    def __init__(self, *, raw: bool) -> None:
        self._raw = raw
        self._source: object = None
        self._at_start = True
        self._decoders: dict[tuple[object, object], codecs.IncrementalDecoder] = {}

    def show(self, event: ViewEvent) -> bytes:
        """Return the bytes that an event adds."""
        source = event.id
        match event.event:
            case "output":
                return self._output(source, event.stream, event.data)
            case "started":
                return self._line(f"{source} $ {event.command}", source)
            case "ended":
                for stream in (1, 2):
                    self._decoders.pop((source, stream), None)
                return self._line(f"{source} ended with {event.exit_code}")
            case "dropped":
                return self._line(f"{event.bytes} bytes arrived too fast to be shown")
            case "reset" | "released" as end:
                return self._line(f"the slot was {end}")
            case _:
                return b""

    def _output(self, source: object, stream: object, data: bytes) -> bytes:
        head = b"" if source == self._source else self._line(f"{source}", source)
        if not self._raw:
            new = codecs.getincrementaldecoder("utf-8")("replace")
            data = printable(self._decoders.setdefault((source, stream), new).decode(data)).encode()
        if data:
            self._at_start = data.endswith(b"\n")
        return head + data

    def _line(self, text: str, source: object = None) -> bytes:
        begin = "" if self._at_start else "\n"
        self._source, self._at_start = source, True
        return f"{begin}==> {printable(text)}\n".encode("utf-8", "replace")


async def _list_processes(client: PoolClient, slot: str) -> None:
    now = time.time()
    processes = (await client.ask("processes", Processes, slot=slot)).processes
    rows = [
        (p.pid, one_line(p.state), f"{now - p.started_at:.1f}", p.rss_bytes >> 10, p.request_id, _command(p))
        for p in processes
    ]
    table(("pid", "state", "age s", "rss KiB", "request", "command"), rows)
    sys.stdout.flush()


def _command(process: RunningProcess) -> str:
    return one_line(" ".join(process.argv))
