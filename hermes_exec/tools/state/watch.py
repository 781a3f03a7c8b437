"""Notices about background processes: the end of a process or a string in its output, with a rate limit."""

from __future__ import annotations

import codecs
import re
from collections import deque
from dataclasses import dataclass, field

from hermes_exec.tools.terminal.ansi import strip_ansi

COOLDOWN_S = 15.0
"""Per process, at most one notice of a match in this time."""

STRIKES = 3
"""After this many consecutive cooldowns with dropped matches, the watch reports only the end of the process."""

GLOBAL_LIMIT, GLOBAL_WINDOW_S = 15, 10.0
"""The limit of match notices over all processes of a Toolbox, and its time window."""

_UTF_8 = codecs.getincrementaldecoder("utf-8")
_MAX_LINES = 20
_MAX_LINE_CHARS = 500
_MAX_REST_CHARS = 64 << 10
"""The part of an unfinished line that is kept for the next search."""


@dataclass(frozen=True)
class Notice:
    """An event of a background process.

    `kind` is `completed`, `matched` or `watch_disabled`; `text` is for the model.
    """

    session_id: str
    kind: str
    text: str
    data: dict[str, object]


@dataclass
class Watch:
    """The watch on one process: its patterns, and the matches that are not reported yet.

    `offset` is the position up to which the output was searched, `match_count` the number of unreported matching lines,
    and `lines` the beginnings of the first of them.
    """

    session_id: str
    command: str
    notify_on_complete: bool
    patterns: tuple[str, ...]
    offset: int = 0
    match_count: int = 0
    lines: list[str] = field(default_factory=list)
    _rest: str = ""
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    _last_notice_at: float | None = None
    _dropped_in_window: bool = False
    _strikes: int = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is watched any longer."""
        return not self.notify_on_complete and not self.patterns

    def search(self, data: bytes, *, ended: bool) -> None:
        """Search more of the output for the patterns.

        Only complete lines are searched; an unfinished one is kept. If it is very long, its beginning is searched too.
        """
        text = self._rest + self._decoder.decode(data, final=ended)
        body, _, rest = (text, "", "") if ended else text.rpartition("\n")
        excess = len(rest) - _MAX_REST_CHARS
        if excess > 0:
            body += "\n" + rest[: excess + max(map(len, self.patterns), default=1) - 1]
        self._rest = rest[max(0, excess) :]
        body = strip_ansi(body)
        if not any(pattern in body for pattern in self.patterns):
            return
        matches = re.compile("|".join(map(re.escape, self.patterns))).search
        matching = [line for line in body.split("\n") if matches(line)]
        self.match_count += len(matching)
        self.lines += [line[:_MAX_LINE_CHARS] for line in matching[: _MAX_LINES - len(self.lines)]]

    def take(self) -> tuple[list[str], int]:
        """Return the unreported matches and clear them: the beginnings of the first lines, and the number of lines."""
        taken = self.lines, self.match_count
        self.lines, self.match_count = [], 0
        return taken

    def admit(self, now: float) -> bool:
        """Return whether a match at `now` (seconds) may be reported; otherwise count it as dropped."""
        if self._last_notice_at is None or now - self._last_notice_at >= COOLDOWN_S:
            if self._last_notice_at is not None:
                quiet = now - self._last_notice_at >= 2 * COOLDOWN_S
                self._strikes = 0 if quiet or not self._dropped_in_window else self._strikes
            self._last_notice_at = now
            self._dropped_in_window = False
            return True
        if not self._dropped_in_window:
            self._dropped_in_window = True
            self._strikes += 1
        return False

    def stop_if_overfull(self) -> bool:
        """Stop matching if too many cooldowns in a row had dropped matches; return whether it was stopped.

        A stopped watch only reports the end of the process.
        """
        if self._strikes < STRIKES or not self.patterns:
            return False
        self.patterns = ()
        self.notify_on_complete = True
        return True


@dataclass
class RateLimit:
    """The rate limit over all processes."""

    _times: deque[float] = field(default_factory=deque)

    def admit(self, now: float) -> bool:
        """Count a notice at `now` (seconds) and return True, or return False if the limit is reached."""
        while self._times and now - self._times[0] >= GLOBAL_WINDOW_S:
            self._times.popleft()
        if len(self._times) >= GLOBAL_LIMIT:
            return False
        self._times.append(now)
        return True


def match_notice(watch: Watch, lines: list[str], matched: int) -> Notice:
    """Return the notice of `matched` matching lines, of which `lines` are shown."""
    more = f"\n… and {matched - len(lines)} more lines" if matched > len(lines) else ""
    text = (
        f"[Background process {watch.session_id} printed a watched string]\nCommand: {watch.command}\n"
        + "\n".join(lines)
        + more
    )
    return Notice(watch.session_id, "matched", text, {"lines": lines, "matched_lines": matched})


def shutoff_notice(watch: Watch) -> Notice:
    """Return the notice that a watch was switched off because it matched too often."""
    text = (
        f"[watch_patterns of background process {watch.session_id} matched too often and are switched off; one "
        "notice comes when the process ends]\n"
        f"Command: {watch.command}"
    )
    return Notice(watch.session_id, "watch_disabled", text, {})


def end_notice(watch: Watch, exit_code: int, output: str) -> Notice:
    """Return the notice that a process ended, with the end of its output."""
    text = (
        f"[Background process {watch.session_id} finished with exit code {exit_code}]\nCommand: "
        f"{watch.command}\nOutput:\n{output}"
    )
    return Notice(watch.session_id, "completed", text, {"exit_code": exit_code, "output": output})
