"""Each backend compared with the engine's own exec: calls, files, and the start of sandboxes."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import requests
from anyio import to_thread

from benchmarks import hermes, host_subprocess
from benchmarks.calls import HOST, LOCAL
from benchmarks.contender import SMALL
from benchmarks.measurements import Discipline, Measurements, Sample, keep_in_flight, progress
from benchmarks.options import Options
from hermes_exec import SandboxPool
from tests.engines import BACKENDS, options_of
from tests.support import nomad_agent

OPENSSH, PARAMIKO, APPTAINER = "hermes-exec, SSH", "hermes-exec, SSH by paramiko", "hermes-exec, Apptainer"
DOCKER, NOMAD, MODAL = "hermes-exec, Docker", "hermes-exec, Nomad", "hermes-exec, Modal's client and a loopback server"
SSH, EXEC = "ssh, one connection", "apptainer exec, one instance"
DOCKER_EXEC, ALLOC_EXEC, MODAL_EXEC = "docker exec", "nomad alloc exec", "exec of Modal's client"
BARE = "apptainer exec"
MEGABYTES, SANDBOXES, AT_ONCE = 50, 80, 8
FIRST = "a sandbox, from nothing to its first command"
PAIRS = {
    "local": (LOCAL, HOST.many),
    "docker": (DOCKER, DOCKER_EXEC),
    "ssh": (OPENSSH, SSH),
    "singularity": (APPTAINER, EXEC),
    "nomad": (NOMAD, ALLOC_EXEC),
    "modal": (MODAL, MODAL_EXEC),
}
"""The contenders of each backend: this library, and the engine's own exec."""
LABELS = {
    "no-op, p50 / p95": ("p50", "engines: no-op"),
    "no-ops, 32 at once": ("calls", "engines: no-op, 32 at once"),
    "write 1 KiB, p50 / p95": ("p50", "engines: write 1 KiB"),
    f"{MEGABYTES} MiB up": ("bytes", f"engines: {MEGABYTES} MiB up"),
    f"{MEGABYTES} MiB down": ("bytes", f"engines: {MEGABYTES} MiB down"),
    "first command from nothing": ("p50", f"engines: {FIRST}"),
}
"""The rows of the table of backends: the type of the figure, and the discipline that measured it."""


class EngineFailed(Exception):
    """Raised when the engine's own program fails, as Nomad's exec does from time to time."""


class Program:
    """The engine's own program, one process for each call."""

    def __init__(self, *argv: str, quoted: bool = False) -> None:
        self._argv, self._quoted = argv, quoted

    async def noop(self) -> None:
        """Run the empty command."""
        await self.run("true")

    async def write(self, data: bytes) -> None:
        """Write a file."""
        await self.run("cat > /tmp/bench", data)

    async def up(self, path: Path) -> None:
        """Send a file."""
        await self._move("cat > /tmp/bench-large", path, "rb")

    async def down(self, path: Path) -> None:
        """Receive the file."""
        await self._move("cat /tmp/bench-large", path, "wb")

    async def run(self, script: str, data: bytes | None = None) -> None:
        """Run a shell script with this stdin."""
        process = await asyncio.create_subprocess_exec(
            *self._command(script),
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        await process.communicate(data)
        assert process.returncode == 0, script

    async def _move(self, script: str, path: Path, mode: str) -> None:
        with path.open(mode) as file:
            end = {"stdin": file} if mode == "rb" else {"stdin": subprocess.DEVNULL, "stdout": file}
            process = await asyncio.create_subprocess_exec(*self._command(script), **end)
            if (code := await process.wait()) != 0:
                raise EngineFailed(f"{script!r} exited with {code}")

    def _command(self, script: str) -> list[str]:
        words = ["bash", "-c", script]
        return [*self._argv, shlex.join(words)] if self._quoted else [*self._argv, *words]


class Slot(hermes.Hermes):
    """A slot of this library."""

    async def up(self, path: Path) -> None:
        """Upload."""
        await self.slot.files.upload(str(path), "large")

    async def down(self, path: Path) -> None:
        """Download."""
        await self.slot.files.download("large", str(path))


class ModalExec(Program):
    """Modal's own client, which starts a process in a sandbox."""

    def __init__(self, sandbox: Any) -> None:  # noqa: ANN401 - modal is loaded late
        super().__init__()
        self._sandbox = sandbox

    async def run(self, script: str, data: bytes | None = None) -> None:
        """Run a shell script with this stdin."""
        process = await self._sandbox.exec.aio("bash", "-c", script, text=False)
        if data is not None:
            for begin in range(0, len(data), 1 << 20):
                process.stdin.write(data[begin : begin + (1 << 20)])
                await process.stdin.drain.aio()
            process.stdin.write_eof()
            await process.stdin.drain.aio()
        assert await process.wait.aio() == 0, script

    async def up(self, path: Path) -> None:
        """Send a file."""
        await self.run("cat > /tmp/bench-large", await to_thread.run_sync(path.read_bytes))

    async def down(self, path: Path) -> None:
        """Receive the file."""
        process = await self._sandbox.exec.aio("cat", "/tmp/bench-large", text=False)
        await to_thread.run_sync(path.write_bytes, await process.stdout.read.aio())


Contender = Program | Slot | host_subprocess.AsyncioSubprocess


@asynccontextmanager
async def open_slot(backend: str, **options: Any) -> AsyncIterator[Slot]:
    """Yield a slot of a new pool."""
    async with SandboxPool(backend, **options) as pool, pool.slot() as slot:
        yield Slot(slot)


@asynccontextmanager
async def open_instance(image: str) -> AsyncIterator[Program]:
    """Yield a running instance of Apptainer."""
    name = f"bench{secrets.token_hex(4)}"
    await anyio.run_process(["apptainer", "instance", "start", "--containall", "--writable-tmpfs", image, name])
    try:
        yield Program("apptainer", "-s", "exec", "--pwd", "/", f"instance://{name}")
    finally:
        await anyio.run_process(["apptainer", "instance", "stop", name])


@asynccontextmanager
async def open_connection(options: dict[str, Any], directory: str) -> AsyncIterator[Program]:
    """Yield one connection of the system's SSH client."""
    host, port = options["hosts"].rsplit(":", 1)
    argv = ["ssh", "-F", "/dev/null", "-i", options["identity_file"], "-p", port, "-S", f"{directory}/control"]
    argv += ["-o", f"UserKnownHostsFile={options['known_hosts']}"]
    await anyio.run_process([*argv, "-M", "-N", "-f", host])
    try:
        yield Program(*argv, host, quoted=True)
    finally:
        await anyio.run_process([*argv, "-O", "exit", host], check=False)


async def open_alloc_exec(options: dict[str, Any], job: str) -> Program:
    """Return Nomad's own exec in the job of a sandbox."""

    def allocation() -> str:
        headers = {"X-Nomad-Token": options["token"]}
        url = f"{options['address']}/v1/job/{job}/allocations"
        return str(requests.get(url, headers=headers, timeout=30).json()[0]["ID"])

    access = ("-address", options["address"], "-token", options["token"], "-i=true", "-t=false")
    allocation_id = await to_thread.run_sync(allocation)
    return Program(nomad_agent.program(), "alloc", "exec", *access, "-task", "sandbox", allocation_id)


async def open_modal_exec(sandbox: str) -> ModalExec:
    """Return the exec of Modal's own client in a sandbox."""
    import modal

    return ModalExec(await modal.Sandbox.from_id.aio(sandbox))


async def measure(options: Options) -> Measurements:
    """Measure all backends in rounds. In each round, all contenders run one after the other."""
    measurements = Measurements()
    async with AsyncExitStack() as stack:
        engines = {name: stack.enter_context(options_of(name)) for name in BACKENDS}
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        async def slot(backend: str, **more: Any) -> Slot:
            return await stack.enter_async_context(open_slot(backend, **engines[backend], **more))

        docker, nomad, modal = await slot("docker"), await slot("nomad", slot_root="shared"), await slot("modal")
        contenders: dict[str, Contender] = {
            HOST.many: await stack.enter_async_context(host_subprocess.open_asyncio()),
            LOCAL: await slot("local"),
            DOCKER: docker,
            DOCKER_EXEC: Program("docker", "exec", "-i", docker.slot.sandbox),
            OPENSSH: await slot("ssh", transport="openssh"),
            PARAMIKO: await slot("ssh", transport="paramiko"),
            SSH: await stack.enter_async_context(open_connection(engines["ssh"], str(directory))),
            APPTAINER: await slot("singularity"),
            EXEC: await stack.enter_async_context(open_instance(engines["singularity"]["image"])),
            NOMAD: nomad,
            ALLOC_EXEC: await open_alloc_exec(engines["nomad"], nomad.slot.sandbox),
            MODAL: modal,
            MODAL_EXEC: await open_modal_exec(modal.slot.sandbox),
        }
        await measure_calls(measurements, contenders, options)
        await measure_transfers(measurements, contenders, directory, options)
        await measure_first_commands(measurements, engines, options)
        await measure_many_sandboxes(measurements, engines["singularity"])
    return measurements


async def measure_calls(measurements: Measurements, contenders: dict[str, Contender], options: Options) -> None:
    """Measure empty commands one by one and 32 at once, and small files."""
    work: list[tuple[str, int, Callable[[Any], Awaitable[None]]]] = [
        ("engines: no-op", 1, lambda contender: contender.noop()),
        ("engines: no-op, 32 at once", 32, lambda contender: contender.noop()),
        ("engines: write 1 KiB", 1, lambda contender: contender.write(SMALL)),
    ]
    for name, at_once, call in work:
        discipline = Discipline(name, "calls", dict.fromkeys(contenders, HOST.many))
        measurements.disciplines.append(discipline)
        for number in range(options.rounds + 1):
            for each, contender in contenders.items():
                if "write" in name and isinstance(contender, host_subprocess.AsyncioSubprocess):
                    continue
                progress(f"{name}: round {number} of {options.rounds}, {each}")
                sample = discipline.sample(each) if number else Sample()  # the first round warms up
                sample.add(*await keep_in_flight(partial(call, contender), at_once, options.slice_s))


async def measure_transfers(
    measurements: Measurements, contenders: dict[str, Contender], directory: Path, options: Options
) -> None:
    """Measure a large file up and down."""
    local, back = directory / "large", directory / "back"
    await to_thread.run_sync(local.write_bytes, os.urandom(1 << 20) * MEGABYTES)
    bases = {name: own for name, own in PAIRS.values() if name != LOCAL} | {PARAMIKO: SSH}
    ways = [Discipline(f"engines: {MEGABYTES} MiB {way}", "bytes", bases, MEGABYTES << 20) for way in ("up", "down")]
    measurements.disciplines += ways
    for number in range(options.rounds + 1):
        for name, contender in contenders.items():
            if isinstance(contender, host_subprocess.AsyncioSubprocess):
                continue
            progress(f"{MEGABYTES} MiB: round {number} of {options.rounds}, {name}")
            for discipline, move, path in zip(ways, (contender.up, contender.down), (local, back), strict=True):
                begin = time.perf_counter()
                try:
                    await move(path)
                except EngineFailed as error:
                    measurements.leave_out(f"{name}, round {number} of {discipline.name}", error)
                    continue
                (discipline.sample(name) if number else Sample()).add_one(time.perf_counter() - begin)
            back.unlink(missing_ok=True)


async def measure_first_commands(
    measurements: Measurements, engines: dict[str, dict[str, Any]], options: Options
) -> None:
    """Measure the time from nothing to the first command."""
    start = "apptainer instance start"
    discipline = Discipline(f"engines: {FIRST}", "times", dict.fromkeys([APPTAINER, start], start))
    measurements.disciplines.append(discipline)
    ways: dict[str, Callable[[], Any]] = {
        ours: partial(open_slot, name, **engines[name]) for name, (ours, _) in PAIRS.items()
    }
    ways[PARAMIKO] = partial(open_slot, "ssh", transport="paramiko", **engines["ssh"])
    ways[start] = lambda: open_instance(engines["singularity"]["image"])
    for number in range(options.rounds + 1):
        for name, way in ways.items():
            progress(f"{FIRST}: round {number} of {options.rounds}, {name}")
            begin = time.perf_counter()
            async with way() as contender:
                if name != start:
                    await contender.noop()
                (discipline.sample(name) if number else Sample()).add_one(time.perf_counter() - begin)


async def measure_many_sandboxes(measurements: Measurements, apptainer: dict[str, Any]) -> None:
    """Measure many sandboxes, each with one command, started several at a time."""
    discipline = Discipline(
        f"engines: {SANDBOXES} sandboxes, each with its first command, {AT_ONCE} at once",
        "times",
        {APPTAINER: BARE, BARE: BARE},
    )
    measurements.disciplines.append(discipline)
    for number in range(2):
        progress(f"{SANDBOXES} sandboxes: round {number}")
        begin = time.perf_counter()
        pool = SandboxPool(
            "singularity", max_sandboxes=SANDBOXES, launches_at_once=AT_ONCE, creates_per_s=1000, **apptainer
        )
        async with pool, pool.slots(SANDBOXES) as slots, anyio.create_task_group() as tasks:
            for slot in slots:
                tasks.start_soon(slot.run, "true")
        discipline.sample(APPTAINER).add_one(time.perf_counter() - begin)
        begin, limiter = time.perf_counter(), anyio.CapacityLimiter(AT_ONCE)
        bare_program = Program(
            "apptainer", "-s", "exec", "--containall", "--writable-tmpfs", "--pwd", "/", apptainer["image"]
        )

        async def run_limited(limiter: anyio.CapacityLimiter = limiter, program: Program = bare_program) -> None:
            async with limiter:
                await program.noop()

        async with anyio.create_task_group() as tasks:
            for _ in range(SANDBOXES):
                tasks.start_soon(run_limited)
        discipline.sample(BARE).add_one(time.perf_counter() - begin)
