"""Batch runs at full width: `python -m benchmarks.batch` prints the figures of docs/batch.md.

It resumes a run of 100,000 finished prompts, and runs 1,000 workers in one process with an endpoint that answers after
seconds: the memory of the driver, and the stalls of its event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hermes_agent import Rollout, ScriptedModel
from hermes_batch import BatchConfig, read_dataset, read_records, run_batch, run_rollouts
from hermes_batch.index import TRAJECTORIES, encode_line
from hermes_batch.settings import write_settings
from hermes_exec import SandboxPool

PROMPT = "Write a program that reads numbers from its input and prints their sum. " * 10
CHECK = {"check": "python3 -I check.py", "check_files": {"check.py": "print(1)\n" * 30}}
RECORD_CHARACTERS = 7000
TICK_S = 0.01


def write_prompts(path: Path, count: int, **entries: object) -> None:
    """Write a dataset."""
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps({"id": f"t{number}", "prompt": f"{PROMPT}{number}", **entries}) + "\n")


async def write_finished_run(out: Path, dataset: Path, count: int) -> None:
    """Write a run in which every prompt has a record: the record of a real episode, with the prompt's key."""
    async with SandboxPool("local") as pool:
        await run_rollouts([("one", Rollout(messages="go"))], pool, ScriptedModel(["done"]), out.with_name("one"))
    (record,) = read_records(out.with_name("one"))
    record["messages"] = json.dumps([{"role": "user", "content": "x" * RECORD_CHARACTERS}])
    out.mkdir()
    with (out / TRAJECTORIES).open("wb") as file:
        for task in read_dataset(dataset):
            key = {"prompt_index": task.index, "id": task.name, "group": task.group, "task_digest": task.digest}
            file.write(encode_line({**record, **key}))
    config = BatchConfig(dataset=dataset, out=out, model="m", base_url="http://127.0.0.1:9/v1")
    write_settings(config, {"prompts": count, "records": count, "seconds": 1.0})


def measure_resume(directory: Path, count: int, rounds: int) -> dict[str, Any]:
    """Measure the command `batch resume` of a finished run. The first one makes the index, the report and the table."""
    dataset, out = directory / "finished.jsonl", directory / "finished"
    write_prompts(dataset, count, **CHECK)
    asyncio.run(write_finished_run(out, dataset, count))
    command = [sys.executable, "-m", "hermes_exec.cli.main", "batch", "resume", str(out), "--json"]
    walls, processor = [], []
    for _ in range(rounds + 1):
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(time.perf_counter() - begin)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert json.loads(done.stdout)["kept"] == count
    return {
        "prompts": count,
        "first_s": round(walls[0], 2),
        "resume_s": round(statistics.median(walls[1:]), 2),
        "processor_s": round(statistics.median(processor[1:]), 2),
    }


async def answer_requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Answer chat completions of one connection: one call, then a text."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = (
                line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
            )
            body = json.loads(await reader.readexactly(int(next(lengths))))
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))
            is_first = body["messages"][-1]["role"] == "user"
            call = {"name": "terminal", "arguments": json.dumps({"command": "echo hello"})}
            calls = [{"id": "c1", "type": "function", "function": call}] if is_first else None
            message = {"role": "assistant", "content": None if is_first else "Done.", "tool_calls": calls}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if is_first else "stop"}
            usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
            text = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text))
            writer.write(text)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(delay_s: float) -> None:
    """Serve the endpoint on a free port of the loopback, which is printed."""
    server = await asyncio.start_server(
        lambda reader, writer: answer_requests(reader, writer, delay_s), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def measure_workers(directory: Path, workers: int, delay_s: float) -> dict[str, Any]:
    """Measure a run in which all prompts are worked on at the same time."""
    write_prompts(directory / "prompts.jsonl", workers, check="true")
    command = [sys.executable, "-m", "benchmarks.batch", "--serve", str(delay_s)]
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    port = int(await server.stdout.readline())
    stalls: list[float] = []

    async def watch_loop() -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(TICK_S)
            stalls.append(time.perf_counter() - begin - TICK_S)

    watch = asyncio.ensure_future(watch_loop())
    try:
        config = BatchConfig(
            dataset=directory / "prompts.jsonl",
            out=directory / "run",
            model="m",
            base_url=f"http://127.0.0.1:{port}/v1",
            stream=False,
            workers=workers,
        )
        begin, before = time.perf_counter(), time.process_time()
        result = await run_batch(config)
        wall_s, processor_s = time.perf_counter() - begin, time.process_time() - before
    finally:
        watch.cancel()
        server.terminate()
        await server.wait()
    cuts = statistics.quantiles(stalls, n=100, method="inclusive")
    return {
        "workers": workers,
        "solved": result.solved,
        "wall_s": round(wall_s, 1),
        "processor_s": round(processor_s, 1),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "stall_p50_ms": round(cuts[49] * 1000, 1),
        "stall_p99_ms": round(cuts[98] * 1000, 1),
        "stall_max_ms": round(max(stalls) * 1000),
    }


def main() -> None:
    """Measure and print one line of JSON for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=100_000, help="finished prompts of the run to resume")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=20.0, help="mean seconds of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        asyncio.run(serve(arguments.serve))
        return
    with tempfile.TemporaryDirectory() as directory:
        if arguments.workers:
            print(json.dumps(asyncio.run(measure_workers(Path(directory), arguments.workers, arguments.delay))))
        if arguments.prompts:
            print(json.dumps(measure_resume(Path(directory), arguments.prompts, arguments.rounds)))


if __name__ == "__main__":
    main()
