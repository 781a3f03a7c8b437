"""A rollout of verifiers whose harness runs in a slot without network: the page's example, with a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.doors import ROOT

HARNESS = '''
import verifiers.v1 as vf

PROGRAM = b"""
import json, os, subprocess, urllib.request

def ask(messages):
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

messages = [{"role": "user", "content": os.environ["TASK"]}]
message = ask(messages)
messages += [message, {"role": "user", "content": subprocess.getoutput(message["content"])}]
ask(messages)
"""


class ProgramHarness(vf.Harness[vf.HarnessConfig]):
    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        await runtime.write("program.py", PROGRAM)
        assert await runtime.read("program.py") == PROGRAM
        env = {"OPENAI_BASE_URL": endpoint, "OPENAI_API_KEY": secret, "MODEL": ctx.model, "TASK": data.prompt}
        return await runtime.run_program(["python3", "program.py"], env)


__all__ = ["ProgramHarness"]
'''


class ModelService(BaseHTTPRequestHandler):
    """A service of chat completions: its first answer is a command, and the second one repeats the last message."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        messages = body["messages"]
        content = "expr 6 '*' 7" if len(messages) == 1 else f"It is {messages[-1]['content']}."
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "a", "object": "chat.completion", "created": 0, "model": body["model"]}
        data = json.dumps({**answer, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keep stderr empty."""


@pytest.fixture
def service() -> Iterator[str]:
    """The address of a model service."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ModelService) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.whole
@pytest.mark.timeout(300)
@pytest.mark.parametrize("slots", ["local", "docker", "exclusive"])
def test_rollout_of_page_has_all_messages(
    slots: str, service: str, docker_image: Callable[[str], str], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "doors" / "verifiers.md").read_text("utf-8")
    runtime, example = (part.partition("```")[0] for part in page.split("```python\n")[1:])
    changes = {"http://127.0.0.1:8000/v1": service}
    if slots != "local":
        count = 8 if slots == "docker" else 1
        pool = f"SandboxPool('docker', image={docker_image('debian')!r}, slots_per_sandbox={count}"
        changes['SandboxPool("local"'] = pool
    for old, new in changes.items():
        assert old in example
        example = example.replace(old, new)
    (tmp_path / "slot_runtime.py").write_text(runtime)
    (tmp_path / "my_harness.py").write_text(HARNESS)
    (tmp_path / "rollout.py").write_text(example)
    env = {**os.environ, "MODEL_KEY": "key"}
    done = subprocess.run(
        [sys.executable, "rollout.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True ['What is 6 times 7?', \"expr 6 '*' 7\", '42', 'It is 42.']\n", done.stderr
