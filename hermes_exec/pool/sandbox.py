"""One box of a pool: bringing it up, preparing and resetting its slots, and finding out what became of it."""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from hermes_exec.backends.base import NoOwnRoot, Sandbox, SandboxStatus
from hermes_exec.channel import Channel, RemoteError
from hermes_exec.channel.encoding import from_wire, readable, to_wire
from hermes_exec.channel.trace import Trace
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
from hermes_exec.pool.state import SandboxRecord
from hermes_exec.pool.templates import Template
from hermes_exec.redact import masked
from hermes_exec.results import KillReceipt
from hermes_exec.slot.answers import SlotFacts, integer, items, receipt, remote_failure
from hermes_exec.slot.run import execute
from hermes_exec.slot.scope import SlotScope, raise_seen
from hermes_exec.slot.transfer.transfer import moving, upload

logger = logging.getLogger(__name__)
PING_S = 5.0
STATUS_S = 3.0
CREATE_S = 60.0
RESET_S = 120.0
SETUP_TIMEOUT_S = 600.0
SETUP_SLOT = "setup"


@dataclass(slots=True)
class SlotPlace:
    """One slot of a box: its name on the wire, and its facts once it was created.

    `touched` says that something was put into it, or somebody held it, since it was created or reset.
    """

    name: str
    facts: SlotFacts | None = None
    begun: bool = False
    """Its creation was begun; if that was interrupted, how far it got is unknown."""
    lent: bool = False
    held: bool = False
    """A tenant has it; a place that is lent may also be one that is prepared or reset."""
    touched: bool = False
    quarantined: bool = False
    doing: str = ""
    """What is being done to prepare it, for the error of a waiter that times out."""


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """What a reset found. `reusable` is False where the box has to be replaced although the slot is clean, `killed`
    None where its runner could not tell.
    """

    clean: bool
    reusable: bool
    killed: KillReceipt | None
    reason: str = ""


@dataclass(slots=True)
class PooledSandbox:
    """A box that was launched. `death` is set once it is known to be dead."""

    record: SandboxRecord
    template: Template
    sandbox: Sandbox
    channel: Channel
    places: list[SlotPlace]
    death: PostMortem | None = None
    disk_full: bool = False
    """Whether a disk of it was nearly full at the last ping."""

    @property
    def id(self) -> str:
        """The backend's name of the box."""
        return self.sandbox.id

    async def status(self) -> SandboxStatus:
        """The backend's view, `unknown` when it does not answer in time. Never raises."""
        status = await status_of(self.sandbox)
        if status.state == "dead" and self.death is None:
            self.death = status.post_mortem or PostMortem("the box has ended")
        return status

    def died(self) -> SandboxDied:
        """The error for holders of a dead box; a fresh one each time."""
        death = self.death or PostMortem("the box has ended")
        return SandboxDied(f"the sandbox {self.id} died: {death.reason}", post_mortem=death, sandbox=self.id)

    async def diagnose(self) -> SandboxDied | None:
        """For the channel: SandboxDied when the stream was lost because the box is dead."""
        return self.died() if (await self.status()).state == "dead" else None

    async def explain_loss(self, error: ExecError) -> ExecError:
        """The error of a lost call: SandboxDied where the box is dead, else the error itself."""
        cause = error.__cause__
        if self.death is None and isinstance(error, ChannelLost | OutcomeUnknown | ProtocolError | SandboxDied):
            # The engine knows more of a death than the channel does, when it answers.
            with anyio.move_on_after(0.5):
                await self.status()
        for known in (error, cause):
            if isinstance(known, SandboxDied) and self.death is None and known.sandbox in (None, self.id):
                self.death = known.post_mortem
        if self.death is not None:
            found: ExecError = self.died()
        elif error is self.channel.lost_reason:
            found = type(error)(str(error), sandbox=self.id)
        else:
            found = error
        found.sandbox = self.id
        found.request_id = error.request_id
        if found is not error:
            found.__cause__ = error
        return found

    async def ping(self, wait_s: float = PING_S) -> bool:
        """Whether the runner answers now, within so many seconds."""
        if self.channel.state != "open":
            return False
        try:
            conversation = self.channel.begin("box.info", {})
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

    def scope(self, place: SlotPlace, left: KillWatch) -> SlotScope:
        """A new scope for the calls on a slot."""
        return SlotScope(place.name, self.channel, self.explain_loss, left.see)

    async def create(self, place: SlotPlace) -> SlotFacts:
        """The facts of a slot, which is created at first use.

        Raises:
            IsolationError, ConfigError, LaunchError: the runner cannot give such a slot here.
        """
        if place.facts is not None:
            return place.facts
        params = self.template.slot_params(place.name, self.sandbox.user)
        try:
            if place.begun:
                await self._destroy_slot(place)
            place.begun = True
            answer = await self.channel.call("slot.create", params, timeout_s=CREATE_S)
        except RemoteError as error:
            raise self._refused(error) from None
        except (ChannelLost, OutcomeUnknown, ProtocolError, SandboxDied) as error:
            raise_seen(await self.explain_loss(error), error)
        facts = SlotFacts.parse(answer)
        limits = {**facts.isolation.limits}
        for name, how in self.sandbox.limits.items():
            limits.setdefault(name, how)
        self.template.own_roots.warn(facts.isolation.level)
        told = facts.isolation.filesystem
        if self.template.own_roots.refused:
            told += f"; {self.template.own_roots.refused}"
        place.facts = replace(facts, isolation=replace(facts.isolation, limits=limits, filesystem=told))
        return place.facts

    async def _destroy_slot(self, place: SlotPlace) -> KillReceipt | None:
        """End what runs in a slot, and forget it; None where there is no such slot."""
        try:
            answer = await self.channel.call("slot.destroy", {"slot": place.name}, timeout_s=RESET_S)
        except RemoteError as error:
            if error.kind != "no_slot":
                raise
            return None
        return receipt(answer.get("killed"))

    def workdir(self, wanted: str | None) -> str | None:
        """The directory that `image` stands for, or the one that is named; None for the workspace."""
        return self.sandbox.workdir if wanted == "image" else wanted

    async def provision(self, place: SlotPlace, scope: SlotScope, workdir: str | None) -> None:
        """Prepare a slot that is about to be lent: its working directory, the configured files, its `slot_setup`.

        Raises:
            ConfigError: the working directory is not there and cannot be made.
            LaunchError: a file cannot be put into it, or a command failed.
        """
        if workdir is not None:
            try:
                await scope.call("slot.workdir", {"path": to_wire(workdir, "workdir")}, timeout_s=CREATE_S)
            except OSError as error:
                raise ConfigError(f"workdir: calls cannot start in {workdir!r}: {error}") from error
        for path, source in self.template.config.files.items():
            place.doing = f"the files for {path!r} were not yet there"
            wired = to_wire(path, "files")
            try:
                if isinstance(source, bytes):
                    params = {"path": wired, "parents": True, "append": False}
                    async with moving(scope, "file.write", params, path) as move:
                        await move.send(source)
                        await move.finish()
                else:
                    await upload(scope, str(Path(source)), wired, path)
            except OSError as error:
                again = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise LaunchError(f"files: {path!r} cannot be put into the slot: {error}", retryable=again) from error
        for command in self.template.slot_setup:
            place.doing = f"its slot_setup {masked(repr(command), self.template.secrets)} had not ended"
            await _set_up(scope, command, "slot_setup", self.template)
        if self.template.config.files or self.template.slot_setup:
            await scope.call("slot.disk", {"prepared": True}, timeout_s=CREATE_S)
        place.doing = ""

    async def set_up(self) -> None:
        """Run the commands of `setup`, and create the first slot.

        In a box of our own they act on the box itself, with the rights of its runner; elsewhere in a slot.

        Raises:
            LaunchError: a command failed.
            ConfigError: it made files in a slot, where nobody would find them.
        """
        if self.template.setup:
            await self._run_setup()
        await self.create(self.places[0])

    async def _run_setup(self) -> None:
        place = SlotPlace(SETUP_SLOT)
        ours = self.template.backend.whole_box
        params = self.template.slot_params(place.name, None)
        if ours:
            level = "auto" if self.template.own_roots.given else "box"
            params |= {"level": level, "floor": "none", "limits": {}, "setup": True, "workspace": "", "user": None}
        facts = SlotFacts.parse(await self._ask("slot.create", params))
        scope = self.scope(place, KillWatch())
        for command in self.template.setup:
            await _set_up(scope, command, "setup", self.template)
        for path in () if ours else (facts.workspace, facts.home):
            params = {"slot": place.name, "path": to_wire(path, "path"), "recursive": False, "limit": 10}
            entries = items(await self._ask("file.list", params), "entries")
            if made := [name for entry in entries if (name := from_wire(entry.get("name"), "name")) != ".cache"]:
                raise ConfigError(
                    f"setup made {made[0]!r} in {path}, where no slot would find it: a box of backend "
                    f"{self.template.backend.name!r} is a machine that is not ours to change; use slot_setup"
                )
        await self._ask("slot.destroy", {"slot": place.name})

    async def _ask(self, method: str, params: dict[str, object]) -> dict[str, Any]:
        try:
            return await self.channel.call(method, params, timeout_s=CREATE_S)
        except RemoteError as error:
            raise self._refused(error) from None

    def _refused(self, error: RemoteError) -> ExecError:
        """The error for a request of the pool that the box refused: a LaunchError in place of an OSError."""
        if error.kind == "own_root":
            return NoOwnRoot(error.message, sandbox=self.id)
        seen = remote_failure(error)
        return seen if isinstance(seen, ExecError) else LaunchError(f"the box refused: {seen}", sandbox=self.id)

    async def reset(self, place: SlotPlace) -> ResetOutcome:
        """End everything in a slot, wipe it, and prove that it is clean. A whole box is never reset but replaced.

        Raises:
            ExecError: the runner did not answer, or cannot do it.
        """
        if self.template.whole_box:
            try:
                killed = await self._destroy_slot(place)  # before the container: who looks on sees the last of it
            except RemoteError:
                killed = None
            return ResetOutcome(clean=True, reusable=False, killed=killed)
        try:
            answer = await self.channel.call("slot.reset", {"slot": place.name}, timeout_s=RESET_S)
        except RemoteError as error:
            raise ExecError(f"the slot cannot be reset: {error.message}", sandbox=self.id) from error
        killed = receipt(answer.get("killed"))
        if place.facts is not None:
            place.facts = replace(place.facts, uid=integer(answer, "uid"), gid=integer(answer, "gid"))
        if answer.get("clean") is not True or killed.left:
            differences = answer.get("differences")
            told = "; ".join(map(readable, differences[:5])) if isinstance(differences, list) else ""
            return ResetOutcome(False, False, killed, told or f"{killed.left} processes are left")
        return ResetOutcome(True, True, killed)


class KillWatch:
    """Remembers that a kill in a slot left processes behind, or that a reset could not prove the slot clean."""

    def __init__(self) -> None:
        self.found = False
        self.reason = ""

    def see(self, killed: KillReceipt | None, reason: str = "") -> None:
        """Take note of a receipt that left something, or of why a slot is not clean."""
        self.found = True
        self.reason = reason or f"{killed.left if killed else 0} processes could not be ended"


async def _set_up(scope: SlotScope, command: str, what: str, template: Template) -> None:
    params = {
        "slot": scope.slot,
        "shell": to_wire(command, what),
        "merge_stderr": True,
        "output_limit_bytes": 1 << 16,
    }
    result = await execute(scope, params, timeout_s=SETUP_TIMEOUT_S)
    if not result.ok:
        how = "timed out" if result.timed_out else f"failed with exit code {result.exit_code}"
        said = masked(result.stdout, template.secrets).strip()[-2000:]
        raise LaunchError(f"{what}: {command!r} {how}: {said}", cause=ErrorCause.TASK, retryable=False)


async def status_of(sandbox: Sandbox) -> SandboxStatus:
    """As `Sandbox.status`, `unknown` when it does not answer in time."""
    with anyio.move_on_after(STATUS_S):
        try:
            return await sandbox.status()
        except (ExecError, OSError) as error:
            return SandboxStatus("unknown", detail=str(error))
    return SandboxStatus("unknown", detail="the backend did not answer")


async def open_sandbox(
    record: SandboxRecord, template: Template, sandbox: Sandbox, trace: Trace | None = None
) -> PooledSandbox:
    """Open the channel into a sandbox that was launched, within `launch_timeout_s`. The caller runs the channel, then
    `PooledSandbox.set_up`.

    Raises:
        LaunchError: the runner did not answer; with what is known of it. LaunchTimeout: it may only have been slow.
    """
    box: PooledSandbox | None = None

    async def diagnose() -> SandboxDied | None:
        if box is not None:
            return await box.diagnose()
        status = await status_of(sandbox)
        return None if status.state != "dead" else SandboxDied("it has ended", post_mortem=status.post_mortem)

    config = template.config
    try:
        channel = await Channel.open(
            lambda: sandbox.open(["attach"]),
            lease_s=config.lease_s,
            memory_bytes=template.runner_memory_bytes,
            trace=trace,
            diagnose=diagnose,
            patience_s=config.launch_timeout_s,
        )
    except (ExecError, OSError) as error:
        known = error.post_mortem if isinstance(error, SandboxDied) else (await status_of(sandbox)).post_mortem
        if known is None and not isinstance(error, ProtocolError):
            late = f"the runner in {sandbox.id} did not answer within {config.launch_timeout_s:g} s: {error}"
            raise LaunchTimeout(late) from error
        told = f"the runner in {sandbox.id} did not answer: {known.reason if known else error}"
        tail = known.log_tail.strip()[-2000:] if known else ""
        raise LaunchError(f"{told}\n{tail}" if tail else told) from error
    places = [SlotPlace(f"s{index}") for index in range(record.slots)]
    box = PooledSandbox(record, template, sandbox, channel, places)
    return box
