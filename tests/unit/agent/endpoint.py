"""A chat completions endpoint on loopback that answers with what a test gives it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


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
    """`requests` are the bodies received, `authorizations` their headers; `answers` are used up in order."""

    def __init__(self, answers: list[Answer | Callable[[], Answer]]) -> None:
        self.answers = answers
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.base_url = ""


@contextmanager
def endpoint(*answers: Answer | Callable[[], Answer]) -> Iterator[Endpoint]:
    state = Endpoint(list(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.requests.append(json.loads(body))
            state.authorizations.append(self.headers.get("authorization"))
            given = state.answers.pop(0)
            answer = given if isinstance(given, Answer) else given()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.base_url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
