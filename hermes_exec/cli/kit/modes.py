"""Remembers what a program did to the terminal, so that it can be undone when the program can no longer do it."""

from __future__ import annotations

import re

_SWITCH = re.compile(rb"\x1b\[\?([0-9;]{1,28})([hl])")
_ON_AT_FIRST = {7, 25}
"""Lines wrap, and the cursor is seen. Every other private mode is off: other screen, mouse, bracketed paste, …"""
_DIGITS, _LONGEST = 4, 32
_PLAIN = b"\x1b[0m\x1b>"


class TerminalModes:
    """Reads the output of a program as it goes to the terminal."""

    def __init__(self) -> None:
        self._now: dict[int, bool] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Look at a piece of output; a sequence may go on in the next one."""
        data = self._rest + data
        end = 0
        for match in _SWITCH.finditer(data):
            end = match.end()
            for mode in match[1].split(b";"):
                if 0 < len(mode) <= _DIGITS:
                    self._now[int(mode)] = match[2] == b"h"
        begun = data.rfind(b"\x1b", max(end, len(data) - _LONGEST))
        self._rest = data[begun:] if begun >= 0 else b""

    def undo(self) -> bytes:
        """The sequences that restore the terminal; empty when there is nothing to undo."""
        changed = [mode for mode, on in self._now.items() if on != (mode in _ON_AT_FIRST)]
        if not changed:
            return b""
        switches = (b"\x1b[?%d%c" % (mode, b"h" if mode in _ON_AT_FIRST else b"l") for mode in reversed(changed))
        return b"".join(switches) + _PLAIN
