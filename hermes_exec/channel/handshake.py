"""Handshake of a stream: the driver begins and claims the runner once; later handshakes prove the shared key."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hermes_exec.aio.streams import NowaitStream
from hermes_exec.channel.encoding import printable, shorten
from hermes_exec.channel.frames import Decoder, Frame, FrameType, encode, parse_json
from hermes_exec.errors import ChannelLost, PostMortem, ProtocolError, SandboxDied
from hermes_exec.results import LayerSize, RunnerMemory

VERSION = 1
MAX_HANDSHAKE_FRAMES = 64
DEFAULT_MEMORY_BYTES = 256 << 20
REPORT = struct.Struct(">6Q")
MEMORY_FIELDS = ("limit_bytes", "used_bytes", "peak_bytes", "dropped_bytes")
SHARE_OF_OUTPUT, LEAST_OUTPUT_BYTES = 4, 4 << 20
"""A command may have a quarter of the runner's memory for an output limit, or 4 MiB."""


@dataclass(slots=True)
class Identity:
    """The driver's knowledge of a runner: the shared key, and after the first handshake the boot id.

    `memory_bytes` is the runner's memory budget, 0 for the runner's own default.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    boot_id: str | None = None
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SandboxFacts:
    """The fields of READY (docs/protocol.md) that the driver uses; `raw` is the whole message."""

    boot_id: str
    input_window: int
    raw: dict[str, Any]
    memory: RunnerMemory

    @classmethod
    def parse(cls, ready: dict[str, Any]) -> SandboxFacts:
        """Parse READY.

        Raises:
            ProtocolError: If a required field is missing or of a wrong type.
        """
        boot_id, window = ready.get("boot_id"), ready.get("input_window")
        if (
            not isinstance(boot_id, str)
            or not boot_id.isascii()
            or type(window) is not int
            or not 1 <= window <= 16 << 20
        ):
            raise ProtocolError("the sandbox sent READY without a boot id or with an impossible window")
        memory = ready.get("memory")
        return cls(boot_id, window, ready, parse_memory(memory.get("runner") if isinstance(memory, dict) else None))

    @property
    def most_output_bytes(self) -> int:
        """The largest output limit that a command may ask for."""
        return max(self.memory.limit_bytes // SHARE_OF_OUTPUT, LEAST_OUTPUT_BYTES)

    @property
    def isolation(self) -> dict[str, Any]:
        """The results of the runner's isolation probe."""
        isolation = self.raw.get("isolation")
        return isolation if isinstance(isolation, dict) else {}


def parse_memory(memory: object) -> RunnerMemory:
    """Return the memory facts in READY, or the default budget, unused, if there are none."""
    values = memory if isinstance(memory, dict) else {}
    numbers = [number for name in MEMORY_FIELDS if type(number := values.get(name)) is int and 0 <= number < 1 << 63]
    if len(numbers) == len(MEMORY_FIELDS):
        return RunnerMemory(*numbers)
    return RunnerMemory(DEFAULT_MEMORY_BYTES, 0, 0, 0)


def unpack_report(payload: bytes) -> tuple[RunnerMemory, LayerSize] | None:
    """Return the memory and the size of the layers in an answered KEEPALIVE, or None if it has none."""
    if len(payload) != REPORT.size:
        return None
    limit, used, peak, dropped, entries, layer_bytes = REPORT.unpack(payload)
    return RunnerMemory(limit, used, peak, dropped), LayerSize(entries, layer_bytes)


class FrameReader:
    """The frames of one stream, one by one. Bytes read beyond a frame are kept."""

    def __init__(self, stream: NowaitStream) -> None:
        self._stream = stream
        self.decoder = Decoder()
        self.frames: deque[Frame] = deque()

    async def next(self) -> Frame:
        """Return the next frame, or raise anyio's stream errors when the stream ends."""
        while not self.frames:
            self.frames.extend(self.decoder.feed(await self._stream.receive()))
        return self.frames.popleft()


async def shake_hands(stream: NowaitStream, identity: Identity, lease_s: float) -> tuple[FrameReader, SandboxFacts]:
    """Open a stream for frames, and return its reader and the facts of the sandbox.

    Raises:
        SandboxDied: If the sandbox was restarted.
        ChannelLost: If the sandbox refuses the stream.
        ProtocolError: If the sandbox breaks the protocol.
    """
    nonce = secrets.token_bytes(16)
    hello: dict[str, object] = {"versions": [VERSION], "nonce": nonce.hex(), "lease_s": lease_s}
    hello["client"] = "hermes-exec"
    if identity.memory_bytes:
        hello["memory_bytes"] = identity.memory_bytes
    claiming = identity.boot_id is None
    if claiming:
        hello["claim"] = identity.key.hex()
    else:
        hello["boot_id"] = identity.boot_id
    stream.send_nowait(encode(FrameType.HELLO, payload=json.dumps(hello).encode()))
    await stream.drain()
    reader = FrameReader(stream)
    welcome = await _expect(reader, FrameType.WELCOME)
    if welcome.get("version") != VERSION:
        raise ProtocolError(
            f"the runner speaks version {shorten(welcome.get('version'))} of the protocol, not {VERSION}"
        )
    boot_id = welcome.get("boot_id")
    if not isinstance(boot_id, str) or not boot_id.isascii():
        raise ProtocolError("the sandbox sent WELCOME without a boot id")
    if not claiming:
        if boot_id != identity.boot_id:
            why = "it was restarted, and its processes are gone"
            raise SandboxDied(f"the sandbox died: {why}", post_mortem=PostMortem(why, suspect="outside"))
        await _prove(stream, identity.key, nonce, welcome, boot_id)
    facts = SandboxFacts.parse(await _expect(reader, FrameType.READY))
    if facts.boot_id != boot_id:
        raise ProtocolError("the sandbox changed its boot id within one handshake")
    identity.boot_id = boot_id
    return reader, facts


async def _prove(stream: NowaitStream, key: bytes, nonce: bytes, welcome: dict[str, Any], boot_id: str) -> None:
    try:
        theirs = bytes.fromhex(printable(welcome.get("nonce")))
        proof = bytes.fromhex(printable(welcome.get("proof")))
    except ValueError as error:
        raise ProtocolError("the sandbox sent WELCOME without a proof") from error
    if not hmac.compare_digest(proof, _mac(key, b"runner", nonce, theirs, boot_id)):
        raise ProtocolError("the sandbox could not prove that this driver started it")
    answer = json.dumps({"proof": _mac(key, b"driver", nonce, theirs, boot_id).hex()}).encode()
    stream.send_nowait(encode(FrameType.PROOF, payload=answer))
    await stream.drain()


def _mac(key: bytes, role: bytes, driver_nonce: bytes, runner_nonce: bytes, boot_id: str) -> bytes:
    return hmac.new(key, role + driver_nonce + runner_nonce + boot_id.encode(), hashlib.sha256).digest()


async def _expect(reader: FrameReader, kind: FrameType) -> dict[str, Any]:
    for _ in range(MAX_HANDSHAKE_FRAMES):
        frame = await reader.next()
        if frame.type == FrameType.KEEPALIVE:
            continue
        if frame.type == FrameType.GOODBYE:
            goodbye = parse_json(frame.payload)
            why = f"{printable(goodbye.get('reason'))}: {printable(goodbye.get('message'))}"
            raise ChannelLost(f"the runner refused the stream: {why}")
        if frame.type != kind or frame.conversation != 0:
            raise ProtocolError(f"the sandbox sent a frame of type {frame.type} where {kind.name} is due")
        return parse_json(frame.payload)
    raise ProtocolError(f"the sandbox sent {MAX_HANDSHAKE_FRAMES} frames and no {kind.name}")
