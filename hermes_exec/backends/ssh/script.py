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

FRAME = """mark=$0 text=$1
shift
echo "$mark begins"
{ errors=$(/bin/sh -c "$text" sh "$@" 2>&1 >&3 3>&-); } 3>&1
code=$?
printf '\\n%s ends %s\\n%s\\n%s\\n' "$mark" "$code" "$errors" "$mark"
"""
"""What surrounds a script. Its errors come last and in the same stream, so nothing arrives after the last mark."""


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

    def split(self, data: bytes) -> tuple[CompletedCommand, bytes] | None:
        """Return the finished script and the bytes after it, or None if `data` does not reach its end."""
        _, _, after = data.partition(self._begin.encode())
        output, _, after = after.partition(self._end.encode())
        result, last, after = after.partition(self._last.encode())
        if not last:
            return None
        code, _, errors = result.partition(b"\n")
        return CompletedCommand(int(code), output, errors), after

    def read(self, fd: int, timeout_s: float) -> tuple[CompletedCommand, bytes] | bytes:
        """Wait for the end of the script and return it as `split` does; if the stream ends before, all its bytes.

        Raises:
            TimeoutError: If it took longer.
        """
        data, until = b"", time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError
            try:
                part = os.read(fd, READ_BYTES)
            except ConnectionError:
                return data
            if not part:
                return data
            data += part
            if (parts := self.split(data)) is not None:
                return parts


class StreamAfter(FdStream):
    """The stream of the program that takes a script's place. Takes over another stream."""

    def __init__(self, stream: FdStream, script: HostScript) -> None:
        super().__init__(stream.detach())
        self._script: HostScript | None = script
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
        if self._script is None and not self._before:
            return data
        data, self._before = self._before + data, b""
        if self._script is None:
            return data
        parts = self._script.split(data)
        if parts is None:
            self._before = data
            return b""
        self._script = None
        return parts[1]
