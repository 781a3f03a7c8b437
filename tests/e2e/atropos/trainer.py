"""The real server of atropos (`run-api`), and a trainer that only takes batches from it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Api:
    """The server, asked as trainers and environments ask it."""

    def __init__(self, port: int) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: object = None) -> Any:  # noqa: ANN401
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def register(self, *, batch_size: int, max_token_len: int = 16_000, num_steps: int = 3) -> None:
        settings = {
            "wandb_group": "g", "wandb_project": "p", "batch_size": batch_size, "max_token_len": max_token_len,
            "checkpoint_dir": "", "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": num_steps,
        }  # fmt: skip
        self.ask("/register", settings)
        assert self.ask("/batch")["batch"] is None

    def batch(self, within_s: float) -> list[dict[str, Any]]:
        """The next batch; AssertionError when there is none in time."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            batch = self.ask("/batch")["batch"]
            if batch is not None:
                return list(batch)
            time.sleep(0.1)
        raise AssertionError(f"no batch within {within_s} s; the server's status: {self.ask('/status')}")


@contextmanager
def run_api(port: int | None = None) -> Iterator[Api]:
    port = port or free_port()
    command = [sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    api = Api(port)
    try:
        for _ in range(300):
            try:
                api.ask("/")
                break
            except OSError:
                time.sleep(0.1)
        yield api
    finally:
        server.terminate()
        server.wait(20)


@contextmanager
def refusing(api: Api, status: int) -> Iterator[str]:
    """A server before that of atropos which refuses groups with this status, and passes everything else on."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            refused = self.path.startswith("/scored_data")
            answer, said = (status, b'{"detail": "not these"}') if refused else (200, self._pass_on(body))
            self.send_response(answer)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(said)

        def do_POST(self) -> None:
            self.do_GET()

        def _pass_on(self, body: bytes) -> bytes:
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(api.url + self.path, body or None, headers, method=self.command)
            with urllib.request.urlopen(request, timeout=20) as answer:
                return bytes(answer.read())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def environment(command: str, *flags: str, name: str = "terminal_test", **env: str) -> Iterator[subprocess.Popen[str]]:
    """A command of an environment, in a process of its own; `name` is one of ours, or the path of a program."""
    started = [name] if name.endswith(".py") else ["-m", f"hermes_atropos.envs.{name}"]
    program = [sys.executable, *started, command, *flags]
    directory = tempfile.mkdtemp(prefix="environment-")
    path = os.pathsep.join(str(ROOT / part) for part in ("", "integrations/atropos"))
    process = subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "TRANSFORMERS_VERBOSITY": "error", **env},
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(directory)


def run(command: str, *flags: str, name: str = "terminal_test", within_s: float = 90, **env: str) -> tuple[int, str]:
    """Its exit code, and what it printed."""
    with environment(command, *flags, name=name, **env) as process:
        said, _ = process.communicate(timeout=within_s)
        return process.returncode, said


def flags(tokenizer: Path, url: str, *more: str, group_size: int = 2) -> Sequence[str]:
    """Of an environment on an inference server."""
    return [
        "--env.tokenizer_name", str(tokenizer), "--env.max_token_length", "12000", "--openai.base_url", url,
        "--env.group_size", str(group_size), *more,
    ]  # fmt: skip
