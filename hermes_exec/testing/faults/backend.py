"""A wrapper around a backend whose launches, sandboxes and streams break by a schedule."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from typing import TypeVar

import anyio
from anyio import to_thread
from anyio.abc import ByteStream

from hermes_exec.backends.base import Backend, Labels, LaunchSpec, Sandbox
from hermes_exec.backends.capabilities import Signalable
from hermes_exec.config import BackendConfig
from hermes_exec.errors import ConfigError, ExecError, LaunchError
from hermes_exec.testing.faults.clock import clock_jump
from hermes_exec.testing.faults.processes import SandboxProcesses
from hermes_exec.testing.faults.schedule import STREAM_FAULTS, Faults
from hermes_exec.testing.faults.stream import FaultyStream

C = TypeVar("C", bound=BackendConfig)
logger = logging.getLogger(__name__)


def faulty(config: C, faults: Faults) -> C:
    """Return the configuration for a pool whose sandboxes break by the schedule `faults`.

    Raises:
        ConfigError: If `config` is not a backend's configuration, or `faults` is not a `Faults`.
    """
    if not isinstance(config, BackendConfig):
        raise ConfigError(f"config must be a backend's configuration such as LocalConfig(), not {config!r}")
    if not isinstance(faults, Faults):
        raise ConfigError(f"faults must be such as Faults(seed=1), not {faults!r}")
    return config.with_wrapper(lambda backend: FaultyBackend(backend, faults))


class FaultyBackend:
    """A backend with faults. Everything else is passed to the wrapped backend."""

    def __init__(self, inner: Backend, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def launch(self, spec: LaunchSpec, labels: Labels) -> FaultySandbox:
        """See `Backend.launch`."""
        faults, fate = self._faults, self._faults.launch()
        if fate.slow_s:
            faults.note(0, 0, "slow-launch", f"number {fate.number} {fate.slow_s:.3f} s")
            await anyio.sleep(fate.slow_s)
        if fate.refuse:
            faults.note(0, 0, "refuse-launch", f"number {fate.number}")
            raise LaunchError(f"launch {fate.number} failed by the schedule of faults")
        sandbox = await self._inner.launch(spec, labels)
        wrapped: list[FaultySandbox] = []
        with anyio.CancelScope(shield=True):
            wrapped.append(await to_thread.run_sync(FaultySandbox, sandbox, faults))
        return wrapped[0]


class FaultySandbox:
    """A sandbox with faults."""

    def __init__(self, inner: Sandbox, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._fate = faults.sandbox()
        self._streams = 0
        self._processes = SandboxProcesses(inner)
        self._over = threading.Event()
        threading.Thread(target=self._happen, name="hermes-exec-fault", daemon=True).start()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def open(self, argv: Sequence[str]) -> ByteStream:
        """See `Sandbox.open`."""
        stream = await self._inner.open(argv)
        if not self._faults.of(STREAM_FAULTS):
            return stream
        self._streams += 1
        return FaultyStream(stream, self._faults.stream(self._fate.number, self._streams))

    async def destroy(self) -> None:
        """See `Sandbox.destroy`."""
        self._over.set()
        await self._inner.destroy()

    def destroy_now(self) -> None:
        """See `Sandbox.destroy_now`."""
        self._over.set()
        self._inner.destroy_now()

    def _happen(self) -> None:
        """Carry out the one fault of this sandbox, in its own thread."""
        kind, lasts_s = self._fate.kind, self._fate.lasts_s
        try:
            if self._over.wait(None if kind is None else self._fate.after_s):
                return
            if kind == "kill-sandbox":
                self._note(kind)
                self._inner.destroy_now()
            elif kind == "jump-clock":
                self._note(kind, f"by {self._fate.jump_s:.0f} s for {lasts_s:.3f} s")
                with clock_jump(self._fate.jump_s):
                    self._over.wait(lasts_s)
            elif kind in {"kill-runner", "freeze"} and isinstance(self._inner, Signalable):
                self._note(kind, f"{lasts_s:.3f} s" if kind == "freeze" else "")
                self._inner.signal_now(signal.SIGSTOP if kind == "freeze" else signal.SIGKILL)
                if kind == "freeze":
                    self._over.wait(lasts_s)
                    self._inner.signal_now(signal.SIGCONT)
            elif not self._processes.visible:
                self._note(f"no {kind}", "the processes of this sandbox are not seen from here")
            elif kind == "kill-attach":
                self._note(kind, f"{self._processes.kill_attached()} killed")
            elif kind == "fill-disk":
                with self._processes.full_disk() as filled:
                    self._note(kind if filled else f"no {kind}", f"{filled >> 20} MiB for {lasts_s:.3f} s")
                    self._over.wait(lasts_s if filled else 0)
        except ExecError as error:
            self._note(f"no {kind}", str(error))
        except Exception:
            logger.exception("the fault %s could not be carried out", kind)
        finally:
            self._processes.close()

    def _note(self, what: str, detail: str = "") -> None:
        self._faults.note(self._fate.number, self._streams, what, detail)
