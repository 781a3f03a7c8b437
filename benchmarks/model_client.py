"""The driver's cost of a request to a model and of a piece of a streamed answer, beside other clients in turn.

The server is another process: `python -m benchmarks.model_client serve PAUSE_S` answers with a call, or streams an
answer whose chunks have this pause between them. One measurement is `python -m benchmarks.model_client NAME`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from benchmarks.agent import Figures, run_drivers
from benchmarks.measurements import Measurements
from benchmarks.options import Options
from hermes_agent import OpenAIModel
from hermes_agent.models.chat_stream import ChunkAssembler
from hermes_agent.models.endpoint import Endpoint

CHUNKS, PAUSE_S = 1000, 0.0005
REQUESTS, STREAMS, AT_ONCE, ROUNDS = 200, 2, 300, 5
COMPLETE, POST = "OpenAIModel.complete", "Endpoint.post"
POOL, SDK, AIOHTTP = "httpcore2's pool", "openai's chat.completions.create", "aiohttp, the bytes alone"
ONE, MANY = "driver CPU of a request", f"driver CPU of a request, {AT_ONCE} at once"
CHUNK = f"driver CPU of a chunk of {CHUNKS:,}, {PAUSE_S * 1000:g} ms apart"
TIME_LIMIT_S = {"one": 300.0, "many": 300.0, "stream": 600.0}

_MESSAGES: Any = [{"role": "system", "content": "You are an agent. " * 20}, {"role": "user", "content": "Count."}]
_PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
_FUNCTION = {"name": "terminal", "description": "Run a command. " * 20, "parameters": _PARAMETERS}
_TOOLS: Any = [{"type": "function", "function": _FUNCTION}]
_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "terminal", "arguments": json.dumps({"command": "x" * 200})},
}
_WHOLE = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
).encode()

Ask = Callable[[], Awaitable[object]]


async def measure(_: Options) -> Measurements:
    """Run the drivers one after the other."""
    return await run_drivers("model client", __name__, TIME_LIMIT_S)


async def measure_one() -> Figures:
    """Measure requests one after the other."""
    async with _clients(stream=False) as clients:
        return await _measure_cpu(ONE, clients, REQUESTS, at_once=1)


async def measure_many() -> Figures:
    """Measure requests of which many are in flight."""
    async with _clients(stream=False) as clients:
        return await _measure_cpu(MANY, clients, 4 * AT_ONCE, at_once=AT_ONCE)


async def measure_stream() -> Figures:
    """Measure streamed answers, for each of their chunks."""
    async with _clients(stream=True) as clients:
        figures = await _measure_cpu(CHUNK, clients, STREAMS, at_once=1)
    return {name: (ms / CHUNKS if unit == "ms" else ms, unit) for name, (ms, unit) in figures.items()}


async def _measure_cpu(label: str, clients: Mapping[str, Ask], requests: int, *, at_once: int) -> Figures:
    """Return the processor time of this process per request: the median of rounds in which the clients take turns."""
    times_ms: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(ROUNDS + 1):
        for name, ask in clients.items():
            left = iter(range(requests))
            begin = time.process_time()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(at_once):
                    tasks.create_task(_send_requests(ask, left))
            times_ms[name].append((time.process_time() - begin) / requests * 1000)
    medians = {name: sorted(times[1:])[ROUNDS // 2] for name, times in times_ms.items()}
    figures: Figures = {f"{label}, {name}": (ms, "ms") for name, ms in medians.items()}
    return {**figures, f"{label}, {POST} beside {SDK}": (medians[POST] / medians[SDK], "×")}


async def _send_requests(ask: Ask, left: Iterator[int]) -> None:
    for _ in left:
        await ask()


@asynccontextmanager
async def _clients(*, stream: bool) -> AsyncIterator[dict[str, Ask]]:
    """Yield functions that each send one request to a server of their own, and read its answer."""
    import aiohttp
    import httpcore2
    import openai

    body: dict[str, Any] = {
        "model": "m",
        "messages": _MESSAGES,
        "tools": _TOOLS,
        **({"stream": True} if stream else {}),
    }
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_serve_process(PAUSE_S if stream else 0.0))
        endpoint, model = Endpoint(url), OpenAIModel("m", base_url=url, stream=stream)
        stack.push_async_callback(endpoint.aclose)
        stack.push_async_callback(model.aclose)
        pool = await stack.enter_async_context(httpcore2.AsyncConnectionPool(max_connections=1000))
        sdk = await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="none"))
        connector = aiohttp.TCPConnector(limit=1000)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

        async def ask_pool() -> None:
            content = json.dumps(body).encode()
            headers = [("Host", "127.0.0.1"), ("Content-Length", str(len(content)))]
            async with pool.stream("POST", f"{url}/chat/completions", headers=headers, content=content) as answer:
                b"".join([piece async for piece in answer.aiter_stream()])

        async def ask_sdk() -> None:
            answer: Any = await sdk.chat.completions.create(**body)
            if stream:
                async for _ in answer:
                    pass

        async def ask_aiohttp() -> None:
            async with session.post(f"{url}/chat/completions", data=json.dumps(body).encode()) as answer:
                await answer.read()

        yield {
            COMPLETE: lambda: model.complete(_MESSAGES, _TOOLS),
            POST: lambda: endpoint.post("/chat/completions", body, lambda answer: answer, ChunkAssembler),
            POOL: ask_pool,
            SDK: ask_sdk,
            AIOHTTP: ask_aiohttp,
        }


@asynccontextmanager
async def _serve_process(pause_s: float) -> AsyncIterator[str]:
    """Yield the URL of a server in another process."""
    command = [sys.executable, "-m", __spec__.name, "serve", str(pause_s)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


async def serve(pause_s: float) -> None:
    """Serve until stdin ends, and print the URL."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
    whole = head % b"application/json" + b"content-length: %d\r\n\r\n%s" % (len(_WHOLE), _WHOLE)
    begin = head % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
                request = json.loads(await reader.readexactly(length))
                writer.write(begin if request.get("stream") else whole)
                for event in _EVENTS if request.get("stream") else ():
                    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                    await writer.drain()
                    await asyncio.sleep(pause_s)
                writer.write(b"0\r\n\r\n" if request.get("stream") else b"")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def _make_event(delta: Mapping[str, object], finish_reason: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    return b"data: %s\n\n" % json.dumps(frame).encode()


_EVENTS = [
    *(_make_event({"content": f"word{number} "}) for number in range(CHUNKS - 1)),
    _make_event({}, "stop", usage={"prompt_tokens": 10, "completion_tokens": CHUNKS}) + b"data: [DONE]\n\n",
]

DRIVERS: dict[str, Callable[[], Awaitable[Figures]]] = {
    "one": measure_one,
    "many": measure_many,
    "stream": measure_stream,
}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(float(sys.argv[2])))
    else:
        print(json.dumps(asyncio.run(DRIVERS[sys.argv[1]]())))  # type: ignore[arg-type]
