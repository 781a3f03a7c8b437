"""Each decoder of the driver as a function of bytes: it returns, or raises what its callers expect. Nothing else."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import math
import os
import tarfile
import tempfile
from collections.abc import Callable
from typing import Any, cast

import anyio

from hermes_agent.gateway.anthropic import AnthropicMessages
from hermes_agent.gateway.dialect import read_json
from hermes_agent.gateway.openai import ChatCompletions
from hermes_agent.gateway.request import GatewayError
from hermes_agent.gateway.responses import Responses
from hermes_agent.parsers import FORMATS
from hermes_exec.aio.streams import NowaitStream
from hermes_exec.aio.waker import EventWaker
from hermes_exec.aio.websocket import WebSocket
from hermes_exec.backends.docker.stream import DockerStream
from hermes_exec.backends.nomad.exec_stream import ExecStream
from hermes_exec.channel import RemoteError
from hermes_exec.channel.conversation import Conversation
from hermes_exec.channel.encoding import from_wire
from hermes_exec.channel.frames import HEADER, MAX_PAYLOAD, MORE, Decoder, Frame, FrameType, parse_json
from hermes_exec.channel.handshake import Identity, SandboxFacts, shake_hands
from hermes_exec.errors import ChannelLost, ProtocolError, SandboxDied
from hermes_exec.results import FileStat, KillReceipt, ProcessInfo
from hermes_exec.slot.answers import SlotFacts, isolation, items, process_info, receipt, remote_failure, texts
from hermes_exec.slot.files import _search_result, _stat
from hermes_exec.slot.process import Process
from hermes_exec.slot.run_result import run_result
from hermes_exec.slot.scope import SlotScope
from hermes_exec.slot.transfer.unpack import unpack
from hermes_exec.tracing.reader import parse_trace

MAX_INT = 2**63


def frames(data: bytes) -> None:
    """However a stream is cut it gives the same frames, and holds at most one that is not whole."""
    cut = data[0] if data else 0
    cuts, offset = Decoder(), 0
    pieces: list[Frame] = []
    whole: list[Frame] | None = None
    with contextlib.suppress(ProtocolError):
        whole = Decoder().feed(data)
    try:
        while offset < len(data):
            pieces += cuts.feed(data[offset : offset + cut + 1])
            assert len(cuts._buffer) < HEADER.size + MAX_PAYLOAD
            offset += cut + 1
    except ProtocolError:
        assert whole is None
    else:
        assert whole == pieces


def messages(data: bytes) -> None:
    """The JSON of a frame is an object, or refused."""
    with contextlib.suppress(ProtocolError):
        assert isinstance(parse_json(data), dict)


class _Said:
    """A stream on which everything was said already."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self.data:
            raise anyio.EndOfStream
        data, self.data = self.data, b""
        return data

    async def drain(self) -> None:
        return

    def send_nowait(self, data: bytes) -> None:
        assert len(Decoder().feed(data)) == 1


def handshake(data: bytes) -> None:
    """The first byte says whether the sandbox is known already; the rest is what it says."""
    known = "boot-1" if data[:1] > b"\x7f" else None
    identity = Identity(key=bytes(32), boot_id=known)
    with contextlib.suppress(ProtocolError, ChannelLost, SandboxDied, anyio.EndOfStream):
        _run(shake_hands(cast("NowaitStream", _Said(data[1:])), identity, 60.0))
        assert identity.boot_id is not None
        identity.boot_id.encode()


def _run(work: Any) -> Any:  # noqa: ANN401 - drives a coroutine that never has to wait
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something that cannot come")


WINDOW = 4096


def conversation(data: bytes) -> None:
    """Frames of one conversation: it takes each or refuses it, and never holds more than its window and a frame."""
    sent: list[bytes] = []
    talk = Conversation(sent.append, EventWaker(), 1, b"{}", WINDOW, WINDOW)
    sent.append(talk.start())
    talk._put(FrameType.DATA, 0, b"input")
    talk._put(FrameType.END, 0, b"")
    with contextlib.suppress(ProtocolError):
        for kind, flags, channel, _, payload in Decoder().feed(data):
            match kind:
                case FrameType.DATA | FrameType.EVENT | FrameType.END:
                    talk.on_positioned(kind, channel, payload)
                case FrameType.CREDIT:
                    talk.on_credit(payload)
                case FrameType.RESPONSE:
                    if talk.on_response(payload, bool(flags & MORE)):
                        break
                case FrameType.RESUMED:
                    Decoder().feed(talk.on_resumed(payload))
                case FrameType.RESUME:  # stands for a stream that broke
                    Decoder().feed(talk.resume())
            held = sum(size for _, size in talk._items)
            assert held <= WINDOW + 2 * MAX_PAYLOAD
            assert len(talk._items) <= (WINDOW + MAX_PAYLOAD) // 16
    Decoder().feed(b"".join(sent))
    if talk.finished:
        with contextlib.suppress(ProtocolError, RemoteError):
            answer, pieces = _run(talk.collect())
            _result(answer, pieces)


def answers(data: bytes) -> None:
    """A JSON object as the answer to everything that can be asked."""
    try:
        answer = parse_json(data)
    except ProtocolError:
        return
    for parse in ANSWERS:
        with contextlib.suppress(ProtocolError):
            parse(answer)


def _result(answer: dict[str, Any], pieces: dict[int, list[bytes]] | None = None) -> None:
    filled = {
        channel: [bytes(_kept(answer.get(name)))] for channel, name in enumerate(("stdout", "stderr", "merged"), 1)
    }
    for merged in (False, True):
        result = run_result(answer, filled if pieces is None else pieces, merged=merged, request_id=1)
        _sane(result.stdout_total_bytes, result.exit_code, result.usage.max_rss_bytes)
        assert math.isfinite(result.duration_s)
        assert len(result.output_bytes) <= len(result.stdout_bytes) + len(result.stderr_bytes)
        _shown(result.stdout, result.stderr, result.output, repr(result), result.reason, result.state_lost)
        _names(result.spill_path, result.stderr_spill_path)


def _kept(told: object) -> int:
    """How many bytes an answer says that it comes with, when so many can be."""
    parts = [told.get(part) for part in ("head", "tail")] if isinstance(told, dict) else []
    return min(sum(part for part in parts if type(part) is int and 0 <= part < MAX_PAYLOAD), MAX_PAYLOAD)


def _receipt(answer: dict[str, Any]) -> None:
    found: KillReceipt = receipt(answer)
    _sane(found.left)
    _shown(*found.handles)


def _slot(answer: dict[str, Any]) -> None:
    facts = SlotFacts.parse(answer)
    _names(facts.workspace, facts.home, facts.tmp)
    _shown(facts.user_name, facts.shell, facts.loopback, *facts.session_keeps, repr(facts.isolation))


def _isolation(answer: dict[str, Any]) -> None:
    _shown(repr(isolation(answer)))


def _process(answer: dict[str, Any]) -> None:
    info: ProcessInfo = process_info(answer)
    assert math.isfinite(info.started_at)
    _names(*info.argv)


def _listed(answer: dict[str, Any]) -> None:
    process = Process.from_entry(cast("SlotScope", None), answer)
    assert math.isfinite(process.started_at)
    _names(process.command, process.cwd)
    repr(process)


def _file(answer: dict[str, Any]) -> None:
    facts: FileStat = _stat(answer)
    assert math.isfinite(facts.mtime)
    _sane(facts.size, facts.mode, facts.uid)
    _names(facts.path, facts.name, facts.target)


def _search(answer: dict[str, Any]) -> None:
    found = _search_result(answer)
    _names(*(match.path for match in found.matches), *(file.path for file in found.files))


def _error(answer: dict[str, Any]) -> None:
    error = RemoteError(answer)
    seen = remote_failure(error, path="a/b" if error.detail else None)
    text = str(seen)
    assert len(text) < 1 << 16 or isinstance(seen, OSError)
    _shown(error.message)


def _ready(answer: dict[str, Any]) -> None:
    facts = SandboxFacts.parse(answer)
    facts.boot_id.encode()
    assert 1 <= facts.input_window <= 16 << 20
    assert isinstance(facts.isolation, dict)


def _lists(answer: dict[str, Any]) -> None:
    for name in list(answer)[:5]:
        with contextlib.suppress(ProtocolError):
            texts(answer, name)
        with contextlib.suppress(ProtocolError):
            items(answer, name)
        with contextlib.suppress(ProtocolError):
            _names(from_wire(answer[name], name))


def _sane(*numbers: int) -> None:
    assert all(-MAX_INT <= number < MAX_INT for number in numbers)


def _names(*names: str | None) -> None:
    """They can be given to the system: every one stands for bytes, without a NUL."""
    assert all(b"\0" not in os.fsencode(name) for name in names if name is not None)


def _shown(*words: str | None) -> None:
    """They can be written as UTF-8."""
    for word in words:
        if word is not None:
            word.encode("utf-8", "surrogateescape")


ANSWERS: tuple[Callable[[dict[str, Any]], None], ...] = (
    _result,
    _receipt,
    _slot,
    _isolation,
    _process,
    _listed,
    _file,
    _search,
    _error,
    _ready,
    _lists,
)


def archive(data: bytes) -> None:
    """A tar stream writes below its destination alone, and is refused when it is none."""
    with tempfile.TemporaryDirectory(prefix="hermes-exec-fuzz-") as around:
        top, parts = os.path.join(around, "a", "top"), [data[:700], data[700:]]
        with contextlib.suppress(tarfile.TarError, OSError):
            told = unpack(top, lambda: parts.pop(0) if parts else b"")
            assert sum(map(len, told.refused)) < 1 << 22
        assert os.listdir(around) in (["a"], [])
        assert os.listdir(os.path.join(around, "a")) == ["top"]
        # What was written may be without permissions for who cleans up.
        for directory, _, _ in os.walk(top):
            os.chmod(directory, 0o700)


def docker(data: bytes) -> None:
    """The frames of a Docker exec, cut anywhere, give the same bytes."""
    cut = data[0] if data else 0

    def read(size: int) -> bytes | None:
        stream = DockerStream.__new__(DockerStream)
        stream._head, stream._left, stream._kind, stream._begun = b"", 0, 1, True
        try:
            return b"".join(stream.demultiplex(data[at : at + size]) for at in range(0, len(data), size))
        except anyio.BrokenResourceError:
            return None

    assert read(max(1, len(data))) == read(cut + 1)


def accepted_websocket() -> WebSocket:
    """A websocket that a server has accepted."""
    websocket = WebSocket()
    key = websocket.request("host", "/", {}).partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
    proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    assert websocket.refusal_status(answer + b"Sec-WebSocket-Accept: " + proof + b"\r\n\r\n") == 0
    return websocket


def nomad(data: bytes) -> None:
    """The messages of a Nomad exec, cut anywhere, give the same bytes until it ends."""
    cut = data[0] if data else 0

    def read(size: int) -> bytes:
        stream, got = ExecStream(os.open(os.devnull, os.O_RDWR), accepted_websocket(), frames=False), b""
        with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            for at in range(0, len(data), size):
                got += stream.unwrap(data[at : at + size])
        stream.close_now()
        return got

    assert read(max(1, len(data))) == read(cut + 1)


def trace(data: bytes) -> None:
    """A trace file that somebody sent is read, or is none; what it tells can be drawn."""
    with contextlib.suppress(LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        record = parse_trace(io.StringIO(data.decode("utf-8", "replace")))
        for call in record.calls:
            assert math.isfinite(sum(call.phases.values()))
            assert call.why


def model_answer(data: bytes) -> None:
    """Whatever a model writes is read, and calls that were read are the same calls when they are written again."""
    text = data.decode("utf-8", "replace")
    for form in FORMATS.values():
        calls = form.parse(text, ()).calls
        assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
        with contextlib.suppress(ValueError):
            again = form.parse(form.render(calls), ())
            assert [call.name for call in again.tool_calls] == [call.name for call in calls]


def model_request(data: bytes) -> None:
    """Whatever a harness asks is a conversation of texts, or refused."""
    for dialect in (ChatCompletions, AnthropicMessages, Responses):
        with contextlib.suppress(GatewayError):
            request = dialect(read_json(data), {}).request
            for message in request.messages:
                _shown(message["content"])
                for call in message.get("tool_calls", ()):
                    _shown(call["id"], call["function"]["name"], call["function"]["arguments"])


DECODERS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "messages": messages,
    "model_answer": model_answer,
    "model_request": model_request,
    "handshake": handshake,
    "conversation": conversation,
    "answers": answers,
    "archive": archive,
    "docker": docker,
    "nomad": nomad,
    "trace": trace,
}
"""By the name of their directory in `corpus/`."""
