"""What passes of what a browser says on its DevTools pipe."""

from __future__ import annotations

import json

import pytest

from hermes_exec.tools.browser.message_guard import MAX_OPTIONAL_EVENTS, MAX_SESSIONS, MIB, BadMessage, MessageGuard

LOGGED = b'{"method":"Runtime.consoleAPICalled","params":{"type":"log","number":%d},"sessionId":"A"}\0'
ASKED = b'{"id":7,"method":"Runtime.evaluate","params":{},"sessionId":"A"}\0'
ATTACHED = b'{"method":"Target.attachedToTarget","params":{"sessionId":"A"}}\0'


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def guard(waits: list[float]) -> MessageGuard:
    made = MessageGuard(waits.append)
    made.note_commands(ASKED)
    return made


@pytest.mark.parametrize(
    "message",
    [
        b'{"id":7,"result":{"value":1},"sessionId":"A"}',
        b'{"id":7,"error":{"code":-32000,"message":"no"},"sessionId":"A"}',
        b'{"id":7,"error":{"code":-32001,"message":"Session with given id not found."}}',
        b'{"id":7,"result":{"value":"half of a pair: \\ud800"},"sessionId":"A"}',
        b'{"method":"Page.frameNavigated","params":{"frame":{}},"sessionId":"B"}',
        b'{"method":"Inspector.targetCrashed","sessionId":"A"}',
        LOGGED[:-1] % 1,
        b'{"id":7,"result":{"value":"' + b'[]\\",' * (3 * MIB) + b'"},"sessionId":"A"}',
    ],
)
def test_message_passes_however_it_is_cut(guard: MessageGuard, message: bytes) -> None:
    whole = message + b"\0"
    for cut in (0, 1, 9, len(whole) - 1):
        guard.note_commands(ASKED)
        assert guard.admit(whole[:cut]) + guard.admit(whole[cut:]) == whole
    guard.note_commands(ASKED)
    assert guard.admit(whole + LOGGED % 2) == whole + LOGGED % 2


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"garbage", "not JSON"),
        (b"", "not JSON"),
        (b'{"id":7,"result":NaN}', "not JSON"),
        (b'{"id":7,"result":{"value":"\\ud800","more":Infinity},"sessionId":"A"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"id":7,"result":{"value":[' + b"[]," * (3 * MIB) + b'0]},"sessionId":"A"}', "8 MiB outside of strings"),
        (b"[1]", "not an object"),
        (b'{"id":8,"result":{}}', "without a command"),
        (b'{"id":true,"result":{},"sessionId":"A"}', "without a command"),
        (b'{"id":"7","result":{},"sessionId":"A"}', "without a command"),
        (b'{"id":[7],"result":{},"sessionId":"A"}', "without a command"),
        (b'{"id":7,"result":{}}', "wrong session"),
        (b'{"id":7,"result":null,"sessionId":"A"}', "without a result"),
        (b'{"id":7,"error":"no","sessionId":"A"}', "without a result"),
        (b"{}", "neither a response nor an event"),
        (b'{"method":"error","params":{}}', "neither a response nor an event"),
        (b'{"method":"Page.loaded","params":[]}', "of unknown form"),
        (b'{"method":"Runtime.consoleAPICalled","params":7}', "of unknown form"),
        (b'{"method":"Runtime.consoleAPICalled","params":{}', "not JSON"),
    ],
)
def test_forged_message_is_refused(guard: MessageGuard, message: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        guard.admit(message + b"\0")


def test_command_is_answered_once(guard: MessageGuard) -> None:
    answer = b'{"id":7,"result":{},"sessionId":"A"}\0'
    assert guard.admit(answer) == answer
    with pytest.raises(BadMessage):
        guard.admit(answer)


def test_commands_are_noted_however_they_are_cut(guard: MessageGuard) -> None:
    asked = {"id": 12345, "method": "Target.detachFromTarget", "params": {"sessionId": "B"}}
    longer = {"id": -9999, "method": "Browser.close", "params": {"text": '"sessionId":"C"}'}}
    data = b"".join(json.dumps(command, separators=(",", ":")).encode() + b"\0" for command in (asked, longer))
    for position in range(len(data)):
        guard.note_commands(data[position : position + 1])
    answers = b'{"id":12345,"result":{}}\0{"id":-9999,"result":{}}\0'
    assert guard.admit(answers) == answers


def test_newest_logs_wait_for_their_turn(guard: MessageGuard, waits: list[float]) -> None:
    passed = b"".join(guard.admit(LOGGED % number) for number in range(20_000))
    assert 1000 <= passed.count(b"\0") < 2000
    assert len(waits) == 1
    (left_out,) = guard.left_out.items()
    assert left_out == ("Runtime.consoleAPICalled", 20_000 - MAX_OPTIONAL_EVENTS - passed.count(b"\0"))
    answer = b'{"id":7,"result":{},"sessionId":"A"}\0'
    assert guard.admit(answer) == answer
    assert guard.pause_s == 0


def test_logs_of_any_size_are_left_out_unread(guard: MessageGuard) -> None:
    event = b'{"method":"Runtime.consoleAPICalled","params":{"args":["'
    assert guard.admit(event) == b""
    for _ in range(200):
        assert guard.admit(b"x" * MIB) == b""
    assert guard.admit(b'"]}}\0' + ATTACHED) == ATTACHED
    assert guard.left_out == {"Runtime.consoleAPICalled": 1}
    assert guard.pause_s > 1


def test_message_without_end_is_refused(guard: MessageGuard) -> None:
    guard.admit(b'{"id":7,"result":{"value":"')
    with pytest.raises(BadMessage, match="more than 32 MiB"):
        for _ in range(40):
            guard.admit(b"x" * MIB)


def test_sessions_are_counted(guard: MessageGuard) -> None:
    detached = ATTACHED.replace(b"attachedTo", b"detachedFrom")
    for _ in range(2 * MAX_SESSIONS):
        assert guard.admit(ATTACHED + detached) == ATTACHED + detached
    with pytest.raises(BadMessage, match="tabs, frames and workers"):
        guard.admit(ATTACHED * (MAX_SESSIONS + 1))


def test_events_that_are_needed_are_slowed_down(guard: MessageGuard) -> None:
    event = b'{"method":"Network.requestWillBeSent","params":{"url":"' + b"x" * MIB + b'"}}\0'
    for _ in range(64):
        assert guard.admit(event) == event
    assert 1 < guard.pause_s < 60
