"""Where a slot's directories are, as docs/isolation.md says it, and what of the driver a local slot can read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import SandboxPool

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).resolve().parents[3] / "docs" / "isolation.md"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "`local` at `namespaces`": ("local", {}),
    "Docker, a slot in a sandbox": ("docker", {}),
    "Docker, slots with roots of their own": ("docker", {"slots_per_sandbox": 2}),
    "Docker, slots that share a root": ("docker", {"slots_per_sandbox": 2, "slot_root": "shared"}),
}


def documented(case: str) -> list[str]:
    """The cells of a column with paths in the table: workspace, home, tmp."""
    section = PAGE.read_text("utf-8").partition("## Directories of a slot")[2].partition("\n## ")[0]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    )
    return [row[head.index(case)].strip("`") for row in rows[:3]]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.docker] if case.startswith("Docker") else []) for case in CASES]
)
async def test_directories_are_where_the_page_says(case: str, docker_image: Callable[[str], str]) -> None:
    backend, options = CASES[case]
    image = docker_image("busybox") if backend == "docker" else None
    async with SandboxPool(backend, image=image, **options) as pool, pool.slot() as slot:
        if backend == "local" and slot.isolation.level != "namespaces":
            pytest.skip(f"slots of this user have the level {slot.isolation.level}")
        told = (await slot.run('echo "$PWD"; echo "$HOME"; echo "$TMPDIR"', check=True)).stdout.splitlines()
        assert told == [slot.workspace, slot.home, slot.tmp]
        for path, pattern in zip(told, documented(case), strict=True):
            if pattern == "the image's":
                assert path == "/root"
                continue
            assert re.fullmatch(re.escape(pattern).replace("ID", "[^/]+"), path), (path, pattern)


async def test_a_local_slot_reads_the_drivers_python_and_does_not_write_it() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        if slot.isolation.level == "none":
            pytest.skip("slots of this user have the level none")
        assert {entry.name for entry in await slot.files.list(sys.prefix)} == set(os.listdir(sys.prefix))
        with pytest.raises(OSError, match=r"(?i)read-only|denied"):
            await slot.files.write_text(f"{sys.prefix}/of-a-slot", "x")
