"""The backends that faults are tried on, and with which options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import sshd

BACKENDS = ("local", "docker", "ssh", "singularity")


@contextmanager
def options_of(backend: str) -> Iterator[dict[str, Any]]:
    """Options for pools of a backend, as JSON has them, while what they need is there."""
    if backend == "docker":
        from docker import from_env

        from tests.images.build import ensure

        client = from_env(timeout=300)
        try:
            yield {"image": ensure(client, "debian")}
        finally:
            client.close()
    elif backend == "ssh":
        with sshd.server() as server:
            yield server.options()
    elif backend == "singularity":
        from tests.images.folders import ensure as ensure_folder

        yield {"image": str(ensure_folder("debian"))}
    else:
        yield {}
