"""A server with the tools that the conformance suite of MCP calls by name. It prints its URL."""

from __future__ import annotations

import struct
import sys
import zlib

from hermes_exec import SandboxPool
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.tools import HostResult, tool
from hermes_mcp import SlotServer
from hermes_mcp.http import HttpOptions, serve_http


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PIXEL = b"\x89PNG\r\n\x1a\n" + b"".join(
    (
        _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")),
        _chunk(b"IEND", b""),
    )
)


@tool
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool
def test_image_content() -> HostResult:
    """Return an image."""
    return HostResult({}, [PIXEL])


@tool
def test_error_handling() -> str:
    """Raise an exception."""
    raise RuntimeError("This tool intentionally returns an error for testing")


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


@tool(parameters=SCHEMA)
def json_schema_2020_12_tool(name: str = "", address: dict[str, str] | None = None) -> str:
    """Return nothing: only its schema matters."""
    return name


async def main() -> int:
    """Serve on a free port of loopback."""
    tools = [test_simple_text, test_image_content, test_error_handling, json_schema_2020_12_tool]
    async with SandboxPool("local") as pool:
        server = SlotServer(pool, tools_of=lambda _: tools)
        await serve_http(server, HttpOptions("127.0.0.1:0"), on_ready=lambda url: print(url, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(run_async(main))
