"""The sandbox provider of NeMo Gym whose sandboxes are slots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nemo_gym.sandbox.providers import base
from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

from hermes_exec import ConfigError, ExecError, Forward, Slot, SlotClosed, blocking
from hermes_nemo_gym.profiles import slot_profile
from hermes_nemo_gym.terminal import Terminal, TerminalSpec, open_terminal

T = TypeVar("T")
OUTPUT_LIMIT_BYTES = 4 << 20
"""The maximum that a sandbox with 128 MiB of memory allows."""
TIMEOUT_EXIT_CODE = 124
DIRECTORY_EXIT_CODE = 126
NO_EXIT_CODE = -1
"""The return code of a result that is not a command's, which no process can have."""


@dataclass(frozen=True)
class ServiceAddress:
    """The address of a service in a sandbox. NeMo Gym has this class since 0.6."""

    endpoint: str
    headers: dict[str, str] = field(default_factory=dict)


ENDPOINT_TYPE: Callable[[str], ServiceAddress] = getattr(base, "SandboxEndpoint", ServiceAddress)


@dataclass
class SandboxSlot:
    """The slot of a sandbox of NeMo Gym, and what ends with it."""

    pool: blocking.SandboxPool
    slot: Slot
    user: str | None = None
    """The user whose rights file transfers have; None for the slot's own."""
    expiry: asyncio.TimerHandle | None = None
    forwards: dict[int, Forward] = field(default_factory=dict)

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work in the event loop of the pool. If this task is cancelled, the work is cancelled and waited for."""
        return await self.pool.portal.call_async(work)

    def start_release(self) -> None:
        """Release the slot in the background."""
        self.pool.portal.start_task_soon(self.pool.wrapped.release, self.slot)


class HermesProvider:
    """Each sandbox is a slot. All sandboxes of a process with the same options share one pool, whatever their loops.

    Args:
        pool: Configuration file of the pool, or its content; None: the variables `HERMES_EXEC_*`.
        options: Options of `SandboxPool`, which have precedence.
    """

    name = "hermes"

    def __init__(self, *, pool: str | Mapping[str, Any] | None = None, **options: Any) -> None:
        self._pool, self._options = pool, options

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Acquire a slot. Its sandbox is started if no idle one is there.

        `ready_timeout_s` is the longest wait. After `ttl_s` the slot is released. The ports of
        `provider_options={"expose": [...]}` on the slot's 127.0.0.1 lead to the same ports of this host's.

        Raises:
            SandboxCreateError: If an option is wrong, or no slot can be acquired.
        """
        try:
            if spec.ttl_s is not None and not spec.ttl_s > 0:
                raise ConfigError(f"ttl_s must be above 0, or None for no limit, not {spec.ttl_s!r}")
            pool = await asyncio.to_thread(blocking.SandboxPool.shared, self._pool, **self._options)
            held = await _acquire(pool, spec)
        except ExecError as error:
            raise SandboxCreateError(str(error)) from error
        if spec.ttl_s is not None:
            held.expiry = asyncio.get_running_loop().call_later(spec.ttl_s, held.start_release)
        return SandboxHandle(sandbox_id=held.slot.id, provider_name=self.name, raw=held)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command by the shell of the image: bash, or else sh.

        A command that takes longer than `timeout_s` seconds ends with all its processes: return code 124, error type
        `timeout`. A directory that cannot be entered has the return code 126. A lost sandbox has the error type
        `sandbox_error` and no return code of a process.

        Raises:
            ConfigError: If an argument is wrong, such as a user that this slot cannot have.
        """
        held: SandboxSlot = handle.raw
        name = None if user is None else str(user)
        run = partial(
            held.slot.run,
            command,
            cwd=cwd,
            env=env,
            timeout_s=timeout_s,
            user=name,
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
        )
        try:
            result = await held.call(run)
        except ConfigError:
            raise
        except ExecError as error:
            return SandboxExecResult(None, str(error), NO_EXIT_CODE, "sandbox_error")
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            return SandboxExecResult(None, str(error), DIRECTORY_EXIT_CODE)
        if result.timed_out:
            note = f"[the command timed out after {timeout_s:g} seconds]"
            stderr = f"{result.stderr.rstrip()}\n{note}" if result.stderr.strip() else note
            return SandboxExecResult(result.stdout, stderr, TIMEOUT_EXIT_CODE, "timeout")
        return SandboxExecResult(result.stdout, result.stderr, result.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy a local file into the sandbox, with missing directories. It belongs to root where the slot allows it."""
        held: SandboxSlot = handle.raw
        await held.call(partial(held.slot.files.upload, source_path, target_path, user=held.user))

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copy a file of the sandbox to this host, with missing directories."""
        held: SandboxSlot = handle.raw
        await held.call(partial(held.slot.files.download, source_path, target_path, user=held.user))

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Return `running`, `stopped` after the end of the slot, or `error` if its sandbox is lost."""
        held: SandboxSlot = handle.raw
        try:
            await held.call(held.slot.processes)
        except SlotClosed:
            return SandboxStatus.STOPPED
        except ExecError:
            return SandboxStatus.ERROR
        return SandboxStatus.RUNNING

    async def close(self, handle: SandboxHandle) -> None:
        """Release the slot with all its processes and files. Has no effect the second time."""
        held: SandboxSlot = handle.raw
        if held.expiry is not None:
            held.expiry.cancel()
        await held.call(partial(held.pool.wrapped.release, held.slot))

    async def aclose(self) -> None:
        """Keep the pool, which other sandboxes share. It closes when it is idle, or when the process ends."""

    async def endpoint(self, handle: SandboxHandle, port: int) -> ServiceAddress:
        """Return the address on this host's loopback of a service in the sandbox. NeMo Gym calls it since 0.6."""
        held: SandboxSlot = handle.raw
        if port not in held.forwards:
            forward = held.slot.forward(port)
            held.forwards[port] = await held.call(forward.__aenter__)
        return ENDPOINT_TYPE(f"http://127.0.0.1:{held.forwards[port].port}")

    async def create_pty(self, handle: SandboxHandle, spec: TerminalSpec) -> Terminal:
        """Start a process with a terminal, or with pipes if `spec.pty` is False. NeMo Gym calls it since 0.6."""
        held: SandboxSlot = handle.raw
        return await open_terminal(held.pool.portal, held.slot, spec)


async def _acquire(pool: blocking.SandboxPool, spec: SandboxSpec) -> SandboxSlot:
    """Acquire the slot for a request. If that fails or is cancelled, no slot stays behind."""
    acquired: list[SandboxSlot] = []
    options = dict(spec.provider_options)
    ports = options.pop("expose", [])
    if not isinstance(ports, Sequence) or isinstance(ports, str):
        raise ConfigError(f"expose must be a list of ports, not {ports!r}")

    async def acquire() -> None:
        opened = await pool.wrapped.open()
        profile = await slot_profile(opened, replace(spec, provider_options=options))
        slot = await opened.acquire(profile, timeout_s=spec.ready_timeout_s)
        acquired.append(held := SandboxSlot(pool, slot))
        held.user = await _find_transfer_user(slot)
        for port in ports:
            await slot.expose("127.0.0.1", port, slot_port=port).__aenter__()  # it ends with the slot

    try:
        await pool.portal.call_async(acquire)
    except BaseException:
        for held in acquired:
            held.start_release()
        raise
    return acquired[0]


async def _find_transfer_user(slot: Slot) -> str | None:
    """Return root if the slot allows it, as in a container of its own."""
    try:
        await slot.files.stat("/", user="root")
    except ConfigError:
        return None
    return "root"
