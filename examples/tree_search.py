"""Tree search over a repository: `python -m examples.tree_search -i python:3.12-slim` repairs `broken_tools/`.

A node of the tree is the repository after some edits, and a checkpoint of the slot that made the last one. The search
is best-first: it takes the node with the fewest failing tests, and tries its next edits, each in a slot that was
restored to the node. An edit changes one token of a module whose tests fail. No model takes part, so the search is the
same in each run.
"""

from __future__ import annotations

import argparse
import difflib
import heapq
import io
import json
import random
import time
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import anyio

from hermes_exec import Checkpoint, SandboxPool, Slot

REPOSITORY = Path(__file__).with_name("broken_tools")
RUN_TESTS = ["python3", "-B", "run_tests.py"]
TESTS_S = 5.0
ALL_FAIL = 100
"""The number of failing tests of a repository whose tests do not end."""
SWAPS = ("< <=", "< >", "> >=", "<= >=", "== !=", "+ -", "+= -=", "min max", "and or")
"""Pairs of tokens that an edit may exchange. A number below 3 becomes one larger or one smaller."""


class Edit(NamedTuple):
    """One token of a module, at a line and a column, and what replaces it."""

    module: str
    line: int
    column: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line} {self.old} → {self.new}"

    def apply(self, source: str) -> str:
        """Return the source of the module after the edit."""
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.column] + self.new + line[self.column + len(self.old) :]
        return "".join(lines)


@dataclass
class Node:
    """A state of the repository: its checkpoint, its sources and the number of failing tests by module."""

    number: int
    checkpoint: Checkpoint
    sources: Mapping[str, str]
    failures: Mapping[str, int]
    edits: tuple[Edit, ...] = ()
    untried: Iterator[Edit] = field(init=False)

    def __post_init__(self) -> None:
        self.untried = iter(find_edits(self.sources, self.failures, seed=self.number))

    def __lt__(self, other: Node) -> bool:
        """Compare by failing tests. Of equal nodes, the one with fewer edits is less, and then the older one."""
        return (self.cost, len(self.edits), self.number) < (other.cost, len(other.edits), other.number)

    @property
    def cost(self) -> int:
        """The number of failing tests."""
        return sum(self.failures.values())


@dataclass
class Search:
    """The result of a search: all nodes in the order of their creation, and the seconds of each kind of call."""

    nodes: list[Node] = field(default_factory=list)
    checkpoints_s: list[float] = field(default_factory=list)
    restores_s: list[float] = field(default_factory=list)

    def add(self, node: Node, show: Callable[[Node], None] | None) -> None:
        """Add a node, and show it."""
        self.nodes.append(node)
        if show is not None:
            show(node)

    @property
    def best(self) -> Node:
        """The node with the fewest failing tests."""
        return min(self.nodes)


def find_edits(sources: Mapping[str, str], failures: Mapping[str, int], seed: int) -> list[Edit]:
    """Return the edits of the modules whose tests fail, in a random order that is the same for the same seed."""
    edits = []
    for module, source in sources.items():
        if not failures.get(module):
            continue
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            edits += [Edit(module, *token.start, token.string, new) for new in find_replacements(token)]
    random.Random(seed).shuffle(edits)
    return edits


def find_replacements(token: tokenize.TokenInfo) -> list[str]:
    """Return what an edit may put in place of a token."""
    if token.type == tokenize.NUMBER and int(token.string) < 3:
        return [str(number) for number in (int(token.string) + 1, int(token.string) - 1) if number >= 0]
    pairs = [pair.split() for pair in SWAPS]
    return [new for pair in pairs for old, new in (pair, pair[::-1]) if old == token.string]


async def search(slots: list[Slot], most_nodes: int, show: Callable[[Node], None] | None = None) -> Search:
    """Search from the state of the first slot until all tests pass, or until there are `most_nodes` nodes.

    The slots have the same sandbox: each of them can be restored to each node.
    """
    result = Search()
    await slots[0].files.upload(REPOSITORY, ".")
    modules = [path.name.removeprefix("test_").removesuffix(".py") for path in sorted(REPOSITORY.glob("test_*.py"))]
    sources = {module: (REPOSITORY / f"{module}.py").read_text() for module in modules}
    root = Node(0, await slots[0].checkpoint(), sources, await count_failures(slots[0], modules))
    result.add(root, show)
    queue = [root]
    while result.best.cost and len(result.nodes) < most_nodes:
        node = queue[0]
        edits = list(islice(node.untried, min(len(slots), most_nodes - len(result.nodes))))
        children: dict[int, Node] = {}
        async with anyio.create_task_group() as tasks:
            for slot, number, edit in zip(slots, count(len(result.nodes)), edits, strict=False):
                tasks.start_soon(expand, slot, node, edit, number, children, result)
        for number in sorted(children):
            result.add(children[number], show)
            heapq.heappush(queue, children[number])
        if not edits:
            heapq.heappop(queue)
    return result


async def expand(slot: Slot, node: Node, edit: Edit, number: int, children: dict[int, Node], result: Search) -> None:
    """Make the node that an edit of `node` leads to in this slot, and add it to `children`."""
    begin = time.perf_counter()
    await slot.restore(node.checkpoint)
    result.restores_s.append(time.perf_counter() - begin)
    source = edit.apply(node.sources[edit.module])
    await slot.files.write_text(f"{edit.module}.py", source)
    failures = await count_failures(slot, list(node.sources))
    begin = time.perf_counter()
    checkpoint = await slot.checkpoint()
    result.checkpoints_s.append(time.perf_counter() - begin)
    sources = {**node.sources, edit.module: source}
    children[number] = Node(number, checkpoint, sources, failures, (*node.edits, edit))


async def count_failures(slot: Slot, modules: list[str]) -> dict[str, int]:
    """Run the tests in a slot, and return the number of failing tests by module."""
    result = await slot.run(RUN_TESTS, timeout_s=TESTS_S)
    if not result.ok:  # an edit may cause a loop without an end
        return dict.fromkeys(modules, ALL_FAIL)
    failures: dict[str, int] = json.loads(result.stdout)
    return failures


def show_node(node: Node) -> None:
    """Print a node."""
    edits = ", ".join(map(str, node.edits)) or "the repository"
    print(f"node {node.number:3}: {node.cost:3} failing tests after {edits}", flush=True)


def show_result(result: Search) -> None:
    """Print the difference between the repository and the best node, and the times of checkpoints and restores."""
    root, best = result.nodes[0], result.best
    for module, source in best.sources.items():
        lines = (root.sources[module].splitlines(keepends=True), source.splitlines(keepends=True))
        print("".join(difflib.unified_diff(*lines, f"a/{module}.py", f"b/{module}.py", n=0)), end="")
    for name, times in (("checkpoint", result.checkpoints_s), ("restore", result.restores_s)):
        if times:
            median_s = sorted(times)[len(times) // 2]
            print(f"{len(times)} × {name}: median {median_s * 1000:.1f} ms, minimum {min(times) * 1000:.1f} ms")


async def main(image: str, most_nodes: int, workers: int) -> int:
    """Run the search on Docker. Return 0 if the best node passes all tests after a restore to it."""
    async with (
        SandboxPool("docker", image=image, network=False, slots_per_sandbox=workers, max_sandboxes=1) as pool,
        pool.slots(workers) as slots,
    ):
        begin = time.perf_counter()
        result = await search(slots, most_nodes, show_node)
        print(f"{len(result.nodes)} nodes in {time.perf_counter() - begin:.1f} s")
        show_result(result)
        await slots[0].restore(result.best.checkpoint)
        failures = await count_failures(slots[0], list(result.best.sources))
        return 1 if any(failures.values()) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-i", "--image", default="python:3.12-slim", help="an image with Python")
    parser.add_argument("--nodes", type=int, default=200, help="the most nodes of the tree")
    parser.add_argument("--workers", type=int, default=4, help="slots that try edits at the same time")
    arguments = parser.parse_args()
    raise SystemExit(anyio.run(main, arguments.image, arguments.nodes, arguments.workers))
