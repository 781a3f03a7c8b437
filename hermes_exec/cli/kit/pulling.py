"""Progress of image pulls and builds: a line that is redrawn on a terminal, one line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time

from hermes_exec.cli.kit.output import one_line, say
from hermes_exec.results import PullProgress

REDRAW_S = 0.1
PLAIN_S = 10.0


class PullDisplay:
    """The `on_pull` callback of the command line; called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown_at = float("-inf")
        self._terminal = sys.stderr.isatty()

    def __call__(self, news: PullProgress) -> None:
        """Show the progress, unless a line was shown a moment ago."""
        with self._lock:
            now = time.monotonic()
            if now - self._shown_at < (REDRAW_S if self._terminal else PLAIN_S):
                return
            self._shown_at = now
            line = describe(news)
            if self._terminal:
                sys.stderr.write(f"\r\x1b[K{one_line(line)}\r")
                sys.stderr.flush()
            else:
                say(line)


def describe(news: PullProgress) -> str:
    """Return one line about a pull or a build."""
    if not news.total_bytes:
        return f"image {news.image}: {news.status}"
    share = 100 * news.current_bytes / news.total_bytes
    done, total = news.current_bytes / 1e6, news.total_bytes / 1e6
    return f"image {news.image}: {share:.0f} % ({done:.1f} of {total:.1f} MB) {news.status}"
