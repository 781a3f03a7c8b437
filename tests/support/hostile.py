"""Sandboxes whose runners are objects of a test: a backend for whole pools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import ClassVar, Protocol
from unittest.mock import patch

from anyio.abc import ByteStream

from hermes_exec.backends import registry
from hermes_exec.backends.base import Labels, LaunchSpec, ReapedSandbox, ReapFilter, SandboxInfo, SandboxStatus
from hermes_exec.config import BackendConfig


class Config(BackendConfig):
    """It has no options."""

    backend: ClassVar[str] = "hostile"


class Runner(Protocol):
    """What answers on the streams of a sandbox."""

    async def open(self) -> ByteStream:
        """What a backend's `open` does."""

    def stop(self) -> None:
        """Break the stream and open no other."""


class Sandbox:
    """A sandbox with such a runner."""

    user = None
    limits: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, runner: Runner) -> None:
        self.id, self.runner = name, runner
        self.dead = False

    async def open(self, argv: Sequence[str]) -> ByteStream:
        return await self.runner.open()

    async def status(self) -> SandboxStatus:
        return SandboxStatus("dead" if self.dead else "alive")

    async def destroy(self) -> None:
        self.destroy_now()

    def destroy_now(self) -> None:
        self.dead = True
        self.runner.stop()


class Backend:
    """The backend `hostile`: `make` is given the number of a new sandbox and returns its runner."""

    name = "hostile"
    can_be_exclusive = False
    private_root = False
    readonly_paths: tuple[str, ...] = ()

    def __init__(self, make: Callable[[int], Runner], launched: Callable[[Sandbox], None] = lambda _: None) -> None:
        self.make, self.launched = make, launched
        self.made: list[Sandbox] = []

    async def check(self, spec: LaunchSpec) -> None:
        return

    async def launch(self, spec: LaunchSpec, labels: Labels) -> Sandbox:
        sandbox = Sandbox(f"sandbox-{len(self.made)}", self.make(len(self.made)))
        self.made.append(sandbox)
        self.launched(sandbox)
        return sandbox

    async def reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        return []

    async def sandboxes(self) -> list[SandboxInfo]:
        return []

    async def aclose(self) -> None:
        return


def create(config: Config) -> Backend:
    """What a backend's module offers; `registered` puts its own in this place."""
    raise AssertionError(config)


@contextmanager
def registered(backend: Backend) -> Iterator[None]:
    """Pools of the backend `hostile` have this one."""
    point = EntryPoint("hostile", __name__, registry.GROUP)
    with (
        patch.object(registry, "_points", lambda: {"hostile": point}),
        patch.object(sys.modules[__name__], "create", lambda _: backend),
    ):
        yield
