"""A sandbox whose answers take a while to arrive."""

from __future__ import annotations

import os
import time

import anyio
import pytest

from hermes_exec import SandboxPool
from hermes_exec.backends.local.config import LocalConfig
from tests.support.links import far_away, slow

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


async def test_much_goes_both_ways_over_a_long_way() -> None:
    data = os.urandom(24 << 20)
    async with SandboxPool(far_away(LocalConfig(), 0.05)) as pool, pool.slot() as slot:
        with anyio.fail_after(120):
            await slot.files.write_bytes("data", data)
            assert await slot.files.read_bytes("data") == data
            through = await slot.run("cat", stdin=data, output_limit_bytes=len(data))
            assert through.stdout_bytes == data
            assert not (await slot.run("sleep 9", timeout_s=0.2)).ok


async def test_a_result_that_keeps_arriving_on_a_slow_line_is_one() -> None:
    """It takes longer than the silence after which a command is given up."""
    size = 2 << 20
    async with SandboxPool(slow(LocalConfig(), bytes_per_s=1 << 20)) as pool, pool.slot() as slot:
        started = time.monotonic()
        result = await slot.run(
            f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2", output_limit_bytes=size, timeout_s=1
        )
        assert time.monotonic() - started > 1 + 4
        assert result.ok
        assert len(result.stdout_bytes) == len(result.stderr_bytes) == size
