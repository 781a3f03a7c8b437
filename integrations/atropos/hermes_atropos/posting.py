"""Posting groups to the atropos server."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
from anyio import to_thread

_ERROR_CHARS = 500
_HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
_COMPRESSION = 1
"""The fastest level of gzip: the server is near."""


@asynccontextmanager
async def post_json(session: aiohttp.ClientSession, url: str, payload: Any) -> AsyncIterator[aiohttp.ClientResponse]:  # noqa: ANN401 - JSON
    """Post JSON, compressed in a thread: a group of long sequences takes a second, in which no rollout would continue.

    Raises:
        ClientError: If the server refuses the request, which atroposlib would only log.
    """
    body = await to_thread.run_sync(_compress, payload)
    async with session.post(url, data=io.BytesIO(body), headers=_HEADERS) as response:
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise aiohttp.ClientError(f"HTTP {response.status}: {(await response.text())[:_ERROR_CHARS]}")
        yield response


def _compress(payload: Any) -> bytes:  # noqa: ANN401 - JSON
    return gzip.compress(json.dumps(payload).encode(), _COMPRESSION)
