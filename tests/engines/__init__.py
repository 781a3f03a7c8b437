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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import nomad_agent, sshd
from tests.engines import modal_server
from tests.images.build import RECIPES

BACKENDS = ("local", "docker", "ssh", "singularity", "nomad", "modal")


@contextmanager
def options_of(backend: str, image: str = "debian") -> Iterator[dict[str, Any]]:
    """Options for pools of a backend, as JSON has them, while what they need is there; `image` is a test image's."""
    if backend == "docker":
        yield {"image": _docker_image(image)}
    elif backend == "modal":
        image = _docker_image(image)
        with modal_server.server() as modal, modal_server.used(modal):
            yield {"image": image}
    elif backend == "ssh":
        with sshd.server() as server:
            yield server.options()
    elif backend == "singularity":
        from tests.images.folders import ensure as ensure_folder

        yield {"image": str(ensure_folder(image))}
    elif backend == "nomad":
        with options_of("docker", image) as docker, nomad_agent.agent() as agent:
            yield {**docker, **agent.options()}
    else:
        yield {}


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
