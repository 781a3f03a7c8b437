"""What a terminal would obey, and what the program shows on one."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from tests.e2e.cli.test_shell import Terminal

# A title, an erased screen, the same by characters of eight bits, and a mark that turns the text after it around.
HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b2J\u202e"
OBEYED = re.compile("\x1b\\]0;|\x1b\\[2J|[\x80-\x9f\u202e]")


def shown(*arguments: str) -> tuple[str, int]:
    """What a program prints on a terminal, and how it ends."""
    terminal = Terminal(arguments)
    try:
        code = terminal.ended()
        os.set_blocking(terminal.fd, False)
        with suppress(BlockingIOError):
            terminal.seen += os.read(terminal.fd, 1 << 20).decode(errors="replace")
        return terminal.seen, code
    finally:
        terminal.close()
