"""A driver that tests interfere with: `python -m tests.chaos.driver OPTIONS COMMAND OUTPUT`, the options as JSON.

It prints the name of its sandbox when its call is under way, and at the end what it saw, as JSON.
"""

from __future__ import annotations

import json
import sys

import anyio

from tests.chaos.flow import flow


async def begun(sandbox: str) -> None:
    """Let the others know."""
    print(sandbox, flush=True)


if __name__ == "__main__":
    print(json.dumps(anyio.run(flow, json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], begun)))
