"""The backends that work is done on: how a pool of each is made, and what its engine has left when that is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.attack.in_process import image
from tests.engines import options_of
from tests.soak.gauges import LABEL
from tests.support import nomad_agent

SANDBOXES = {"local": 1, "docker": 4, "ssh": 2, "singularity": 2, "nomad-docker": 2, "nomad-singularity": 2}
"""All backends, and among how many sandboxes the slots of each are divided. `nomad` is there by its drivers."""
DEFAULT = ("local", "docker")


@dataclass(frozen=True)
class Backend:
    """A backend while its engine is there."""

    name: str
    sandboxes: int
    options: Mapping[str, Any]
    find_left: Callable[[], list[str]] = list
    """Finds what the engine alone knows of, when the pool is closed."""

    def pool_options(self, slots: int, run_id: str) -> dict[str, Any]:
        """Return the arguments of a pool with so many slots, or a few more."""
        each = -(-slots // self.sandboxes)
        sizes = {"slots_per_sandbox": each, "max_sandboxes": self.sandboxes, "run_id": run_id}
        return {"backend": self.name, **self.options, **sizes}


@contextmanager
def start(name: str, run_id: str, scratch: str) -> Iterator[Backend]:
    """Have the engine of a backend; sandboxes on hosts keep what they have in `scratch`."""
    backend, _, driver = name.partition("-")
    options: dict[str, dict[str, Any]] = {
        "docker": {"network": False},
        "ssh": {"base_dir": scratch},
        "nomad-docker": {"slot_root": "shared", "docker": {"labels": [{LABEL: run_id}]}},
    }
    more = options.get(name, {})
    if driver:
        with nomad_agent.agent() as agent:
            given = agent.options(driver=driver, image=image(driver), **more)
            yield Backend(backend, SANDBOXES[name], given, partial(find_on_node, agent))
    else:
        with options_of(backend) as given:
            yield Backend(backend, SANDBOXES[name], given | more)


def find_on_node(agent: nomad_agent.Agent) -> list[str]:
    """Find jobs, and directories of a node that are there after it has collected its garbage."""
    jobs = [f"job {job} is left" for job in agent.jobs()]
    agent.ask("PUT", "system/gc")
    return jobs + [f"{path} is left" for path in (agent.directory / "data" / "alloc").glob("*-*")]
