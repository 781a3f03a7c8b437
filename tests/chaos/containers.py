"""Disasters of containers and their daemon: each is done to a sandbox while a command of one of its slots runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import docker
from anyio import sleep, to_thread
from docker import DockerClient
from docker.errors import APIError
from docker.models.containers import Container

from tests.chaos.daemon import Daemon, own_daemon
from tests.chaos.flow import TEN, flow
from tests.chaos.observations import Seen
from tests.chaos.outside import left_in_docker
from tests.faults.evidence import Directory, directory
from tests.images.build import ensure

LEASE_S = 2.0


class Place(NamedTuple):
    """A run of its own, with a directory that its sandboxes have mounted."""

    client: DockerClient
    evidence: Directory
    run_id: str
    options: dict[str, Any]

    @property
    def command(self) -> str:
        """Leaves its trace, counts to ten, and then waits to be let go."""
        count = "i=0; while [ $i -lt 10 ]; do i=$((i+1)); echo $i; sleep 0.2; done"
        return f"{self.evidence.snippet('call')}; {count}; until [ -e /evidence/go ]; do sleep 0.05; done"

    async def flow(self, strike: Callable[[str], Awaitable[object]], **options: Any) -> Seen:
        """What is seen when this happens; the command is let go afterwards."""

        async def happen(name: str) -> None:
            await strike(name)
            (self.evidence.path / "go").touch()

        seen = await flow({**self.options, **options}, self.command, TEN, happen)
        assert self.evidence.counts()["call"] == 1
        left = left_in_docker(self.client, self.run_id)
        return Seen(seen.call, seen.then, seen.pool, left, seen.ended_at - seen.began_at)


@contextmanager
def place(daemon: Daemon | None = None) -> Iterator[Place]:
    """A run that nobody else has, on a daemon of ours or on the machine's."""
    with (
        directory() as evidence,
        contextlib.closing(docker.from_env()) if daemon is None else daemon.looking() as client,
    ):
        run_id = f"chaos-{evidence.path.name}"
        options: dict[str, Any] = {
            "backend": "docker",
            "image": ensure(client, "busybox") if daemon is None else daemon.image,
            "run_id": run_id,
            "network": False,
            "slots_per_sandbox": 2,
            "max_sandboxes": 1,
            "shared_volumes": (f"{evidence.path}:/evidence",),
        }
        if daemon is not None:
            options["base_url"] = daemon.url
        yield Place(client, evidence, run_id, options)


async def struck(strike: Callable[[Container], object], *, paused_s: float = 0.0, lease_s: float = 60.0) -> Seen:
    """What is seen when something is done to the container; it is unpaused after `paused_s`."""
    with place() as here:

        async def happen(name: str) -> None:
            container = await to_thread.run_sync(here.client.containers.get, name)
            await to_thread.run_sync(strike, container)
            if paused_s:
                await sleep(paused_s)
                await to_thread.run_sync(container.unpause)

        return await here.flow(happen, lease_s=lease_s)


async def killed() -> Seen:
    """`docker kill`."""
    return await struck(Container.kill)


async def removed() -> Seen:
    """`docker rm -f`."""
    return await struck(lambda container: container.remove(force=True, v=True))


def pause(container: Container) -> None:
    """`docker pause`, again where the kernel did not freeze all its processes in time, as on a busy machine."""
    for attempt in range(5):
        try:
            container.pause()
            return
        except APIError:
            if attempt == 4:
                raise


async def paused() -> Seen:
    """`docker pause`, and `docker unpause` before the lease is over."""
    return await struck(pause, paused_s=20)


async def paused_for_good() -> Seen:
    """`docker pause`, and nothing more."""
    return await struck(pause, lease_s=LEASE_S)


async def restarted(*daemon_options: str, delivery: str = "bind") -> Seen:
    """The daemon is stopped as a service manager does, and started again."""
    with own_daemon(*daemon_options) as daemon, place(daemon) as here:

        async def happen(_: str) -> None:
            await to_thread.run_sync(daemon.stop)
            await to_thread.run_sync(daemon.start)

        seen = await here.flow(happen, runner_delivery=delivery)
        # It depends on whether the daemon still tells of the end before it ends itself.
        either = "suspect `outside` or `unknown`"
        call, then = (re.sub("suspect `(outside|unknown)`", either, text) for text in seen[:2])
        return seen._replace(call=call, then=then)


async def restarted_with_live_restore() -> Seen:
    """The same of a daemon that lets its containers live; streams go past it, or through it."""
    past = await restarted("--live-restore")
    through = await restarted("--live-restore", delivery="copy")
    assert past[:4] == through[:4]
    return past._replace(seconds=max(past.seconds, through.seconds))
