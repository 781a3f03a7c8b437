"""Tracking of terminal modes, so that they can be undone when the program that set them can no longer do it."""

from __future__ import annotations

import re

_SWITCH = re.compile(rb"\x1b\[\?([0-9;]{1,28})([hl])")
_ON_AT_FIRST = {7, 25}
"""Modes that are on at first: line wrap and cursor. All others are off: alternate screen, mouse, bracketed paste, …"""
_DIGITS, _LONGEST = 4, 32
_PLAIN = b"\x1b[0m\x1b>"


class TerminalModes:
    """The modes that a program's output to the terminal has switched."""

    def __init__(self) -> None:
        self._now: dict[int, bool] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Parse a piece of output; an escape sequence may continue in the next piece."""
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
        """Return the escape sequences that restore the terminal; empty if there is nothing to undo."""
        changed = [mode for mode, on in self._now.items() if on != (mode in _ON_AT_FIRST)]
        if not changed:
            return b""
        switches = (b"\x1b[?%d%c" % (mode, b"h" if mode in _ON_AT_FIRST else b"l") for mode in reversed(changed))
        return b"".join(switches) + _PLAIN
