"""Copying a checkpoint from one sandbox to another: the driver carries the bytes, in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio

from hermes_exec.channel import RemoteError
from hermes_exec.channel.encoding import WireBytes, from_wire, to_wire
from hermes_exec.errors import ProtocolError
from hermes_exec.pool.sandbox import PooledSandbox
from hermes_exec.slot.answers import items, remote_failure
from hermes_exec.slot.transfer.transfer import STALL_S, WINDOW_BYTES, Transfer

ANSWER_S = 60.0
LAYER_LIMIT_BYTES = 64 << 30
"""Most bytes of a layer's files."""


class LayerContents(NamedTuple):
    """A layer in one sandbox: its id there, and the directories of the root that it changes."""

    layer: str
    directories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """The runner's answer to `checkpoint.get`: layers, the oldest first, and states of sessions."""

    layers: tuple[LayerContents, ...]
    workdir: WireBytes
    sessions: Mapping[str, Mapping[str, Any]]
    origin: Mapping[str, Any] | None
    """Of a checkpoint of directories: where its slot had them."""

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> CheckpointContents:
        """Parse the answer. Raises ProtocolError if a field is missing or has a wrong type."""
        layers = []
        for entry in items(answer, "layers"):
            layer, directories = entry.get("layer"), entry.get("directories")
            if not isinstance(layer, str) or not isinstance(directories, list):
                raise ProtocolError("the sandbox sent a layer of a wrong type")
            layers.append(LayerContents(layer, tuple(from_wire(each, "directory") for each in directories)))
        sessions = answer.get("sessions")
        if not isinstance(sessions, dict) or not all(isinstance(state, dict) for state in sessions.values()):
            raise ProtocolError("the sandbox sent sessions of a wrong type")
        if not isinstance(origin := answer.get("origin"), dict | None):
            raise ProtocolError("the sandbox sent the origin of a checkpoint of a wrong type")
        return cls(tuple(layers), to_wire(from_wire(answer.get("workdir"), "workdir"), "workdir"), sessions, origin)


async def ask(sandbox: PooledSandbox, method: str, params: Mapping[str, object]) -> dict[str, Any]:
    """Send a short request to a sandbox. Raises the translated error of the runner."""
    try:
        return await sandbox.channel.call(method, params, timeout_s=ANSWER_S)
    except RemoteError as error:
        raise remote_failure(error) from None


async def read_contents(sandbox: PooledSandbox, checkpoint_id: str, *, variables: bool) -> CheckpointContents:
    """Return the contents of a checkpoint. Without `variables`, no variable of a session is in it."""
    params = {"checkpoint": checkpoint_id, "variables": variables}
    return CheckpointContents.parse(await ask(sandbox, "checkpoint.get", params))


@asynccontextmanager
async def open_part(
    sandbox: PooledSandbox, method: str, checkpoint_id: str, layer: str, directory: str
) -> AsyncIterator[Transfer]:
    """Open the conversation that carries the changes of a layer to one directory.

    Raises:
        TimeoutError: If nothing moved for `STALL_S`. Otherwise the translated error of the runner.
    """
    params: dict[str, object] = {
        "checkpoint": checkpoint_id,
        "layer": layer,
        "directory": to_wire(directory, "directory"),
    }
    if method == "layer.put":
        params["limit"] = LAYER_LIMIT_BYTES
        params["store_limit"] = sandbox.template.checkpoint_limit.get("limit")
    with anyio.CancelScope(deadline=anyio.current_time() + STALL_S) as scope:
        try:
            async with sandbox.channel.converse(method, params, window=WINDOW_BYTES) as conversation:
                yield Transfer(conversation, scope)
        except RemoteError as error:
            raise remote_failure(error) from None
    if scope.cancelled_caught:
        raise TimeoutError(f"the sandbox {sandbox.id} did not move the layers of a checkpoint for {STALL_S:g} s")


async def put_part(
    sandbox: PooledSandbox,
    checkpoint_id: str,
    layer: str,
    directory: str,
    receive: Callable[[], Any],
) -> None:
    """Send the pieces that `receive` returns, until it returns b"", as the changes of a layer to one directory."""
    async with open_part(sandbox, "layer.put", checkpoint_id, layer, directory) as target:
        while not target.conversation.finished and (piece := await receive()):
            await target.send(piece)
        await target.finish()


async def copy_checkpoint(
    source: PooledSandbox,
    target: PooledSandbox,
    checkpoint_id: str,
    present: Sequence[str | None],
    check: Callable[[], None],
) -> tuple[str, ...]:
    """Copy a checkpoint into another sandbox, and return the ids of its layers there.

    `present` has the id in the target of each layer, the oldest first; None for a layer that has to be copied. `check`
    is called before each piece: its exceptions end the transfer.
    """
    contents = await read_contents(source, checkpoint_id, variables=True)
    if len(contents.layers) != len(present):
        raise ProtocolError(f"the sandbox {source.id} sent another number of layers than it has reported")
    for (layer, directories), there in zip(contents.layers, present, strict=True):
        for directory in () if there is not None else directories:
            async with open_part(source, "layer.get", checkpoint_id, layer, directory) as reader:

                async def receive(reader: Transfer = reader) -> bytes:
                    check()
                    piece = await reader.receive()
                    if not piece:
                        reader.conversation.result()  # raises the error of the source
                    return piece

                await put_part(target, checkpoint_id, layer, directory, receive)
    layers = [
        {"put": layer} if there is None else {"have": there}
        for (layer, _), there in zip(contents.layers, present, strict=True)
    ]
    workdir, sessions, origin = contents.workdir, contents.sessions, contents.origin
    return await complete(target, checkpoint_id, layers, workdir, sessions, origin)


async def complete(
    target: PooledSandbox,
    checkpoint_id: str,
    layers: Sequence[Mapping[str, str]],
    workdir: WireBytes,
    sessions: Mapping[str, Mapping[str, Any]],
    origin: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Make the layers that a sandbox has received a checkpoint, and return their ids there."""
    params = {
        "checkpoint": checkpoint_id,
        "layers": list(layers),
        "workdir": workdir,
        "sessions": sessions,
        "origin": origin,
        **target.template.checkpoint_limit,
    }
    return parse_layers(await ask(target, "checkpoint.put", params), len(layers))


def parse_layers(answer: Mapping[str, Any], count: int | None = None) -> tuple[str, ...]:
    """Return the ids of layers in an answer. Raises ProtocolError if they are none, or not `count`."""
    layers = answer.get("layers")
    if (
        not isinstance(layers, list)
        or not all(isinstance(layer, str) for layer in layers)
        or len(layers) != (len(layers) if count is None else count)
    ):
        raise ProtocolError("the sandbox sent layers of a wrong type")
    return tuple(layers)
