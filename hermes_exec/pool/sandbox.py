"""One sandbox of a pool: starting its channel, preparing and resetting its slots, and diagnosing its end."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio

from hermes_exec.backends.base import NoOwnRoot, Sandbox, SandboxStatus
from hermes_exec.backends.capabilities import HasImageID, HasRoomHint, MayBeDrained
from hermes_exec.channel import Channel, RemoteError
from hermes_exec.channel.encoding import from_wire, printable, to_wire
from hermes_exec.channel.trace import ChannelTrace
from hermes_exec.errors import (
    ChannelLost,
    ConfigError,
    ErrorCause,
    ExecError,
    LaunchError,
    LaunchTimeout,
    OutcomeUnknown,
    PostMortem,
    ProtocolError,
    SandboxDied,
)
from hermes_exec.pool.request import SlotRequest
from hermes_exec.pool.state import SandboxRecord, SlotState
from hermes_exec.pool.template import SlotSettings, Template
from hermes_exec.redact import mask
from hermes_exec.results import KillReceipt
from hermes_exec.slot.answers import SlotFacts, integer, items, receipt, remote_failure
from hermes_exec.slot.checkpoint import Checkpoint, SlotStart
from hermes_exec.slot.run import execute
from hermes_exec.slot.scope import SlotScope, raise_translated
from hermes_exec.slot.slot import Slot
from hermes_exec.slot.transfer.transfer import open_transfer, upload

logger = logging.getLogger(__name__)
PING_S = 5.0
PING_AFTER_S = 2.0
"""A reset that takes longer continues as long as the sandbox answers pings."""
STATUS_S = 3.0
DRAIN_CHECK_S = 1.0
"""How old the engine's last answer about a drain may be at an acquire, and how long an acquire waits for an answer."""
CREATE_S = 60.0
RESET_S = 120.0
SETUP_TIMEOUT_S = 600.0
SETUP_SLOT = "setup"


@dataclass(slots=True, eq=False)
class PooledSlot:
    """One slot of a sandbox, across all its holders."""

    name: str
    """Its name on the wire."""
    sandbox: PooledSandbox
    state: SlotState = SlotState.FREE
    facts: SlotFacts | None = None
    """The runner's description of it, once it is created."""
    begun: bool = False
    """Whether its creation was begun. If that was interrupted, its state is unknown."""
    touched: bool = False
    """Whether it was written to or held since it was created or reset."""
    unproven: str = ""
    """Why a reset cannot prove it clean: a kill left processes behind."""
    doing: str = ""
    """The current step of its preparation, for the error of a request that times out."""
    request: SlotRequest | None = None
    """The request of its holder."""
    settings: SlotSettings | None = None
    """The settings of its holder."""
    created_with: SlotSettings | None = None
    """The settings whose variables it has."""
    scope: SlotScope | None = None
    """The scope of its holder's calls."""
    holder: Slot | None = None
    """The `Slot` that its holder uses."""

    @property
    def base(self) -> Checkpoint | None:
        """The checkpoint that its holder acquired it from."""
        return None if self.request is None else self.request.from_

    @property
    def calls(self) -> SlotScope:
        """The scope of the holder's calls."""
        assert self.scope is not None, f"nobody holds {self.name}"
        return self.scope

    def note_remaining(self, killed: KillReceipt) -> None:
        """Record that a kill left processes behind."""
        self.unproven = f"{killed.left} processes could not be ended"


@dataclass(slots=True)
class PooledSandbox:
    """A launched sandbox. `death` is set once it is known to be dead."""

    record: SandboxRecord
    template: Template
    handle: Sandbox
    channel: Channel
    slots: list[PooledSlot] = field(default_factory=list)
    death: PostMortem | None = None
    disk_full: bool = False
    """Whether a disk of it was nearly full at the last ping."""
    suspended_at: float = 0.0
    """When it last stopped to get new holders because it did not answer or its disk was nearly full."""
    arriving: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a checkpoint is copied into it."""
    drain_checked_at: float = field(default_factory=time.monotonic)
    """When its engine last had no drain to report."""

    @property
    def id(self) -> str:
        """The backend's name of the sandbox."""
        return self.handle.id

    @property
    def image_id(self) -> str:
        """The engine's id of its image, or the image's name where the engine has no other; "" without images."""
        own = self.handle.image_id if isinstance(self.handle, HasImageID) else ""
        return own or self.template.image or ""

    async def status(self) -> SandboxStatus:
        """Return the backend's status of the sandbox, `unknown` if it does not answer in time. Never raises."""
        status = await status_of(self.handle)
        if status.state == "dead" and self.death is None:
            self.death = status.post_mortem or PostMortem("the sandbox has ended")
        return status

    def death_error(self) -> SandboxDied:
        """Return a new error for holders of a dead sandbox."""
        death = self.death or PostMortem("the sandbox has ended")
        message = f"the sandbox {self.id} died: {death.reason}{self.channel.silence}"
        return SandboxDied(message, post_mortem=death, sandbox=self.id)

    async def diagnose(self) -> SandboxDied | None:
        """Return SandboxDied if the stream was lost because the sandbox is dead. The channel calls this."""
        return self.death_error() if (await self.status()).state == "dead" else None

    async def explain_loss(self, error: ExecError) -> ExecError:
        """Return the error of a lost call: SandboxDied if the sandbox is dead, otherwise the error itself."""
        cause = error.__cause__
        if self.death is None and isinstance(error, ChannelLost | OutcomeUnknown | ProtocolError | SandboxDied):
            # If the engine answers, it gives a better reason than the channel.
            with anyio.move_on_after(0.5):
                await self.status()
        for dead_error in (error, cause):
            if isinstance(dead_error, SandboxDied) and self.death is None and dead_error.sandbox in (None, self.id):
                self.death = dead_error.post_mortem
        if self.death is not None:
            result: ExecError = self.death_error()
        elif error is self.channel.lost_reason:
            result = type(error)(str(error), sandbox=self.id)
        else:
            result = error
        result.sandbox = self.id
        result.request_id = error.request_id
        if result is not error:
            result.__cause__ = error
        return result

    async def is_draining(self) -> bool:
        """Return whether the engine has begun to drain the machine of the sandbox."""
        if isinstance(self.handle, MayBeDrained) and time.monotonic() - self.drain_checked_at > DRAIN_CHECK_S:
            with anyio.move_on_after(DRAIN_CHECK_S):
                if await self.handle.is_draining():
                    return True
            self.drain_checked_at = time.monotonic()
        return False

    async def ping(self, wait_s: float = PING_S) -> bool:
        """Check whether the runner answers within `wait_s` seconds."""
        if self.channel.state != "open":
            return False
        try:
            conversation = self.channel.begin("sandbox.info", {})
            try:
                with anyio.move_on_after(wait_s):
                    answer = await conversation.response()
                    self.disk_full = answer.get("disk_nearly_full") is True
            finally:
                if not conversation.answered:
                    await self.channel.finish(conversation, 0.0)
        except (ExecError, RemoteError):
            return False
        return conversation.answered

    def scope(
        self, slot: PooledSlot, facts: SlotFacts, workdir: str | None = None, start: SlotStart | None = None
    ) -> SlotScope:
        """Return a new scope for the calls on a slot, which start in `workdir`, or in the checkpoint's directory."""
        hint = self.handle.room_hint if isinstance(self.handle, HasRoomHint) and not facts.has_own_disk else ""
        if workdir is None and start is not None:
            workdir = start.workdir
        scope = SlotScope(
            slot.name, self.id, facts, workdir, self.channel, self.explain_loss, slot.note_remaining, hint
        )
        scope.start = start
        return scope

    async def create(self, slot: PooledSlot) -> SlotFacts:
        """Return the facts of a slot; create it at first use, and anew for a holder with other variables.

        Raises:
            IsolationError, ConfigError, LaunchError: If the runner cannot create such a slot here.
        """
        settings = slot.settings or self.template.slot_settings
        if slot.facts is not None and settings.has_variables_of(slot.created_with):
            return slot.facts
        params = self.template.slot_params(slot.name, self.handle.user, settings)
        try:
            slot.facts = None  # so that the next holder creates it if this is interrupted
            if slot.begun:
                await self._destroy_slot(slot)
            slot.begun, slot.created_with = True, settings
            answer = await self.channel.call("slot.create", params, timeout_s=CREATE_S)
        except RemoteError as error:
            raise self._refusal_error(error) from None
        except (ChannelLost, OutcomeUnknown, ProtocolError, SandboxDied) as error:
            raise_translated(await self.explain_loss(error), error)
        facts = SlotFacts.parse(answer)
        limits = {**facts.isolation.limits}
        for name, how in self.handle.limits.items():
            limits.setdefault(name, how)
        self.template.own_roots.warn(facts.isolation.level)
        filesystem = facts.isolation.filesystem
        if self.template.own_roots.refused:
            filesystem += f"; {self.template.own_roots.refused}"
        slot.facts = replace(facts, isolation=replace(facts.isolation, limits=limits, filesystem=filesystem))
        return slot.facts

    async def try_slot(self, **params: object) -> SlotFacts:
        """Return the facts of a slot with these parameters instead of the template's, without making one.

        Raises:
            IsolationError, ConfigError, LaunchError: If the runner refuses it.
        """
        name = f"trial-{self.channel.calls}"
        usual = self.template.slot_params(name, self.handle.user, self.template.slot_settings)
        usual |= {"trial": True, "workspace": "", "env": {}, "gpus": None}
        return SlotFacts.parse(await self._ask("slot.create", {**usual, **params}))

    @property
    def has_users(self) -> bool:
        """Whether its runner may become other users, which the level `uid` needs too."""
        reasons = self.channel.facts.isolation.get("reasons")
        return isinstance(reasons, dict) and "uid" not in reasons

    def has_own_loopback(self, facts: SlotFacts) -> bool:
        """Return whether nobody but this slot reaches its loopback."""
        return facts.loopback == "slot" or (facts.loopback == "sandbox" and len(self.slots) == 1)

    async def _destroy_slot(self, slot: PooledSlot, silence_s: float = PING_S) -> KillReceipt | None:
        """End all processes of a slot and forget it. Return None if there is no such slot."""
        try:
            answer = await self._wait_patiently("slot.destroy", slot, silence_s)
        except RemoteError as error:
            if error.kind != "no_slot":
                raise
            return None
        return receipt(answer.get("killed"))

    def workdir(self, slot: PooledSlot) -> str | None:
        """Return where the holder's calls start. None is the workspace, or the directory of the slot's checkpoint."""
        settings = slot.settings or self.template.slot_settings
        wanted = (slot.request and slot.request.workdir) or (settings.workdir if slot.base is None else None)
        return self.handle.workdir if wanted == "image" else wanted

    async def provision(self, slot: PooledSlot, workdir: str | None) -> None:
        """Prepare a slot for a holder: its working directory, the configured files and `slot_setup`. A checkpoint holds
        the files, and the changes that `slot_setup` has made: its own commands (`on_fork`) run instead.

        Raises:
            ConfigError: If the working directory is missing and cannot be created.
            LaunchError: If a file cannot be written, or a command failed.
        """
        scope, settings = slot.calls, slot.settings or self.template.slot_settings
        if workdir is not None:
            try:
                await scope.call("slot.workdir", {"path": to_wire(workdir, "workdir")}, timeout_s=CREATE_S)
            except OSError as error:
                raise ConfigError(f"workdir: calls cannot start in {workdir!r}: {error}") from error
        if slot.base is not None:
            await self.run_on_fork(slot, slot.base)
            return
        for path, source in settings.files.items():
            slot.doing = f"the files for {path!r} were not yet written"
            wired = to_wire(path, "files")
            try:
                if isinstance(source, bytes):
                    params = {"path": wired, "parents": True, "append": False}
                    async with open_transfer(scope, "file.write", params, path) as move:
                        await move.send(source)
                        await move.finish()
                else:
                    await upload(scope, str(Path(source)), {"path": wired}, path)
            except OSError as error:
                again = error.errno in (errno.ENOSPC, errno.EDQUOT)
                message = f"files: {path!r} cannot be put into the slot: {error}"
                if not isinstance(source, bytes) and str(error.filename).startswith(str(source)):
                    message += "; make it readable, or leave it out"
                raise LaunchError(message, retryable=again) from error
        await self._run_in_slot(slot, settings.slot_setup, "slot_setup")
        if settings.files or settings.slot_setup:
            await scope.call("slot.disk", {"prepared": True}, timeout_s=CREATE_S)
        slot.doing = ""

    async def run_on_fork(self, slot: PooledSlot, checkpoint: Checkpoint) -> None:
        """Run the commands of a checkpoint in a slot that was set to it. Raises LaunchError if one failed."""
        await self._run_in_slot(slot, checkpoint.on_fork, "on_fork")
        slot.doing = ""

    async def _run_in_slot(self, slot: PooledSlot, commands: Sequence[str], setting: str) -> None:
        for command in commands:
            slot.doing = f"its {setting} {mask(repr(command), self.template.secrets)} had not ended"
            await _set_up(slot.calls, command, setting, self.template)

    async def set_up(self) -> None:
        """Run the commands of `setup`, and create the first slot.

        In a container or VM of ours the commands act on the sandbox itself, with the rights of its runner; elsewhere in
        a slot.

        Raises:
            LaunchError: If a command failed.
            ConfigError: If a command created files in a slot, where no other slot finds them.
        """
        if self.template.setup:
            await self._run_setup()
        await self.create(self.slots[0])

    async def _run_setup(self) -> None:
        slot = PooledSlot(SETUP_SLOT, self)
        in_sandbox = self.template.backend.can_be_exclusive
        params = self.template.slot_params(slot.name, None, self.template.slot_settings)
        if in_sandbox:
            level = "auto" if self.template.own_roots.enabled else "exclusive"
            params |= {"level": level, "floor": "none", "limits": {}, "setup": True, "workspace": "", "user": None}
        facts = SlotFacts.parse(await self._ask("slot.create", params))
        scope = self.scope(slot, facts)
        for command in self.template.setup:
            await _set_up(scope, command, "setup", self.template)
        for path in () if in_sandbox else (facts.workspace, facts.home):
            params = {"slot": slot.name, "path": to_wire(path, "path"), "recursive": False, "limit": 10}
            entries = items(await self._ask("file.list", params), "entries")
            if names := [name for entry in entries if (name := from_wire(entry.get("name"), "name")) != ".cache"]:
                raise ConfigError(
                    f"setup created {names[0]!r} in {path}, where no slot finds it: setup cannot change a sandbox of "
                    f"backend {self.template.backend.name!r}, which is an existing machine; use slot_setup"
                )
        await self._ask("slot.destroy", {"slot": slot.name})

    async def _ask(self, method: str, params: dict[str, object]) -> dict[str, Any]:
        try:
            return await self.channel.call(method, params, timeout_s=CREATE_S)
        except RemoteError as error:
            raise self._refusal_error(error) from None

    def _refusal_error(self, error: RemoteError) -> ExecError:
        """Return the error for a pool's request that the sandbox refused: a LaunchError in place of an OSError."""
        if error.kind == "own_root":
            return NoOwnRoot(error.message, sandbox=self.id)
        translated = remote_failure(error)
        return (
            translated
            if isinstance(translated, ExecError)
            else LaunchError(f"the sandbox refused: {translated}", sandbox=self.id)
        )

    async def reset(self, slot: PooledSlot, silence_s: float = PING_S) -> tuple[KillReceipt | None, str]:
        """End everything in a slot, wipe it, and prove that it is clean. An exclusive sandbox is replaced instead.

        Returns:
            A receipt of the kill (None if the runner gave none), and why the slot is not clean (empty if it is).

        Raises:
            ExecError: If the runner cannot do it or did not answer: ChannelLost after `silence_s` of silence.
        """
        if self.template.exclusive:
            try:  # before the container ends, so that observers get its last output
                return await self._destroy_slot(slot, silence_s), ""
            except RemoteError:
                return None, ""
        try:
            answer = await self._wait_patiently("slot.reset", slot, silence_s)
        except RemoteError as error:
            raise ExecError(f"the slot cannot be reset: {error.message}", sandbox=self.id) from error
        return self._judge_reset(slot, answer)

    def _judge_reset(self, slot: PooledSlot, answer: dict[str, Any]) -> tuple[KillReceipt, str]:
        """Return the receipt of a reset, and why the slot is not clean (empty if it is)."""
        killed = receipt(answer.get("killed"))
        if slot.facts is not None:
            slot.facts = replace(slot.facts, uid=integer(answer, "uid"), gid=integer(answer, "gid"))
        if answer.get("clean") is True and not killed.left:
            return killed, ""
        differences = answer.get("differences")
        reason = "; ".join(map(printable, differences[:5])) if isinstance(differences, list) else ""
        return killed, reason or f"{killed.left} processes are left"

    async def restore(
        self,
        slot: PooledSlot,
        checkpoint: Checkpoint,
        silence_s: float = PING_S,
        *,
        begin: bool = False,
        again: bool = False,
    ) -> tuple[KillReceipt, str, SlotStart | None]:
        """Reset a slot as `reset`, and set it to a checkpoint.

        `begin`: the slot begins with it. `again`: it is the one that the slot began with, which may be dropped by now.

        Returns:
            As `reset`, and the state that the slot now has; None if it is not clean.

        Raises:
            SlotClosed: If the checkpoint was dropped. Otherwise as `reset`.
        """
        params = {} if again else {"checkpoint": checkpoint.id, "begin": begin}
        try:
            answer = await self._wait_patiently("slot.restore", slot, silence_s, **params)
        except RemoteError as error:
            raise self._refusal_error(error) from error
        killed, unclean = self._judge_reset(slot, answer)
        return killed, unclean, None if unclean else checkpoint.start(answer)

    async def _wait_patiently(
        self, method: str, slot: PooledSlot, silence_s: float, **params: object
    ) -> dict[str, Any]:
        """Send a request that may take long, and wait for the answer as long as the sandbox answers pings.

        Raises:
            ChannelLost: If a ping was not answered within `silence_s`.
            OutcomeUnknown: If the request took longer than RESET_S.
        """
        conversation = self.channel.begin(method, {"slot": slot.name, **params})
        until = time.monotonic() + RESET_S
        try:
            while time.monotonic() < until:
                with anyio.move_on_after(PING_AFTER_S):
                    return await conversation.response()
                # The channel restores a broken stream by itself, and gives up when the lease is over.
                if self.channel.state == "open" and not await self.ping(silence_s):
                    raise ChannelLost(f"the sandbox has not answered for {silence_s:g} s", sandbox=self.id)
            raise OutcomeUnknown(f"{method} was not answered within {RESET_S:g} s", sandbox=self.id)
        finally:
            await self.channel.finish(conversation, 0.0)


async def _set_up(scope: SlotScope, command: str, setting: str, template: Template) -> None:
    params = {
        "slot": scope.slot,
        "shell": to_wire(command, setting),
        "merge_stderr": True,
        "output_limit_bytes": 1 << 16,
    }
    try:
        result = await execute(scope, params, timeout_s=SETUP_TIMEOUT_S)
    except OSError as error:  # its directory or the shell is gone
        if isinstance(error, ExecError):
            raise
        message = f"{setting}: {command!r} could not start: {error}"
        raise LaunchError(message, cause=ErrorCause.TASK, retryable=False) from error
    if not result.ok:
        how = "timed out" if result.timed_out else f"failed with exit code {result.exit_code}"
        output = mask(result.stdout, template.secrets).strip()[-2000:]
        raise LaunchError(f"{setting}: {command!r} {how}: {output}", cause=ErrorCause.TASK, retryable=False)


async def status_of(sandbox: Sandbox) -> SandboxStatus:
    """Return the status of a sandbox, `unknown` if the backend does not answer in time."""
    with anyio.move_on_after(STATUS_S):
        try:
            return await sandbox.status()
        except (ExecError, OSError) as error:
            return SandboxStatus("unknown", detail=str(error))
    return SandboxStatus("unknown", detail="the backend did not answer")


async def open_sandbox(
    record: SandboxRecord, template: Template, sandbox: Sandbox, trace: ChannelTrace | None = None
) -> PooledSandbox:
    """Open the channel into a launched sandbox, within `launch_timeout_s`.

    The caller runs the channel, then `PooledSandbox.set_up`.

    Raises:
        LaunchError: If the runner did not answer; with its exit reason and log.
        LaunchTimeout: If it may only have been slow.
    """
    pooled: PooledSandbox | None = None

    async def diagnose() -> SandboxDied | None:
        if pooled is not None:
            return await pooled.diagnose()
        status = await status_of(sandbox)
        return None if status.state != "dead" else SandboxDied("it has ended", post_mortem=status.post_mortem)

    config = template.config
    try:
        channel = await Channel.open(
            lambda: sandbox.open(["attach"]),
            lease_s=config.lease_s,
            sandbox=sandbox.id,
            memory_bytes=template.runner_memory_bytes,
            trace=trace,
            diagnose=diagnose,
            patience_s=config.launch_timeout_s,
        )
    except (ExecError, OSError) as error:
        post_mortem = error.post_mortem if isinstance(error, SandboxDied) else (await status_of(sandbox)).post_mortem
        if post_mortem is None and not isinstance(error, ProtocolError):
            late = f"the runner in {sandbox.id} did not answer within {config.launch_timeout_s:g} s: {error}"
            raise LaunchTimeout(late) from error
        message = f"the runner in {sandbox.id} did not answer: {post_mortem.reason if post_mortem else error}"
        tail = post_mortem.log_tail.strip()[-2000:] if post_mortem else ""
        raise LaunchError(f"{message}\n{tail}" if tail else message) from error
    pooled = PooledSandbox(record, template, sandbox, channel)
    pooled.slots = [PooledSlot(f"s{index}", pooled) for index in range(record.size)]
    return pooled
