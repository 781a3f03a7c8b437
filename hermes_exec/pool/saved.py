"""Saving checkpoints into files, and loading them into a sandbox."""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import from_thread, to_thread

from hermes_exec.archives.checkpoint_file import CheckpointFacts, CheckpointReader, CheckpointWriter, Origin
from hermes_exec.channel.encoding import from_wire, to_wire
from hermes_exec.errors import AcquireTimeout, ConfigError, ExecError, ProtocolError
from hermes_exec.pool.acquire import Queue
from hermes_exec.pool.checkpoints import Checkpoints, StoredCheckpoint, check_disk
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.request import SlotRequest
from hermes_exec.pool.sandbox import PooledSandbox
from hermes_exec.pool.template import Template
from hermes_exec.pool.transfer import CheckpointContents, complete, open_part, put_part, read_contents
from hermes_exec.slot.checkpoint import Checkpoint, CheckpointAnswer, States

if TYPE_CHECKING:
    from hermes_exec.config import ProfileConfig

PIECE_BYTES = 1 << 20


def digest_setup(template: Template) -> str:
    """Return a digest of the commands that prepare the sandboxes of a template; "" without any."""
    return hashlib.sha256(json.dumps(template.setup).encode()).hexdigest() if template.setup else ""


async def save_checkpoint(store: Checkpoints, checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Implement `Checkpoint.save`."""
    stored = store.find(checkpoint)
    with stored.use():
        sandbox = next(iter(stored.copies.values())).sandbox
        try:
            contents = await read_contents(sandbox, checkpoint.id, variables=False)
            facts = CheckpointFacts(
                image=checkpoint.image,
                image_id=stored.image_id,
                setup=digest_setup(stored.template),
                workdir=from_wire(contents.workdir, "workdir"),
                holds=checkpoint.holds,
                left_out=tuple(
                    dict.fromkeys((*(["variables of sessions"] * bool(contents.sessions)), *checkpoint.left_out))
                ),
                on_fork=checkpoint.on_fork,
                layers=tuple(directories for _, directories in contents.layers),
                sessions={
                    wire_id: {"id": checkpoint.session_id(wire_id), "state": state}
                    for wire_id, state in contents.sessions.items()
                },
                origin=_parse_origin(contents),
            )
            writer = await to_thread.run_sync(CheckpointWriter, path)
            try:
                await to_thread.run_sync(writer.write_facts, facts)
                for layer, number, name in facts.part_names():
                    await _save_part(
                        writer, sandbox, checkpoint.id, contents.layers[layer].layer, facts.layers[layer][number], name
                    )
                await to_thread.run_sync(writer.commit)
            finally:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(writer.__exit__, None, None, None)
        except ExecError as error:
            raise await sandbox.explain_loss(error) from error


def _parse_origin(contents: CheckpointContents) -> Origin | None:
    if (origin := contents.origin) is None:
        return None
    if not isinstance(paths := origin.get("paths"), dict):
        raise ProtocolError("the sandbox sent the origin of a checkpoint of a wrong type")
    return Origin(from_wire(origin.get("dir"), "dir"), {name: from_wire(path, name) for name, path in paths.items()})


async def _save_part(
    writer: CheckpointWriter, sandbox: PooledSandbox, checkpoint_id: str, layer: str, directory: str, name: str
) -> None:
    await to_thread.run_sync(writer.begin, name)
    async with open_part(sandbox, "layer.get", checkpoint_id, layer, directory) as source:
        while piece := await source.receive():
            await to_thread.run_sync(writer.write, piece)
        source.conversation.result()
    await to_thread.run_sync(writer.end, name)


async def load_checkpoint(
    fleet: Fleet,
    queue: Queue,
    path: str | os.PathLike[str],
    profile: str | ProfileConfig | None,
    image: str | None,
    *,
    allow_other_image: bool,
) -> Checkpoint:
    """Implement `SandboxPool.load`."""
    reader = await to_thread.run_sync(CheckpointReader, path)
    try:
        return await _load(fleet, queue, reader, profile, image, allow_other_image=allow_other_image)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(reader.__exit__, None, None, None)


async def _load(
    fleet: Fleet,
    queue: Queue,
    reader: CheckpointReader,
    profile: str | ProfileConfig | None,
    image: str | None,
    *,
    allow_other_image: bool,
) -> Checkpoint:
    facts, store = reader.facts, queue.checkpoints
    template, _ = fleet.templates.select(profile, image)
    check_kind(reader, template)
    if not allow_other_image:
        check_base(reader, template, None)
    await to_thread.run_sync(reader.verify, from_thread.check_cancelled)
    sandbox = await _find_sandbox(fleet, queue, template)
    check_kind(reader, template)  # the engine may have refused roots of slots
    if not allow_other_image:
        check_base(reader, template, sandbox.image_id)
    origin = None if facts.origin is None else await _prepare_origin(reader, facts.origin, sandbox)
    stored = StoredCheckpoint(template, sandbox.image_id, SlotRequest(profile, image))
    checkpoint_id = store.add(stored, sandbox)
    states = {wire_id: session["state"] for wire_id, session in facts.sessions.items()}
    try:
        for part in reader.parts:
            source = reader.open(part)
            receive = partial(to_thread.run_sync, source.read, PIECE_BYTES)
            try:
                await put_part(sandbox, checkpoint_id, str(part.layer), part.directory, receive)
            except ConfigError as error:
                raise ConfigError(
                    f"{reader.path} cannot be used, because of its entry {part.name!r}: {error}"
                ) from error
        cwds = {}
        for wire_id, state in states.items():
            try:
                cwds[wire_id] = from_wire(state.get("cwd"), "cwd")
            except ProtocolError as error:
                raise ConfigError(f"{reader.path} cannot be used: a session has no valid directory") from error
        names = [{"put": str(number)} for number, directories in enumerate(facts.layers) if directories]
        workdir = to_wire(facts.workdir, "workdir")
        try:
            layers = await complete(sandbox, checkpoint_id, names, workdir, states, origin)
        except ConfigError as error:
            raise ConfigError(f"{reader.path} cannot be used: {error}") from error
        store.complete(checkpoint_id, sandbox, layers)
        return Checkpoint(
            id=checkpoint_id,
            image=template.image,
            answer=CheckpointAnswer(facts.workdir, cwds, killed=None, copied=True, holds=facts.holds),
            session_ids={wire_id: session["id"] for wire_id, session in facts.sessions.items()},
            left_out=facts.left_out,
            states=States(),
            on_fork=facts.on_fork,
            owner=store,
        )
    except BaseException as error:
        store.give_up(checkpoint_id)
        if isinstance(error, ExecError):
            raise await sandbox.explain_loss(error) from error
        raise


def check_kind(reader: CheckpointReader, template: Template) -> None:
    """Raise ConfigError if slots of a template cannot have what a file holds; the message names the settings."""
    name, key, own_roots = template.backend.name, template.key, template.own_roots
    check_disk(template)
    if reader.facts.holds == "root" and not own_roots.enabled:
        remedy = "set slot_root='own'" if template.backend.can_be_exclusive else "use backend 'docker' or 'singularity'"
        why = f"backend {name!r} has none" if not template.backend.can_be_exclusive else own_roots.refused
        raise ConfigError(
            f"{reader.path} holds the root of a slot, which needs slots with a root of their own, and slots of {key} "
            f"have none{f' ({why})' if why else ''}: {remedy}"
        )
    if reader.facts.holds == "directories" and (own_roots.enabled or template.exclusive):
        raise ConfigError(
            f"{reader.path} holds the directories of a slot that shares its root, and slots of {key} have the whole "
            "root: set slot_root='shared' and slots_per_sandbox=2 or more, or use backend 'local' or 'ssh'"
        )


async def _prepare_origin(reader: CheckpointReader, origin: Origin, sandbox: PooledSandbox) -> dict[str, object]:
    """Return the origin of a checkpoint for the wire.

    Raises:
        ConfigError: If the slots of a sandbox have their directories at other paths than the slot of the file.
    """
    slot = sandbox.slots[0].facts or await sandbox.try_slot()
    base = from_wire(sandbox.channel.facts.raw.get("base_dir"), "base_dir")
    for role, path in (("workspace", slot.workspace), ("home", slot.home), ("tmp", slot.tmp)):
        here = None if path.startswith(f"{base}/") else path
        if origin.paths.get(role) != here:
            there, here = (each or "a path of its own in each slot" for each in (origin.paths.get(role), here))
            raise ConfigError(
                f"{reader.path} holds the directories of a slot with its {role} at {there}, and slots of "
                f"{sandbox.template.key} have it at {here}: use slots with the isolation level of that slot "
                f"(here it is {slot.isolation.level!r})"
            )
    return {
        "dir": to_wire(origin.dir, "dir"),
        "paths": {role: to_wire(path, role) for role, path in origin.paths.items()},
    }


def check_base(reader: CheckpointReader, template: Template, image_id: str | None) -> None:
    """Raise ConfigError if a file was saved over another image or other `setup` than a sandbox has.

    `image_id` is the engine's id of the sandbox's image; None before there is a sandbox.
    """
    facts = reader.facts
    differs = (facts.image is None) != (template.image is None) if image_id is None else facts.image_id != image_id
    remedy = "use the image of the file, or pass allow_other_image=True if its layers fit over this one too"
    if differs:
        there, here = (
            f"the image {name!r} ({own_id or 'id not known yet'})" if name else "no image"
            for name, own_id in ((facts.image, facts.image_id), (template.image, image_id))
        )
        raise ConfigError(f"{reader.path} was saved over {there}, and the slots here have {here}: {remedy}")
    if facts.setup != digest_setup(template):
        raise ConfigError(f"{reader.path} was saved over other commands of `setup` than the pool has: {remedy}")


async def _find_sandbox(fleet: Fleet, queue: Queue, template: Template) -> PooledSandbox:
    """Return a ready sandbox of a template, which is launched if there is none. Raises as `SandboxPool.prewarm`."""
    for _ in range(3):
        ready = [
            sandbox
            for sandbox in fleet.sandboxes.values()
            if sandbox.record.template == template.key and sandbox.record.available
        ]
        if ready:
            return max(ready, key=lambda sandbox: (sandbox.record.free, sandbox.record.ends_at))
        await queue.warm(template, 1)
    raise AcquireTimeout("no sandbox stayed ready")
