"""The demonstration: a model works on real tasks, each in its own slot, and nothing is left behind.

`python -m examples.demo` runs the prompts in `examples/tasks.jsonl` with a small language model in this process,
without a key or a network. Some of them then get several samples, and the solved samples become a data set that
`datasets` loads. `python -m examples.demo browser` runs the prompts in `examples/browser/tasks.jsonl`: a
scripted agent uses a web shop that each slot serves itself. The slots are in one sandbox of the backend in
`HERMES_DEMO_BACKEND`, with the options (JSON) in `HERMES_DEMO_OPTIONS`, such as an image or the address of a host. By
default they are on this host.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.markup import escape

from examples.demo.data_set import make_data_set
from examples.demo.leftovers import ProcessWatch, sandboxes_of
from examples.demo.solutions_model import SolutionsModel
from hermes_agent.models.factory import EMBEDDED
from hermes_batch.config import BatchConfig
from hermes_batch.index import TRAJECTORIES
from hermes_batch.record import Record
from hermes_batch.report.report import REPORT
from hermes_batch.result import BatchResult
from hermes_batch.results_table import show_results
from hermes_batch.run import run_batch
from hermes_batch.run_display import RunDisplay
from hermes_batch.trajectories import read_rows
from hermes_exec.backends.base import Backend
from hermes_exec.backends.registry import make_backend
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.errors import BackendUnavailable, ExecError
from hermes_exec.pool.pool import SandboxPool

PLAYWRIGHT_S = 10.0
_CONSOLE = Console(highlight=False)


@dataclass(frozen=True)
class Sampling:
    """Prompts of the tasks that get several samples each, in a run at `out`, and the data set of them at `data`."""

    ids: tuple[str, ...]
    samples: int
    temperature: float
    out: Path
    data: Path


@dataclass(frozen=True)
class Demo:
    """The tasks, the model that works on them, its limits (`loop`) and the options of the pool (`pool`)."""

    tasks: Path
    out: Path
    model: Any
    description: str
    workers: int
    toolsets: tuple[str, ...]
    loop: Mapping[str, Any]
    pool: Mapping[str, Any] = field(default_factory=dict)
    all_solved: bool = False
    """Whether an unsolved task is a failure, because the solutions are known."""
    sampling: Sampling | None = None


def terminal_demo() -> Demo:
    """Return the terminal tasks over a source tree."""
    description = "SmolLM2-135M in this process; the first prompts take longest"
    bounds = {"max_turns": 4, "temperature": 0.0, "max_tokens": 80}
    tasks, out = Path("examples/tasks.jsonl"), Path("runs/demo")
    ids = ("copy-file", "remove-file", "first-lines", "last-line")
    sampling = Sampling(ids, 4, 0.7, Path("runs/demo-samples"), Path("runs/demo-data"))
    return Demo(tasks, out, EMBEDDED, description, 8, ("terminal",), bounds, sampling=sampling)


def browser_demo() -> Demo:
    """Return the browser tasks over a web shop."""
    directory = Path("examples/browser")
    tasks = directory / "tasks.jsonl"
    model = SolutionsModel.of(tasks, directory / "solutions.json")
    tools = ("terminal", "file", "browser", "code_execution")
    description = "none, a script with the solutions"
    bounds, pool = {"max_turns": 30}, {"network": False}
    return Demo(tasks, Path("runs/browser"), model, description, 3, tools, bounds, pool, all_solved=True)


DEMOS = {"terminal": terminal_demo, "browser": browser_demo}


async def run_demo(settings: Demo, backend: str, options: dict[str, Any]) -> int:
    """Run the demonstration and return the exit code: 0 if every prompt has a record (and is solved, if the solutions
    are known) and nothing was left behind.
    """
    workers = settings.workers
    backend, options, why = await _choose_backend(backend, options, workers)
    _print(f"{workers} prompts at a time, {why}; model: {settings.description}")
    run_id = f"demo-{secrets.token_hex(4)}"
    config = BatchConfig(
        dataset=settings.tasks,
        out=settings.out,
        model=settings.model,
        backend=backend,
        image=options.pop("image", None),
        backend_options={**options, **settings.pool, "run_id": run_id},
        slots_per_sandbox=workers,
        max_sandboxes=1,
        workers=workers,
        toolsets=settings.toolsets,
        overwrite=True,
        **settings.loop,
    )
    watch = ProcessWatch()
    result = await _run(config, watch)
    show_results(_CONSOLE, read_rows(settings.out)[0], result.seconds, result.total)
    _print(f"{settings.out / TRAJECTORIES}\n{settings.out / REPORT}")
    worked = result.complete and (not settings.all_solved or result.solved == result.total)
    if settings.sampling is not None:
        worked = await _sample(config, settings.sampling, watch) and worked
    clean = await _check_nothing_left(make_backend(backend, options), run_id, watch)
    return exits.OK if clean and worked else exits.FAILED


async def _run(config: BatchConfig, watch: ProcessWatch) -> BatchResult:
    def done(result: BatchResult, record: Record) -> None:
        watch.look()
        display.show_record(result, record)

    with RunDisplay(_CONSOLE) as display:
        result = await run_batch(config, on_start=display.show_start, on_record=done, on_status=display.show_status)
    _CONSOLE.print()
    return result


async def _sample(config: BatchConfig, sampling: Sampling, watch: ProcessWatch) -> bool:
    """Make a data set of several samples of some prompts, and return whether it worked."""
    count = f"{sampling.samples} samples of each of {len(sampling.ids)} prompts"
    _print(f"\nA data set: {count}, at temperature {sampling.temperature}")
    changes = {name: getattr(sampling, name) for name in ("ids", "samples", "temperature", "out")}
    result = await _run(config.model_copy(update=changes), watch)
    made = await anyio.to_thread.run_sync(make_data_set, _CONSOLE, sampling.out, sampling.data)
    return result.complete and made


async def _choose_backend(backend: str, options: dict[str, Any], workers: int) -> tuple[str, dict[str, Any], str]:
    try:
        async with SandboxPool(backend, slots_per_sandbox=workers, **options) as pool, pool.slot() as slot:
            description = (
                f"a slot each, in one sandbox of {backend}: {slot.isolation.level}, {slot.isolation.filesystem}"
            )
    except BackendUnavailable as error:
        return "local", {}, f"slots on this host, without {backend} ({error})"
    return backend, options, description


async def _check_nothing_left(backend: Backend, run_id: str, watch: ProcessWatch) -> bool:
    sandboxes, processes = await sandboxes_of(backend, run_id), watch.list_left()
    with anyio.move_on_after(PLAYWRIGHT_S):  # Playwright's driver stays alive for the next browser
        while processes:
            await anyio.sleep(0.2)
            processes = watch.list_left()
    if not sandboxes and not processes:
        processes_text = f" ({len(watch.seen)} of its processes ran on this host; all have ended)" if watch.seen else ""
        _print(f"left behind: no sandbox, no process{processes_text}")
        return True
    _print(f"left behind: {[sandbox.sandbox for sandbox in sandboxes]} {[process.pid for process in processes]}")
    return False


def _print(text: str) -> None:
    _CONSOLE.print(escape(text), soft_wrap=True)


def main() -> None:
    """Run the demonstration named on the command line."""
    name = "".join(sys.argv[1:]) or "terminal"
    if name not in DEMOS:
        sys.exit(f"unknown demonstration {name!r}: choose {' or '.join(DEMOS)}")
    options = json.loads(os.environ.get("HERMES_DEMO_OPTIONS") or "{}")
    try:
        code = run_async(lambda: run_demo(DEMOS[name](), os.environ.get("HERMES_DEMO_BACKEND") or "local", options))
    except ExecError as error:
        Console(stderr=True).print(escape(f"{type(error).__name__}: {error}"), soft_wrap=True)
        code = exits.code_of(error)
    sys.exit(code)


if __name__ == "__main__":
    main()
