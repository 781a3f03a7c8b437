"""A chat completions endpoint on loopback that answers with what a test gives it."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


@dataclass(frozen=True)
class Answer:
    """`breaks`: the connection ends in the middle of the body, or is reset before any of it."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    breaks: Literal["cut", "reset"] | None = None


def ok(message: dict[str, Any], finish_reason: str = "stop", **more: Any) -> Answer:
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


class Endpoint:
    """`requests` are the bodies received, with `paths` and `authorizations`; `answers` are used up in order."""

    def __init__(self, answers: list[Answer | Callable[[], Answer]]) -> None:
        self.answers = answers
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.paths: list[str] = []
        self.base_url = ""


class _Server(ThreadingHTTPServer):
    # A connection beyond these is tried again by the kernel after a second.
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is no trouble."""


@contextmanager
def endpoint(*answers: Answer | Callable[[], Answer], tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    state = Endpoint(list(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.requests.append(json.loads(body))
            state.paths.append(self.path)
            state.authorizations.append(self.headers.get("authorization"))
            given = state.answers.pop(0)
            answer = given if isinstance(given, Answer) else given()
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
            server.shutdown()
            thread.join()
