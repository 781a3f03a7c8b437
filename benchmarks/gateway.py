"""Model calls of harnesses: `python -m benchmarks.gateway` prints what a call costs, and 64 harnesses at once.

Calls are measured in a slot of `local`, with a client of the standard library and a model that answers at once. It
keeps its connection, or opens one for each call, as urllib does. The same client calls a server of the standard library
on the loopback of the host, in turn with the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from hermes_agent import Completion, Message, TokenUsage
from hermes_agent.gateway import Gateway, ModelGateway
from hermes_exec import SandboxPool, Slot

CLIENT = """
import http.client, json, os, sys, time
calls, history, parts, keep = map(int, sys.argv[1:5])
url = os.environ["OPENAI_BASE_URL"].removeprefix("http://")
host, _, path = url.partition("/")
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
headers |= {} if keep else {"connection": "close"}
connection = http.client.HTTPConnection(host)
before = [{"role": ("user", "assistant")[n % 2], "content": "x" * (history // parts)} for n in range(parts)]
seconds, first = [], time.time()
for call in range(calls):
    if call % 10 == 0:
        messages = [{"role": "system", "content": f"This is the conversation {call}."}, *before]
    messages.append({"role": "user", "content": f"This is the call {call} of this conversation."})
    body = json.dumps({"model": "policy", "messages": messages})
    begin = time.perf_counter()
    connection.request("POST", f"/{path}/chat/completions", body, headers)
    answer = connection.getresponse().read()
    if not keep:
        connection.close()
    seconds.append(time.perf_counter() - begin)
    messages.append(json.loads(answer)["choices"][0]["message"])
print(json.dumps([first, time.time(), seconds]))
"""
ANSWER = "This is the whole answer of a model."
SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, wbufsize, disable_nagle_algorithm = "HTTP/1.1", -1, True
    def do_POST(self):
        json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": sys.argv[1]}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
MANY = Gateway(max_requests=10**9, max_tokens=10**9, max_roots=10**9)


class ConstantModel:
    """A model that gives the same answer after some seconds."""

    model = "constant"

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """Return the answer."""
        if self._delay_s:
            await anyio.sleep(self._delay_s)
        return Completion(ANSWER, usage=TokenUsage(10, 10, 1))


@asynccontextmanager
async def serve_bare() -> AsyncIterator[str]:
    """Start a server of the standard library that gives the same answers. Yield its URL."""
    async with await anyio.open_process([sys.executable, "-c", SERVER, ANSWER], stderr=None) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(await server.stdout.receive())}/v1"
        finally:
            server.kill()


async def run_client(
    slot: Slot, env: Mapping[str, str], calls: int, history: int, parts: int, *, keep: bool = True
) -> list[Any]:
    """Run the client in a slot. Return when it began and ended, and the seconds of each call."""
    command = ["python3", "-c", CLIENT, *map(str, (calls, history, parts, int(keep)))]
    result: list[Any] = json.loads((await slot.run(command, env=env, timeout_s=None, check=True)).stdout)
    return result


async def measure_calls(calls: int, history: int, parts: int, rounds: int, *, keep: bool) -> dict[str, Any]:
    """Measure calls with this many characters before them, in turn with a bare server.

    Ten calls are one conversation.
    """
    seconds: dict[str, list[float]] = {"gateway": [], "bare": []}
    processor = []
    async with serve_bare() as bare, SandboxPool("local") as pool, pool.slot() as slot:
        for number in range(rounds + 1):
            async with ModelGateway(slot, ConstantModel(), MANY) as gateway:
                begin = time.process_time()
                ours = await run_client(slot, gateway.env, calls, history, parts, keep=keep)
                spent = (time.process_time() - begin) / calls
            env = {"OPENAI_BASE_URL": bare, "OPENAI_API_KEY": "none"}
            theirs = await run_client(slot, env, calls, history, parts, keep=keep)
            if number:  # the first round warms up
                seconds["gateway"] += ours[2]
                seconds["bare"] += theirs[2]
                processor.append(spent)
    p50 = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "history_characters": history,
        "connection": "kept" if keep else "one for each call",
        "calls": calls * rounds,
        "p50_ms": round(1000 * p50["gateway"], 2),
        "bare_p50_ms": round(1000 * p50["bare"], 2),
        "ratio": round(p50["gateway"] / p50["bare"], 2),
        "min_ms": round(1000 * min(seconds["gateway"]), 2),
        "bare_min_ms": round(1000 * min(seconds["bare"]), 2),
        "driver_processor_ms": round(1000 * statistics.median(processor), 3),
    }


async def measure_slots(slots: int, turns: int, sample_s: float) -> dict[str, Any]:
    """Measure harnesses in many slots at once, from their first request to their last answer."""
    spans: list[list[Any]] = []

    async def run_one(slot: Slot) -> None:
        async with ModelGateway(slot, ConstantModel(sample_s), MANY) as gateway:
            spans.append(await run_client(slot, gateway.env, turns, 1000, 2))

    async with (
        SandboxPool("local", slots_per_sandbox=slots) as pool,
        pool.slots(slots) as held,
        anyio.create_task_group() as tasks,
    ):
        for slot in held:
            tasks.start_soon(run_one, slot)
    ideal = turns * sample_s
    return {
        "slots": slots,
        "turns": turns,
        "sample_s": sample_s,
        "ratio_p50": round(statistics.median(end - first for first, end, _ in spans) / ideal, 3),
        "ratio_worst": round(max(end - first for first, end, _ in spans) / ideal, 3),
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=64)
    options = parser.parse_args()
    figures = {
        "calls": [
            asyncio.run(measure_calls(options.calls, history, parts, options.rounds, keep=keep))
            for keep in (True, False)
            for history, parts in ((100, 1), (1_000, 2), (100_000, 100))
        ],
        "slots": asyncio.run(measure_slots(options.slots, 4, 2.0)),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
