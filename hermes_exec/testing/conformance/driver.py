"""A second driver for a check: it starts processes in a slot and waits until it is killed."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import anyio

from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.facts import learn
from hermes_exec.testing.conformance.registry import PoolFactory


def main() -> None:
    """Read a pickled (factory, mark) from stdin, start the tree of that mark in a slot of its pool, and wait.

    Unpickling is safe here: the input comes from the suite that started this process.
    """
    factory, mark = pickle.load(sys.stdin.buffer)
    anyio.run(_work, factory, mark)


async def _work(factory: PoolFactory, mark: str) -> None:
    facts = await learn(factory)
    async with factory(lease_s=10.0, max_sandboxes=1) as pool, pool.slot() as slot:
        await Context(factory, facts, Path(), slot).background("tree", 600, mark)
        await anyio.sleep_forever()
