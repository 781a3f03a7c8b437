"""The backends that can be had on one machine, and with which options.

`python -m tests.engines NAME COMMAND...` runs a command with NAME and its options in `HERMES_DEMO_BACKEND` and
`HERMES_DEMO_OPTIONS`, while what it needs is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import nomad_agent, sshd
from tests.engines import modal_server

BACKENDS = ("local", "docker", "ssh", "singularity", "nomad", "modal")


@contextmanager
def options_of(backend: str) -> Iterator[dict[str, Any]]:
    """Options for pools of a backend, as JSON has them, while what they need is there."""
    if backend == "docker":
        yield {"image": _docker_image()}
    elif backend == "modal":
        image = _docker_image()
        with modal_server.server() as modal, modal_server.used(modal):
            yield {"image": image}
    elif backend == "ssh":
        with sshd.server() as server:
            yield server.options()
    elif backend == "singularity":
        from tests.images.folders import ensure as ensure_folder

        yield {"image": str(ensure_folder("debian"))}
    elif backend == "nomad":
        with options_of("docker") as docker, nomad_agent.agent() as agent:
            yield {**docker, **agent.options()}
    else:
        yield {}


def _docker_image() -> str:
    from docker import from_env

    from tests.images.build import ensure

    client = from_env(timeout=300)
    try:
        return ensure(client, "debian")
    finally:
        client.close()


def main() -> int:
    """Run the command; its exit code."""
    backend, *command = sys.argv[1:]
    if backend not in BACKENDS:
        sys.exit(f"there is no backend {backend!r} here, only {', '.join(BACKENDS)}")
    with options_of(backend) as options:
        env = {**os.environ, "HERMES_DEMO_BACKEND": backend, "HERMES_DEMO_OPTIONS": json.dumps(options)}
        return subprocess.run(command, env=env, check=False).returncode
