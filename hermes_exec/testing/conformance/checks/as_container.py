"""The checks that a slot with its own root behaves like a container of the image."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib.resources import files

from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal
from hermes_exec.testing.conformance.registry import NotGiven, check


def parts() -> dict[str, tuple[str, str]]:
    """The parts of as_container.sh by name: what each means, and its shell script."""
    text = files("hermes_exec.testing.conformance").joinpath("as_container.sh").read_text("utf-8")
    sections = re.findall(r"^## (\w+): (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    return {name: (meaning, script.strip()) for name, meaning, script in sections}


SHARED_MEMORY_KIB = 256 * 1024
"""The size of shared memory in an own root whose engine sets no bound."""


def _engine_sets_no_bound(name: str, output: str) -> bool:
    """Return whether the engine leaves a resource of a container unbounded that an own root bounds."""
    if name == "shared_memory":
        return int(output.split(maxsplit=1)[0]) > SHARED_MEMORY_KIB
    return name == "namespaces" and "Seccomp:\t0" in output


def _compare(name: str, meaning: str, script: str) -> Callable[[Context], Awaitable[None]]:
    async def run(ctx: Context) -> None:
        async with ctx.pool(slots_per_sandbox=1, slot_root=None) as pool, pool.slot() as container:
            expected = await container.run(["/bin/sh", "-c", script], timeout_s=30)
        got = await ctx.slot.run(["/bin/sh", "-c", script], timeout_s=30)
        if _engine_sets_no_bound(name, expected.stdout):
            raise NotGiven("this engine sets no such bound for a container; a root of its own has one")
        equal((got.exit_code, got.stdout), (expected.exit_code, expected.stdout), "exit code and output")

    run.__name__ = f"check_as_container_{name}"
    run.__doc__ = meaning
    return run


for _name, (_meaning, _script) in parts().items():
    check("as a container", "shell", "own-root")(_compare(_name, _meaning, _script))
