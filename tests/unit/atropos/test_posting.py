"""Groups are posted without blocking the event loop."""

from __future__ import annotations

import json
import random

import aiohttp
import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from hermes_atropos.posting import post_json

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_post_of_large_group_does_not_block_the_loop() -> None:
    chance = random.Random(1)
    group = {"inference_logprobs": [[chance.random() for _ in range(30_000)] for _ in range(16)]}
    received: list[bytes] = []

    async def receive(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(status=200 if len(received) == 1 else 422, text="it is refused")

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/scored_data", receive)
    turns = 0
    async with TestServer(app) as server, aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:

        async def count() -> None:
            nonlocal turns
            while True:
                await anyio.sleep(0.001)
                turns += not received

        tasks.start_soon(count)
        async with post_json(session, str(server.make_url("/scored_data")), group) as response:
            assert response.status == 200
        assert turns > 20, "the loop turned while the group was compressed"
        with pytest.raises(aiohttp.ClientError, match="HTTP 422: it is refused"):
            async with post_json(session, str(server.make_url("/scored_data")), {}):
                pass
        tasks.cancel_scope.cancel()
    assert json.loads(received[0]) == group
