"""The state of a pool before, while and after it is open."""

from __future__ import annotations

import os
from secrets import token_hex
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING

import anyio

from hermes_exec.backends.owner import own_labels
from hermes_exec.config import BackendConfig, PoolConfig
from hermes_exec.config.digest import digest
from hermes_exec.pool.events import EventHub, OnEvent
from hermes_exec.pool.launch import OnPull
from hermes_exec.pool.running import RunningPool
from hermes_exec.pool.templates import Templates
from hermes_exec.tracing.writer import tracer_for

if TYPE_CHECKING:
    from hermes_exec.tracing import Tracer

ENTERED_ONCE = "a SandboxPool is entered once: create a new one"


class Lifecycle:
    """Opens and closes a pool. An opening that failed may be tried again; a pool that was closed stays closed."""

    def __init__(
        self,
        config: PoolConfig,
        backend: BackendConfig,
        on_event: OnEvent | None,
        on_pull: OnPull | None,
        trace: str | os.PathLike[str] | Tracer | None,
        *,
        needs_image: bool,
    ) -> None:
        self.on_pull = on_pull
        self.run_id = config.run_id or token_hex(6)
        self._config, self._backend, self._on_event, self._trace = config, backend, on_event, trace
        self._needs_image = needs_image
        self._closed = False
        self.closes_when_idle = False
        """Whether the pool closes after `idle_timeout_s` without slots and calls."""
        self._prepare()

    def _prepare(self) -> None:
        self.templates = Templates(self._config, self._backend, needs_image=self._needs_image)
        self.secrets = self.templates.secrets
        self.hub = EventHub(self._on_event, self.secrets)
        self.running: RunningPool | None = None
        self._attempt: _Attempt | None = None

    @property
    def is_open(self) -> bool:
        """Whether the pool is open in this process."""
        return self.running is not None and self.running.is_open

    @property
    def is_closed(self) -> bool:
        """Whether the pool was closed, or is closing."""
        return self._closed or (self.running is not None and self.running.fleet.closing)

    def key(self) -> tuple[object, ...]:
        """Return a key of everything that the pool was made with. Functions and tracers are equal only to
        themselves.
        """
        objects = map(_identify, (self._on_event, self.on_pull, self._trace))
        return digest(self._config, self._backend), *objects

    async def open(self) -> None:
        """Open the pool, unless it is open. See `SandboxPool.open`."""
        while not self.is_open:
            if self.running is None:
                await self._try()
                continue
            self.running.check_loop()
            if (attempt := self._attempt) is None or attempt.ended.is_set():
                raise RuntimeError(ENTERED_ONCE)
            await attempt.ended.wait()
            if attempt.error is not None:
                raise attempt.error
        self.check_open().fleet.used_at = anyio.current_time()

    async def _try(self) -> None:
        attempt = self._attempt = _Attempt()
        try:
            self.hub.tracer = tracer_for(self._trace, self.secrets)
            labels = own_labels(self.run_id, self._config.note)
            self.running = RunningPool(self.templates, self.hub, labels, self.on_pull)
            await self.running.open()
            if self.closes_when_idle:
                self.running.close_when_idle()
        except BaseException as error:
            attempt.error = error if isinstance(error, Exception) else None
            self.hub.end()
            if not self._closed:
                self._prepare()
            raise
        finally:
            attempt.ended.set()

    def check_open(self) -> RunningPool:
        """Return the running pool. Raises as its `check`, and RuntimeError if the pool was not opened."""
        if self.running is None or not self.running.started:
            raise RuntimeError("the pool is not open: use `async with SandboxPool(...) as pool:`")
        self.running.check()
        return self.running

    async def aclose(self) -> None:
        """Close the pool, if it was opened."""
        if self.running is not None:
            self._closed = True
            await self.running.aclose()

    async def end(self) -> None:
        """Close the pool, and wait until its background tasks have ended."""
        assert self.running is not None
        await self.running.end()


def _identify(value: object) -> object:
    """Return a function or tracer as a key that is equal only for the same one. Paths are equal by their text."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # A bound method is a new object at each access.
    return value if value is None or isinstance(value, str | MethodType | BuiltinMethodType) else id(value)


class _Attempt:
    """One attempt to open a pool. Tasks that wait for it share its error; a cancellation is none."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: Exception | None = None
