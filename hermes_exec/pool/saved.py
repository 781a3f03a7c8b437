"""Saving checkpoints into files, and loading them into a sandbox."""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import from_thread, to_thread

from hermes_exec.archives.checkpoint_file import CheckpointFacts, CheckpointReader, CheckpointWriter
from hermes_exec.channel.encoding import from_wire, to_wire
from hermes_exec.errors import AcquireTimeout, ConfigError, ExecError, ProtocolError
from hermes_exec.pool.acquire import Queue
from hermes_exec.pool.checkpoints import Checkpoints, StoredCheckpoint, check_template
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.request import SlotRequest
from hermes_exec.pool.sandbox import PooledSandbox
from hermes_exec.pool.template import Template
from hermes_exec.pool.transfer import complete, open_part, put_part, read_contents
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
                left_out=("variables of sessions", *checkpoint.left_out),
                on_fork=checkpoint.on_fork,
                layers=tuple(directories for _, directories in contents.layers),
                sessions={
                    wire_id: {"id": checkpoint.session_id(wire_id), "state": state}
                    for wire_id, state in contents.sessions.items()
                },
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
    check_template(template, "root")
    if facts.holds != "root":
        raise ConfigError(f"{reader.path} holds {facts.holds!r}, and slots of {template.key} hold 'root'")
    await to_thread.run_sync(reader.verify, from_thread.check_cancelled)
    sandbox = await _find_sandbox(fleet, queue, template)
    check_base(reader, template, sandbox.image_id, allow_other_image=allow_other_image)
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
        layers = await complete(sandbox, checkpoint_id, names, to_wire(facts.workdir, "workdir"), states)
        store.complete(checkpoint_id, sandbox, layers)
        return Checkpoint(
            id=checkpoint_id,
            image=template.image,
            answer=CheckpointAnswer(facts.workdir, cwds, killed=None, copied=True),
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


def check_base(reader: CheckpointReader, template: Template, image_id: str, *, allow_other_image: bool) -> None:
    """Raise ConfigError if a file was saved over another image or other `setup` than a sandbox has."""
    facts = reader.facts
    if allow_other_image:
        return
    remedy = "use the image of the file, or pass allow_other_image=True if its layers fit over this one too"
    if facts.image_id != image_id:
        raise ConfigError(
            f"{reader.path} was saved over the image {facts.image!r} ({facts.image_id}), and the slots here have "
            f"{template.image!r} ({image_id}): {remedy}"
        )
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
