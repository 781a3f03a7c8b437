"""Signals as impatient users and launchers send them: several, some milliseconds apart."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import NamedTuple

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def take_interrupts() -> None:
    """Take interrupts, also where a shell has started the tests in the background, which ignores them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


class Burst(NamedTuple):
    """Signals to a process, or to its process group, which it has to lead."""

    gap_ms: int
    numbers: tuple[signal.Signals, ...]
    to_group: bool = False

    def __str__(self) -> str:
        return "-".join([*(number.name for number in self.numbers), f"{self.gap_ms}ms", *["group"] * self.to_group])

    @property
    def messages(self) -> tuple[str, ...]:
        """What a command may say: of signals that wait together, Python handles the lowest number first."""
        return tuple(f"{number.name}: ending all sandboxes\n" for number in self.numbers)

    def send(self, process: subprocess.Popen[str]) -> None:
        """Send them."""
        for place, number in enumerate(self.numbers):
            if place:
                time.sleep(self.gap_ms / 1000)
            if self.to_group:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)


BURSTS = (
    *(Burst(gap_ms, (INT, INT)) for gap_ms in (0, 5, 10, 20, 30, 50)),
    Burst(20, (INT, INT, INT)),
    Burst(10, (INT, TERM)),
    Burst(10, (TERM, INT)),
    Burst(10, (TERM, HUP)),
    Burst(5, (INT, INT), to_group=True),
    Burst(50, (INT, INT), to_group=True),
)
