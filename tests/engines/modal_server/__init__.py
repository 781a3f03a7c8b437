"""A server that speaks Modal's wire protocol on loopback, and runs sandboxes as containers of a local Docker engine.

The real `modal` client works against it: what is tested is our adapter and that client, not Modal's cloud. It is a
process of its own; tests switch faults on and off by its side door.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TOKEN_ID, TOKEN_SECRET = "ak-loopback", "as-loopback"
END_S = 60.0
DOOR = "TESTS_MODAL_DOOR"
"""Names the side door to the programs that use a server."""


def missing() -> str:
    """Why there can be no server here beside Docker, empty if there can."""
    return "" if importlib.util.find_spec("modal") else "the client of Modal is not installed"


@dataclass
class Server:
    """One server."""

    url: str
    door: str
    process: subprocess.Popen[str] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What makes the client use this server and nothing else."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": TOKEN_ID,
            "MODAL_TOKEN_SECRET": TOKEN_SECRET,
            "MODAL_CONFIG_PATH": "/dev/null",
            "NO_PROXY": "127.0.0.1",
            DOOR: self.door,
        }

    def switch(self, what: str, values: object = None) -> Any:  # noqa: ANN401 -- what JSON holds
        """Have something done by the side door: `faults`, `secrets`, `volumes`, `cut`, `preempt`, `state`."""
        request = urllib.request.Request(f"{self.door}/{what}", json.dumps(values).encode(), method="POST")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)

    def fail(self, call: str, status: str, message: str = "", times: int | None = 1) -> None:
        """Have calls of one kind fail."""
        self.switch("faults", {"failures": {call: {"status": status, "message": message, "times": times}}})

    def running(self) -> list[str]:
        """The ids of the sandboxes that live."""
        return [name for name, one in self.switch("state")["sandboxes"].items() if one["running"]]

    def containers(self) -> list[str]:
        """The Docker ids of what still runs."""
        found = self.switch("state")["sandboxes"].values()
        return [one["container"] for one in found if one["container"] and not one["status"]]


@contextmanager
def server() -> Iterator[Server]:
    """A server; all that it made ends with it."""
    command = [sys.executable, "-m", "tests.engines.modal_server"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start (exit code {process.wait()})")
        told = json.loads(line)
        yield Server(told["url"], told["door"], process)
    finally:
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def in_use() -> Server:
    """The server that a program above this one has begun to use."""
    return Server(os.environ["MODAL_SERVER_URL"], os.environ[DOOR])


@contextmanager
def used(server: Server) -> Iterator[None]:
    """Have clients of this process, and of those that it starts, use a server."""
    before = {name: os.environ.get(name) for name in server.variables}
    os.environ.update(server.variables)
    try:
        yield
    finally:
        if "modal" in sys.modules:
            # The client of a process keeps its connection, and the next server is another one. In a thread that has an
            # event loop it would warn of a blocking call.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: sys.modules["modal"].Client.from_env().close()).result()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
