"""Recording of traces: a file of JSON lines with the metadata of each frame and event, or another `Tracer`."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Protocol, runtime_checkable

from hermes_exec.channel.frames import FrameType
from hermes_exec.channel.trace import ChannelTrace, TracedFrame
from hermes_exec.errors import ConfigError
from hermes_exec.private_files import open_private
from hermes_exec.redact import mask_data
from hermes_exec.results import PoolEvent

logger = logging.getLogger(__name__)

FORMAT = 1
FLUSH_S = 1.0
FRAME_NAMES = {int(kind): kind.name for kind in FrameType}


@runtime_checkable
class Tracer(Protocol):
    """A recipient of the traces and events of a pool. It is called in the pool's event loop and must not block."""

    def for_sandbox(self, sandbox: str) -> ChannelTrace:
        """Return the recipient for the trace of one sandbox."""

    def event(self, event: PoolEvent) -> None:
        """Record an event of the pool."""

    def close(self) -> None:
        """Finish: the pool has closed."""


def tracer_for(trace: str | os.PathLike[str] | Tracer | None, secrets: list[str]) -> Tracer | None:
    """Return the tracer for the pool's `trace` argument.

    Raises:
        ConfigError: If the argument is neither a writable path nor a tracer.
    """
    if trace is None or isinstance(trace, Tracer):
        return trace
    if not isinstance(trace, str | os.PathLike):
        raise ConfigError(f"trace must be the path of a file or a Tracer, not {type(trace).__name__}")
    try:
        return TraceFile(trace, secrets)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the trace {os.fspath(trace)!r} cannot be written: {error}") from error


class TraceFile:
    """A trace as a file of JSON lines. The first line has the start time; `t` of the others is seconds since then.

    Only the owner can read the file (mode 0600), and an existing file is replaced. It contains no input or output of
    commands; secrets of the pool are masked in its events. A full disk ends the trace, not the calls.
    """

    def __init__(self, path: str | os.PathLike[str], secrets: list[str] | None = None) -> None:
        self._secrets = secrets or []
        self._lock = threading.Lock()
        self._file: IO[str] | None = open(  # noqa: SIM115 - it stays open as long as the pool
            path, "w", encoding="utf-8", opener=open_private
        )
        from importlib.metadata import version

        self._began = self._flushed = time.monotonic()
        self.write({"trace": FORMAT, "began_at": time.time(), "pid": os.getpid(), "version": version("hermes-exec")})

    def write(self, line: Mapping[str, object], now: float | None = None) -> None:
        """Add a line without the fields that are None."""
        at = {} if now is None else {"t": round(now - self._began, 6)}
        text = json.dumps(at | {name: value for name, value in line.items() if value is not None})
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write(text + "\n")
                if now is not None and now - self._flushed > FLUSH_S:
                    self._flushed = now
                    self._file.flush()
            except OSError as error:
                self._give_up(error)

    def for_sandbox(self, sandbox: str) -> SandboxLines:
        """See Tracer."""
        return SandboxLines(self, sandbox)

    def event(self, event: PoolEvent) -> None:
        """See Tracer."""
        facts = {
            name: value for name, value in dataclasses.asdict(event).items() if name not in ("time", "post_mortem")
        }
        if (death := getattr(event, "post_mortem", None)) is not None:
            facts |= {"reason": death.reason, "oom": death.oom, "suspect": death.suspect}
        facts = {name: round(value, 6) if isinstance(value, float) else value for name, value in facts.items()}
        facts = {"event": type(event).__name__} | mask_data(facts, self._secrets)
        self.write(facts, time.monotonic())

    def close(self) -> None:
        """See Tracer."""
        with self._lock:
            try:
                if self._file is not None:
                    self._file.close()
                self._file = None
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.warning("the trace ends too early: %s", error)
        assert self._file is not None
        with suppress(OSError):
            self._file.close()  # this tries to write the buffer again
        self._file = None


class SandboxLines:
    """The lines of one sandbox in a trace file."""

    def __init__(self, file: TraceFile, sandbox: str) -> None:
        self._file, self._sandbox = file, sandbox

    def on_call(self, number: int, method: str, since: float) -> None:
        """See Trace."""
        self._file.write({"sandbox": self._sandbox, "begun": number, "method": method}, since)

    def on_frame(self, frame: TracedFrame) -> None:
        """See Trace."""
        line: dict[str, object] = {"sandbox": self._sandbox, "dir": frame.direction, "type": FRAME_NAMES[frame.type]}
        line |= {"id": frame.id, "channel": frame.channel or None, "bytes": frame.bytes, "more": not frame.last or None}
        line |= {"method": frame.method, "slot": frame.slot, "exec_s": frame.exec_s, "error": frame.error}
        self._file.write(line, frame.time)

    def on_connect(self, handshake_s: float) -> None:
        """See Trace."""
        self._file.write(
            {"sandbox": self._sandbox, "connected": True, "handshake_s": round(handshake_s, 6)}, time.monotonic()
        )

    def on_lost(self, why: str) -> None:
        """See Trace."""
        self._file.write({"sandbox": self._sandbox, "lost": why}, time.monotonic())
