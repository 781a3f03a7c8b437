"""A program: a pool on a backend of a file, whose slot works until its sandbox is gone: `beside.py FILE NAME
RUN_ID`.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import anyio

from hermes_exec import ExecError, SandboxPool


async def main(file: str, name: str, run_id: str) -> None:
    """Print the sandbox, and when its work has ended the name of the error that the next call meets."""
    async with SandboxPool.from_config(file, backend=name, run_id=run_id) as pool, pool.slot() as slot:
        print(slot.sandbox, flush=True)
        with suppress(ExecError):
            await slot.run("while :; do sleep 0.05; done", timeout_s=None)
        try:
            await slot.run("true")
        except ExecError as error:
            print(type(error).__name__, flush=True)


if __name__ == "__main__":
    given, chosen, run = sys.argv[1:]
    anyio.run(main, given, chosen, run)
