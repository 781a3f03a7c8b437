"""`hermes-exec shell --slot ID`: looks into a slot that another process on this host holds, and changes nothing."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import one_line, printable, say, table
from hermes_exec.cli.observe.answers import Processes, RunningProcess, ViewEvent
from hermes_exec.cli.observe.client import Driver, acquired_slots, connect
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError, SlotClosed


async def look(slot: str, words: Sequence[str]) -> int:
    """Show what the slot prints until it is released, or with the word `ps` its processes.

    Raises:
        ConfigError: no pool here lends such a slot, or another word.
    """
    if words and list(words) != ["ps"]:
        raise ConfigError("a slot of another process can only be looked at: ps, or nothing to follow what it prints")
    path = await _find(slot)
    try:
        if words:
            async with connect(path) as driver:
                await _list_processes(driver, slot)
        else:
            await _look_on(path, slot)
    except (FileNotFoundError, ConnectionRefusedError):
        raise SlotClosed("the process that held the slot is gone") from None
    return exits.OK


async def _look_on(path: Path, slot: str) -> None:
    try:
        async with connect(path) as driver:
            await _follow(driver, path, slot)
    except SlotClosed as closed:
        say(str(closed))


async def _find(slot: str) -> Path:
    lent: dict[str, Path] = {}
    for path, facts in await acquired_slots():
        lent.setdefault(facts.id, path)  # another user's pool takes no name of root's
    if slot in lent:
        return lent[slot]
    if not lent:
        raise ConfigError(f"no slot {slot!r}: no process of yours on this host lends one now")
    raise ConfigError(f"no slot {slot!r} is lent on this host; {nearest(slot, lent)}")


async def _follow(driver: Driver, path: Path, slot: str) -> None:
    screen = Screen(raw=not sys.stdout.isatty())
    async for event in driver.view(slot):
        if event.event == "viewing":
            async with connect(path) as other:
                await _list_processes(other, slot)
            say("read-only; what is printed comes below (Ctrl-C to leave)")
        sys.stdout.buffer.write(screen.show(event))
        sys.stdout.buffer.flush()
        if event.event == "released":
            return


class Screen:
    """The output of several commands in one stream of text, as `tail -f` shows several files.

    Unless it is `raw`, control characters are shown and not obeyed: what runs in a slot does not write to the terminal
    of one who looks.
    """

    def __init__(self, *, raw: bool) -> None:
        self._raw = raw
        self._speaker: object = None
        self._at_start = True
        self._decoders: dict[tuple[object, object], codecs.IncrementalDecoder] = {}

    def show(self, event: ViewEvent) -> bytes:
        """What an event adds."""
        who = event.id
        match event.event:
            case "output":
                return self._output(who, event.stream, event.data)
            case "started":
                return self._line(f"{who} $ {event.command}", who)
            case "ended":
                for stream in (1, 2):
                    self._decoders.pop((who, stream), None)
                return self._line(f"{who} ended with {event.exit_code}")
            case "dropped":
                return self._line(f"{event.bytes} bytes came too fast to be shown")
            case "reset" | "released" as end:
                return self._line(f"the slot was {end}")
            case _:
                return b""

    def _output(self, who: object, stream: object, data: bytes) -> bytes:
        head = b"" if who == self._speaker else self._line(f"{who}", who)
        if not self._raw:
            new = codecs.getincrementaldecoder("utf-8")("replace")
            data = printable(self._decoders.setdefault((who, stream), new).decode(data)).encode()
        if data:
            self._at_start = data.endswith(b"\n")
        return head + data

    def _line(self, text: str, who: object = None) -> bytes:
        begin = "" if self._at_start else "\n"
        self._speaker, self._at_start = who, True
        return f"{begin}==> {printable(text)}\n".encode("utf-8", "replace")


async def _list_processes(driver: Driver, slot: str) -> None:
    now = time.time()
    found = (await driver.ask("processes", Processes, slot=slot)).processes
    rows = [
        (p.pid, one_line(p.state), f"{now - p.started_at:.1f}", p.rss_bytes >> 10, p.request_id, _command(p))
        for p in found
    ]
    table(("pid", "state", "age s", "rss KiB", "request", "command"), rows)
    sys.stdout.flush()


def _command(process: RunningProcess) -> str:
    return one_line(" ".join(process.argv))
