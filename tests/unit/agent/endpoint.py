"""A chat completions endpoint on loopback that answers with what a test gives it."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


@dataclass(frozen=True)
class Answer:
    """`breaks`: the connection ends in the middle of the body, or is reset before any of it. `drips` are sent in the
    place of the body, with a pause of so many seconds for each number, until the connection is closed after the last.
    """

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    breaks: Literal["cut", "reset"] | None = None
    drips: Sequence[bytes | float] | None = None


def ok(message: dict[str, Any], finish_reason: object = "stop", **more: Any) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
        **more,
    }
    return Answer(200, json.dumps(body).encode(), {"content-type": "application/json"})


def refusal(status: int, message: str = "no", code: str | None = None, **headers: str) -> Answer:
    body = {"error": {"message": message, "type": "x", "code": code}}
    return Answer(status, json.dumps(body).encode(), {"content-type": "application/json", **headers})


EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


def chunks_of(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream with this answer: texts and arguments in pieces, usage in a chunk of its own."""
    choice, *_ = whole["choices"]
    message = dict(choice["message"])
    deltas: list[dict[str, Any]] = [{"role": message.pop("role", "assistant"), "content": ""}]
    for call_index, call in enumerate(_taken_list(message, "tool_calls")):
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(arguments, str):
            deltas.append({"tool_calls": [call and {**call, "index": call_index}]})
            continue
        begun = {**call, "index": call_index, "function": {**call["function"], "arguments": ""}}
        pieces = [{"index": call_index, "function": {"arguments": piece}} for piece in _pieces(arguments)]
        deltas += [{"tool_calls": [piece]} for piece in (begun, *pieces)]
    for detail in _taken_list(message, "reasoning_details"):
        text = detail.get("text")
        pieces = [{**detail, "text": piece} for piece in _pieces(text)] if text else [detail]
        deltas += [{"reasoning_details": [piece]} for piece in pieces]
    for name, value in message.items():
        deltas += [{name: piece} for piece in (_pieces(value) if isinstance(value, str) else [value])]
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")}]})
    return [*chunks, {**frame, "choices": [], "usage": whole.get("usage")}]


def events(chunks: list[dict[str, Any]], *, done: bool = True, line_end: str = "\n") -> bytes:
    """The chunks as server-sent events."""
    data = [*(json.dumps(chunk) for chunk in chunks), *(["[DONE]"] if done else [])]
    return "".join(f"data: {each}{line_end}{line_end}" for each in data).encode()


def streamed(answer: Answer) -> Answer:
    """The answer as a stream; what is no completion stays as it is."""
    try:
        whole = json.loads(answer.body)
        (choice,) = whole["choices"]
        chunks = chunks_of(whole) if isinstance(choice["message"], dict) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return answer
    if answer.status != 200 or chunks is None:
        return answer
    return replace(answer, body=events(chunks), headers={**answer.headers, **EVENTS})


def _taken_list(message: dict[str, Any], name: str) -> list[Any]:
    return message.pop(name) if isinstance(message.get(name), list) else []


def _pieces(text: str) -> list[str]:
    return [text[at : at + 7] for at in range(0, len(text), 7)]


class Endpoint:
    """`requests` are the bodies received, without `stream` and its options, which are in `streams`, with `paths` and
    `authorizations`. `answers` are used up in order; `reply` answers what comes after them.
    """

    def __init__(
        self, answers: list[Answer | Callable[[], Answer]], reply: Callable[[dict[str, Any]], Answer] | None
    ) -> None:
        self.answers = answers
        self.reply = reply
        self.requests: list[dict[str, Any]] = []
        self.streams: list[tuple[Any, Any]] = []
        self.authorizations: list[str | None] = []
        self.paths: list[str] = []
        self.base_url = ""
        self.connections = 0


class _Server(ThreadingHTTPServer):
    # A connection beyond these is tried again by the kernel after a second.
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is no trouble."""


@contextmanager
def endpoint(
    *answers: Answer | Callable[[], Answer],
    reply: Callable[[dict[str, Any]], Answer] | None = None,
    tls: ssl.SSLContext | None = None,
    streams: bool = True,
) -> Iterator[Endpoint]:
    """Serve these answers; `streams` says whether completions come as a stream where one is asked for."""
    state = Endpoint(list(answers), reply)
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            state.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request = json.loads(body)
            stream = request.pop("stream", None)
            state.streams.append((stream, request.pop("stream_options", None)))
            state.requests.append(request)
            state.paths.append(self.path)
            state.authorizations.append(self.headers.get("authorization"))
            if state.reply is not None and not state.answers:
                answer = state.reply(request)
            else:
                given = state.answers.pop(0)
                answer = given if isinstance(given, Answer) else given()
            if answer.drips is not None:
                self._drip(answer)
                return
            answer = streamed(answer) if streams and stream else answer
            self.close_connection = answer.breaks is not None
            if answer.breaks == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body[: len(answer.body) // 2] if answer.breaks else answer.body)

        def _drip(self, answer: Answer) -> None:
            self.close_connection = True
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                for piece in answer.drips or ():
                    if isinstance(piece, bytes):
                        self.wfile.write(piece)
                        self.wfile.flush()
                    elif stopped.wait(piece):
                        break

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        state.base_url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            stopped.set()
            server.shutdown()
            thread.join()
