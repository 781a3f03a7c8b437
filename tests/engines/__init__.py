"""The backends that can be had on one machine, and with which options.

`python -m tests.engines [--image IMAGE] NAME COMMAND...` runs a command with NAME and its options in
`HERMES_DEMO_BACKEND` and `HERMES_DEMO_OPTIONS`, while what it needs is there; with another of the test images than
`debian`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from tests.engines import modal_server
from tests.images.build import RECIPES
from tests.support import nomad_agent, sshd

BACKENDS = ("local", "docker", "ssh", "singularity", "nomad", "modal")


class Engine(NamedTuple):
    """What a backend has here: options for pools, as JSON has them, and what restarts its server, if it has one."""

    options: dict[str, Any]
    restart: Callable[[], object] | None = None


class Server(Protocol):
    """A program that can be stopped and started."""

    def stop(self) -> None:
        """Stop it."""

    def start(self) -> None:
        """Start it; returns when it answers."""


def restart_of(server: Server) -> Callable[[], None]:
    """What stops a server and starts it again."""

    def restart() -> None:
        server.stop()
        server.start()

    return restart


@contextmanager
def engine_of(backend: str, image: str = "debian") -> Iterator[Engine]:
    """The engine of a backend, while it is there; `image` is a test image's."""
    if backend == "docker":
        yield Engine({"image": _docker_image(image)})
    elif backend == "modal":
        image = _docker_image(image)
        with modal_server.server() as modal, modal_server.used(modal):
            yield Engine({"image": image}, lambda: modal.switch("cut"))
    elif backend == "ssh":
        with sshd.server() as server:
            yield Engine(server.options(), restart_of(server))
    elif backend == "singularity":
        from tests.images.directories import ensure as ensure_directory

        yield Engine({"image": str(ensure_directory(image))})
    elif backend == "nomad":
        image = _docker_image(image)
        with nomad_agent.agent() as agent:
            yield Engine(agent.options(image=image), restart_of(agent))
    else:
        yield Engine({})


@contextmanager
def options_of(backend: str, image: str = "debian") -> Iterator[dict[str, Any]]:
    """The options of a backend alone, while what they need is there."""
    with engine_of(backend, image) as engine:
        yield engine.options


def _docker_image(name: str) -> str:
    from docker import from_env

    from tests.images.build import ensure

    client = from_env(timeout=300)
    try:
        return ensure(client, name)
    finally:
        client.close()


def main() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines")
    parser.add_argument("--image", default="debian", choices=RECIPES)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    with options_of(asked.backend, asked.image) as options:
        env = {**os.environ, "HERMES_DEMO_BACKEND": asked.backend, "HERMES_DEMO_OPTIONS": json.dumps(options)}
        return subprocess.run(asked.command, env=env, check=False).returncode
