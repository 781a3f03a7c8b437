"""An OpenAI endpoint on loopback that answers by a script: a tool call for each prompt, then the result of the call."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOL = "terminal"


class Endpoint(ThreadingHTTPServer):
    """Answers each conversation with one call of `terminal`, and then with the result that it got."""

    daemon_threads = True

    def __init__(self, command: str, on_result: Callable[[str], None], handler: type[Handler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.command, self.on_result = command, on_result
        self.tools: list[str] = []
        self.system = ""

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the message for a request."""
        messages = request["messages"]
        self.tools = [tool["function"]["name"] for tool in request.get("tools", [])] or self.tools
        last = messages[-1]
        if last["role"] == "tool":
            self.on_result(last["content"])
            return {"role": "assistant", "content": f"RESULT {last['content']}"}
        if TOOL not in self.tools or not request.get("tools"):
            return {"role": "assistant", "content": "a title"}
        self.system = str(messages[0]["content"])
        function = {"name": TOOL, "arguments": json.dumps({"command": self.command})}
        call = {"id": "call_1", "type": "function", "index": 0, "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "scripted", "object": "model", "context_length": 128_000}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("/chat/completions"):
            self.send_error(404)
            return
        message = self.server.answer(request)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        whole = {"id": "answer", "created": 0, "model": "scripted"}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._send({**whole, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        chunk = {**whole, "object": "chat.completion.chunk"}
        parts: list[dict[str, Any]] = [
            {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {**chunk, "choices": [], "usage": usage},
        ]
        text = "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"
        self._send_text(text, "text/event-stream")

    def _send(self, value: object) -> None:
        self._send_text(json.dumps(value), "application/json")

    def _send_text(self, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serve(command: str, on_result: Callable[[str], None]) -> Iterator[Endpoint]:
    """Serve an endpoint in a thread."""
    endpoint = Endpoint(command, on_result)
    thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.shutdown()
        thread.join()
        endpoint.server_close()
