"""Checks of the messages from a browser's DevTools pipe before Playwright's client reads them.

At a message that it cannot handle, the client ends for all slots that it serves, and it stores data that pages send. A
page can send a lot, and a program in the slot may have replaced the browser. So responses pass if they were requested,
events that the client needs pass at a limited rate, and of all other events enough pass to show the newest.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable

from pydantic_core import from_json

from hermes_exec.tools.call.json_size import is_structure_above

END = b"\0"
MIB = 1 << 20
MAX_MESSAGE_BYTES = 32 * MIB
MAX_OPTIONAL_BYTES = MIB
MAX_STRUCTURE_BYTES = 8 * MIB
"""The maximum size of a message outside of its strings."""
MAX_SESSIONS = 300
"""The maximum number of tabs, frames with their own process, and workers."""
MAX_OPTIONAL_EVENTS = 500
"""The number of newest optional events that are queued; the tools show as many."""
RETRY_S = 0.1
NEEDED_EVENTS = frozenset(
    b"Browser.downloadProgress Browser.downloadWillBegin Debugger.paused Fetch.authRequired Fetch.requestPaused "
    b"Input.dragIntercepted Inspector.targetCrashed Inspector.targetReloadedAfterCrash Inspector.workerScriptLoaded "
    b"Network.loadingFailed Network.loadingFinished Network.requestServedFromCache Network.requestWillBeSent "
    b"Network.requestWillBeSentExtraInfo Network.responseReceived Network.responseReceivedExtraInfo "
    b"Network.webSocketClosed Network.webSocketCreated Network.webSocketHandshakeResponseReceived "
    b"Network.webSocketWillSendHandshakeRequest Page.fileChooserOpened Page.frameAttached Page.frameDetached "
    b"Page.frameNavigated Page.frameRequestedNavigation Page.javascriptDialogClosed Page.javascriptDialogOpening "
    b"Page.lifecycleEvent Page.navigatedWithinDocument Page.windowOpen Runtime.bindingCalled "
    b"Runtime.executionContextCreated Runtime.executionContextDestroyed Runtime.executionContextsCleared "
    b"Target.attachedToTarget Target.detachedFromTarget Tracing.tracingComplete".split()
)
"""Events without which the client or a tool fails. Others, such as console messages, may be left out."""
_EVENT_HEAD = b'{"method":"'
_EVENT = re.compile(r"[A-Z][A-Za-z]*\.[a-z][A-Za-z]*")
_COMMAND = re.compile(rb'\{"id":(-?\d+),(?:.*"sessionId":"(\w+)"\}$)?', re.DOTALL)
_SESSION_ENDED_CODE = -32001
"""The error code of a command to a session that has ended."""


class BadMessage(Exception):
    """A message that a browser never sends. The text describes it as part of a sentence."""


class Allowance:
    """A rate limit: an amount per second, with a burst after a rest."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left = burst
        self._refilled_at = time.monotonic()

    def spend(self, amount: float) -> None:
        """Use an amount, which may exceed the remaining allowance."""
        self._refill()
        self._left -= amount

    @property
    def missing_s(self) -> float:
        """The seconds until the allowance is no longer exceeded."""
        if self._left >= 0:
            return 0.0
        self._refill()
        return max(0.0, -self._left / self._per_s)

    def _refill(self) -> None:
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._refilled_at) * self._per_s)
        self._refilled_at = now


class MessageGuard:
    """Checks the messages of one browser. `schedule` is called with the seconds until `release` returns more events."""

    def __init__(self, schedule: Callable[[float], object]) -> None:
        self._schedule = schedule
        self._pending: dict[int, bytes] = {}
        """The sessions of the commands without a response yet, by id."""
        self._sessions = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False
        self._commands = bytearray()
        """Commands whose end has not arrived."""
        self._optional_queue: deque[bytes] = deque()
        self._optional_queue_bytes = 0
        self.left_out: dict[str, int] = {}
        """The number of events that were left out, by method."""
        self._all_bytes = Allowance(16 * MIB, 64 * MIB)
        self._events, self._event_bytes = Allowance(500, 10_000), Allowance(MIB, 16 * MIB)
        self._optional, self._optional_bytes = Allowance(100, 1000), Allowance(MIB // 4, 2 * MIB)

    # commands

    def note_commands(self, data: bytes) -> None:
        """Record the commands of the client, which may come in any number of pieces."""
        if not self._commands and data.count(END) == 1 and data.endswith(END):
            self._note_command(data[:-1])
            return
        self._commands += data
        *complete, rest = self._commands.split(END)
        self._commands = rest
        for command in complete:
            self._note_command(bytes(command))

    def _note_command(self, command: bytes) -> None:
        if (match := _COMMAND.match(command)) is not None:
            self._pending[int(match[1])] = match[2] or b""

    # messages

    def admit(self, piece: bytes) -> bytes:
        """Return the data that the client may read after the next piece. Raises BadMessage."""
        self._all_bytes.spend(len(piece))
        if self._parts or self._skipping:
            head, end, piece = piece.partition(END)
            self._take_part(head)
            if not end:
                return b""
            first, self._size = b"".join(self._parts), 0
            self._parts.clear()
            admitted = b"" if self._skipping else self._judge(first)
            self._skipping = False
            return admitted + (self.admit(piece) if piece else b"")
        *messages, rest = piece.split(END)
        if rest:
            self._take_part(rest)
        return b"".join(map(self._judge, messages))

    def _take_part(self, part: bytes) -> None:
        self._size += len(part)
        if self._skipping:
            return
        self._parts.append(part)
        if self._size > MAX_OPTIONAL_BYTES:
            method = _event_method(self._parts[0])
            if method and method not in NEEDED_EVENTS:
                self._leave_out(method)
                self._parts.clear()
                self._skipping = True
        if self._size > MAX_MESSAGE_BYTES and not self._skipping:
            raise BadMessage(f"a message of more than {MAX_MESSAGE_BYTES // MIB} MiB")

    def _judge(self, message: bytes) -> bytes:
        """Return a message to forward; empty if it is left out or queued."""
        method = _event_method(message)
        if method and method not in NEEDED_EVENTS:
            return self._judge_optional(message, method)
        content = _parse(message)
        if "id" in content:
            self._check_answer(content)
        else:
            self._check_event(content)
            self._events.spend(1)
            self._event_bytes.spend(len(message))
        return message + END

    def _check_answer(self, content: dict[str, object]) -> None:
        number, error = content["id"], content.get("error")
        session = self._pending.pop(number, None) if type(number) is int else None
        if session is None:
            raise BadMessage("a response without a command")
        if isinstance(error, dict) and error.get("code") == _SESSION_ENDED_CODE:
            return
        if str(content.get("sessionId", "")) != session.decode():
            raise BadMessage("a response from the wrong session")
        if not isinstance(error if error is not None else content.get("result"), dict):
            raise BadMessage("a response without a result")

    def _check_event(self, content: dict[str, object]) -> None:
        method = content.get("method")
        if not isinstance(method, str) or _EVENT.fullmatch(method) is None:
            raise BadMessage("a message that is neither a response nor an event")
        if not isinstance(content.get("params", {}), dict) or not isinstance(content.get("sessionId", ""), str):
            raise BadMessage(f"a {method} event of unknown form")
        if method == "Target.attachedToTarget":
            self._sessions += 1
            if self._sessions > MAX_SESSIONS:
                raise BadMessage(f"more than {MAX_SESSIONS} tabs, frames and workers at once")
        elif method == "Target.detachedFromTarget":
            self._sessions -= 1

    # optional events

    def _judge_optional(self, message: bytes, method: bytes) -> bytes:
        if len(message) > MAX_OPTIONAL_BYTES:
            self._leave_out(method)
            return b""
        if not self._optional_queue and not self._waiting_s:
            return self._pass_optional(message)
        if not self._optional_queue:
            self._schedule(self._waiting_s)
        self._optional_queue.append(message)
        self._optional_queue_bytes += len(message)
        while len(self._optional_queue) > MAX_OPTIONAL_EVENTS or self._optional_queue_bytes > MAX_OPTIONAL_BYTES:
            oldest = self._optional_queue.popleft()
            self._optional_queue_bytes -= len(oldest)
            self._leave_out(_event_method(oldest))
        return b""

    def release(self) -> bytes:
        """Return the queued optional events that the rate limit now allows. Raises BadMessage."""
        released = []
        while self._optional_queue and not self._waiting_s:
            message = self._optional_queue.popleft()
            self._optional_queue_bytes -= len(message)
            released.append(self._pass_optional(message))
        if self._optional_queue:
            self._schedule(max(RETRY_S, self._waiting_s))
        return b"".join(released)

    def _pass_optional(self, message: bytes) -> bytes:
        self._check_event(_parse(message))
        self._optional.spend(1)
        self._optional_bytes.spend(len(message))
        return message + END

    @property
    def _waiting_s(self) -> float:
        return max(self._optional.missing_s, self._optional_bytes.missing_s)

    def _leave_out(self, method: bytes) -> None:
        name = method.decode("ascii", "replace")
        self.left_out[name] = self.left_out.get(name, 0) + 1

    # rate

    @property
    def pause_s(self) -> float:
        """The seconds for which no more data may be read from the browser."""
        return max(self._all_bytes.missing_s, self._events.missing_s, self._event_bytes.missing_s)


def _event_method(message: bytes) -> bytes:
    """Return the method of an event, from its beginning as Chromium writes it; empty for any other message."""
    if not message.startswith(_EVENT_HEAD):
        return b""
    return message[len(_EVENT_HEAD) : message.find(b'"', len(_EVENT_HEAD), 100)]


def _parse(message: bytes) -> dict[str, object]:
    """Return a message as an object, if the client's own parser accepts it, too."""
    if len(message) > MAX_STRUCTURE_BYTES and is_structure_above(message, MAX_STRUCTURE_BYTES):
        raise BadMessage(f"a message of more than {MAX_STRUCTURE_BYTES // MIB} MiB outside of strings")
    try:
        try:
            content = from_json(message, allow_inf_nan=False, cache_strings="keys")
        except ValueError:  # half of a surrogate pair, which this parser does not accept
            content = json.loads(message.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise BadMessage("a message that is not JSON") from None
    if type(content) is not dict:
        raise BadMessage("a message that is not an object")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
