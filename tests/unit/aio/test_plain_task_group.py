"""A task group whose errors are raised as they are."""

from __future__ import annotations

import anyio
import pytest

from hermes_exec.aio.tasks import PlainTaskGroup

pytestmark = pytest.mark.anyio


async def raise_soon(error: Exception) -> None:
    await anyio.lowlevel.checkpoint()
    raise error


async def test_plain_task_group_raises_the_error_of_its_block() -> None:
    error = ValueError("of the block")
    with pytest.raises(ValueError, match="of the block") as raised:
        async with PlainTaskGroup() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise error
    assert raised.value is error


async def test_plain_task_group_raises_the_first_error_of_its_tasks() -> None:
    first = LookupError("first")

    async def fail_at_the_end() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("second")

    with pytest.raises(LookupError) as raised:
        async with PlainTaskGroup() as tasks:
            tasks.start_soon(fail_at_the_end)
            tasks.start_soon(raise_soon, first)
            await anyio.sleep_forever()
    assert raised.value is first


async def test_plain_task_group_ends_quietly_when_its_scope_is_cancelled() -> None:
    async with PlainTaskGroup() as tasks:
        tasks.start_soon(anyio.sleep_forever)
        tasks.cancel_scope.cancel()
        await anyio.sleep_forever()


async def test_plain_task_group_is_cancelled_with_its_caller() -> None:
    ended = []
    with anyio.move_on_after(0.01) as scope:
        async with PlainTaskGroup() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            await anyio.sleep_forever()
        ended.append("the group")
    assert scope.cancelled_caught
    assert ended == []
