"""Scripts for the shell of a host. Marks surround their output: start-up files of the user's shell may print anything
before it, and programs that these leave behind may keep the output open after it.
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import time
from typing import NamedTuple

from hermes_exec.aio.streams import READ_BYTES, FdStream
from hermes_exec.errors import LaunchError

FRAME = """mark=$0 text=$1
shift
framed=$(
  { errors=$(/bin/sh -c "$text" sh "$@" 2>&1 >&3 3>&-); } 3>&1
  code=$?
  printf '\\n%s ends %s\\n%s\\n%s' "$mark" "$code" "$errors" "$mark"
  exit $code
)
code=$?
printf '%s begins\\n%s\\n' "$mark" "$framed"
"""
"""What surrounds a script, whose output is text. It is printed at once at the end, because programs of the start-up
files may print meanwhile. Errors come last and in the same stream, so nothing arrives after the last mark.
"""
_KEPT_BYTES = 64 << 10
_LIMIT_BYTES = 16 << 20


class CompletedCommand(NamedTuple):
    """A finished command of the host."""

    code: int
    stdout: bytes
    stderr: bytes


class HostScript:
    """A script for `sh` that works with any login shell, and an optional program that takes its place if it succeeds.

    `command` is for the login shell.
    """

    def __init__(self, text: str, *arguments: str, then: str = "") -> None:
        mark = f"hermes-exec-{secrets.token_hex(8)}"
        frame = f"{FRAME}[ $code = 0 ] && exec {then}" if then else FRAME
        self.command = f"exec {shlex.join(['/bin/sh', '-c', frame, mark, text, *arguments])}"
        self._begin, self._end, self._last = (f"{mark} begins\n", f"\n{mark} ends ", f"\n{mark}\n")

    def output(self) -> ScriptOutput:
        """Return an empty output of this script."""
        return ScriptOutput(self._begin, self._end, self._last)

    def read(self, fd: int, timeout_s: float) -> tuple[CompletedCommand, bytes] | bytes:
        """Wait for the end of the script and return it as `ScriptOutput.feed` does; if the stream ends before, the
        bytes that are kept.

        Raises:
            TimeoutError: If it took longer.
            LaunchError: If it printed too much.
        """
        output, until = self.output(), time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError
            try:
                part = os.read(fd, READ_BYTES)
            except ConnectionError:
                part = b""
            if not part:
                return output.kept
            if (parts := output.feed(part)) is not None:
                return parts


class ScriptOutput:
    """The output of a script as it arrives. What is printed before it is dropped, except for the last 64 KiB."""

    def __init__(self, *marks: str) -> None:
        self._marks = [mark.encode() for mark in marks]
        self._parts: list[bytes] = []
        self._data = bytearray()
        self._searched = 0

    @property
    def kept(self) -> bytes:
        """The bytes that arrived and belong to no part that is complete."""
        return bytes(self._data)

    def feed(self, data: bytes) -> tuple[CompletedCommand, bytes] | None:
        """Return the finished script and the bytes after it, or None if these bytes do not reach its end.

        Raises:
            LaunchError: If it printed more than 16 MiB.
        """
        self._data += data
        while len(self._parts) < len(self._marks):
            mark = self._marks[len(self._parts)]
            place = self._data.find(mark, self._searched)
            if place < 0:
                self._drop(len(mark))
                return None
            self._parts.append(bytes(self._data[:place]))
            del self._data[: place + len(mark)]
            self._searched = 0
        _, output, result = self._parts
        code, _, errors = result.partition(b"\n")
        return CompletedCommand(int(code), output, errors), bytes(self._data)

    def _drop(self, mark_bytes: int) -> None:
        """Bound the bytes that are kept, and remember where the search goes on."""
        if self._parts and len(self._data) > _LIMIT_BYTES:
            raise LaunchError(f"a script of this library printed more than {_LIMIT_BYTES >> 20} MiB on the host")
        if not self._parts:
            del self._data[:-_KEPT_BYTES]
        self._searched = max(0, len(self._data) - mark_bytes + 1)


class StreamAfter(FdStream):
    """The stream of the program that takes a script's place. Takes over another stream."""

    def __init__(self, stream: FdStream, script: HostScript) -> None:
        super().__init__(stream.detach())
        self._script: HostScript | None = script
        self._output = script.output()
        self._before = b""

    def wait_script(self, timeout_s: float) -> CompletedCommand | None:
        """Wait for the end of the script; blocking, and only before the first `receive`. Return None if the stream ends
        before.

        Raises:
            TimeoutError: If it took longer.
        """
        assert self._script is not None
        parts = self._script.read(self._read_fd, timeout_s)
        if isinstance(parts, bytes):
            return None
        self._script, (done, self._before) = None, parts
        return done

    def unwrap(self, data: bytes) -> bytes:
        """See `FdStream`."""
        if self._script is None:
            data, self._before = self._before + data, b""
            return data
        parts = self._output.feed(data)
        if parts is None:
            return b""
        self._script = None
        return parts[1]
