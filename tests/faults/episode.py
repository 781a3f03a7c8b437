"""One seed: a pool that breaks by its schedule, the workload on it, and the verdict. Runs in a process of its own."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from hermes_exec import BackendUnavailable, SandboxPool
from hermes_exec.backends.base import ReapFilter, SandboxInfo
from hermes_exec.backends.registry import config_type, make_backend
from hermes_exec.testing.faults import Faults, faulty
from tests.engines import modal_server
from tests.faults.evidence import Directory, Evidence, directory, listening
from tests.faults.workload import WORKERS, Record, nap, work
from tests.support.outside import marked

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 240.0
LEASE_S = 8.0
ROOM_MB = 128
"""What a sandbox has for its slots, or all sandboxes of this host together: a disk that a fault can fill."""
SANDBOXES = "HERMES_EXEC_TEST_SANDBOXES"
"""Names that disk to the process of a seed."""


@dataclass
class Verdict:
    """What was wrong with one seed, and what it was made of."""

    backend: str
    seed: int
    wrong: list[str] = field(default_factory=list)
    commands: int = 0
    results: int = 0
    unknown: int = 0
    refused: int = 0
    full: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)

    @property
    def replay(self) -> str:
        """The command that runs this seed again."""
        return f"python -m tests.faults {self.backend} {self.seed}"


def pool_options(backend: str, faults: Faults, evidence: Evidence, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the pool under test, with options of its backend."""
    common = {"lease_s": LEASE_S, "run_id": f"faults-{faults.seed}", "max_sandboxes": 3, "slots_per_sandbox": 4}
    if backend == "modal" and isinstance(evidence, Directory):
        volume = f"evidence-{faults.seed}"
        modal_server.in_use().switch("volumes", {volume: str(evidence.path)})
        options = {**options, "shared_volumes": [f"{volume}:/evidence"], "creates_per_s": None}
    elif backend == "nomad":
        assert isinstance(evidence, Directory)
        options = {**options, "volumes": [f"{evidence.path}:/evidence"]}
        common["slot_root"] = "shared"
    elif backend != "docker":
        if backend == "singularity" and os.geteuid() == 0:
            common["slot_root"] = "own"
        options = {**options, "base_dir": os.environ.get(SANDBOXES) or tempfile.gettempdir()}
    elif isinstance(evidence, Directory):
        small = {"/hermes-exec/state/base": f"size={ROOM_MB}m,mode=711"}
        options = {**options, "shared_volumes": [f"{evidence.path}:/evidence"], "tmpfs": small}
    return {**common, "backend": faulty(config_type(backend).of(options), faults)}


async def use(options: dict[str, Any], evidence: Evidence, seed: int, scratch: Path) -> Record:
    """The workload on a pool."""
    backend = options.pop("backend")
    async with AsyncExitStack() as held:
        pool = await once_there(lambda: held.enter_async_context(SandboxPool(backend, **options)))
        record = await work(pool, evidence.snippet, scratch, seed)
        began = time.monotonic()
    if time.monotonic() - began > 35:
        record.wrong.append(f"closing the pool took {time.monotonic() - began:.1f} s")
    return record


async def once_there(work: Callable[[], Awaitable[T]]) -> T:
    """Do something when the backend's server is there, which may be restarting."""
    with anyio.fail_after(60):
        while True:
            try:
                return await work()
            except BackendUnavailable:
                await anyio.sleep(0.5)


def held() -> Counter[str]:
    """What this process holds: descriptors by kind, and threads."""
    gc.collect()
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[os.readlink(entry).split(":")[0]] += 1
        except OSError:
            continue
    for thread in threading.enumerate():
        if thread.name.startswith("hermes-exec"):
            found[f"thread {thread.name}"] += 1
    return found


def judge(record: Record, counts: Counter[str]) -> list[str]:
    """What contradicts the traces that commands left."""
    wrong = list(record.wrong)
    for told in record.told:
        count = counts.pop(told.name, 0)
        if count > 1:
            wrong.append(f"{told.name} ran {count} times")
        if told.result and count != 1:
            wrong.append(f"{told.name} has a result and ran {count} times")
        if told.not_run and count:
            wrong.append(f"{told.name} was said not to have run, and ran: {told.error}")
    wrong += [f"{name} ran, and nobody asked for it" for name in counts]
    return wrong


def episode(backend: str, seed: int, options: dict[str, Any]) -> Verdict:
    """Run one seed in this process."""
    began = time.monotonic()
    faults = Faults(seed)
    way: AbstractContextManager[Evidence] = directory() if backend in {"docker", "nomad", "modal"} else listening()
    with way as evidence, tempfile.TemporaryDirectory() as scratch:
        if backend == "modal":
            sandboxes()  # its client keeps a connection for the whole program
        before = held()
        given = pool_options(backend, faults, evidence, options)
        record = anyio.run(use, given, evidence, seed, Path(scratch))
        deadline = time.monotonic() + 20
        while (more := held() - before) and time.monotonic() < deadline:
            time.sleep(0.2)
        wrong = judge(record, evidence.counts())
        wrong += [f"{count} more of {what} are held afterwards" for what, count in more.items()]
    return Verdict(
        backend,
        seed,
        wrong,
        commands=len(record.told),
        results=sum(told.result for told in record.told),
        unknown=sum("OutcomeUnknown" in told.error for told in record.told),
        refused=record.refused,
        full=record.full,
        faults=dict(Counter(fault.what for fault in faults.log)),
        seconds=time.monotonic() - began,
        log=[*(str(fault) for fault in faults.log), *(f"{t.name} {t.seconds:.2f} s {t.error}" for t in record.told)],
    )


def in_own_process(
    backend: str, seed: int, options: dict[str, Any] | None = None, *, restarts: bool = False
) -> Verdict:
    """Run one seed in a process of its own, with options of the backend, and look at what that left behind. Where its
    server `restarts`, a sandbox may have been left to its lease, and its directory to who comes next.
    """
    with tempfile.TemporaryDirectory() as scratch, small_disk(backend) as disk:
        command = [sys.executable, "-m", "tests.faults.episode", backend, str(seed), json.dumps(options or {})]
        env = {**os.environ, **({SANDBOXES: disk} if disk else {}), "TMPDIR": scratch, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=env, timeout=LONGEST_S, cwd=ROOT, check=False
            )
        except subprocess.TimeoutExpired as error:
            return Verdict(backend, seed, [f"it did not end within {LONGEST_S:g} s", str(error.stderr)[-4000:]])
        try:
            verdict = Verdict(**json.loads(done.stdout.splitlines()[-1]))
        except (IndexError, ValueError, TypeError):
            return Verdict(backend, seed, [f"exit code {done.returncode}", done.stderr[-4000:]])
        if "Traceback" in done.stderr:
            verdict.wrong.append(f"it wrote to stderr: {done.stderr.strip()[-2000:]}")
        if restarts and backend == "ssh":
            there = make_backend(backend, {**(options or {}), "base_dir": scratch})
            anyio.run(once_there, partial(there.reap, ReapFilter(all=True)))
        verdict.wrong += left_behind(backend, seed, Path(scratch), options or {})
        if disk:
            verdict.wrong += [f"{name} is left where sandboxes are" for name in os.listdir(disk)]
        return verdict


@contextmanager
def small_disk(backend: str) -> Iterator[str | None]:
    """A file system of its own for the sandboxes of a seed, which only root can have."""
    if backend not in {"local", "singularity"} or os.geteuid() or sys.platform != "linux":
        yield None
        return
    with tempfile.TemporaryDirectory() as path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_MB}m", "none", path], check=True)
        try:
            yield path
        finally:
            # What holds it open was told of already.
            subprocess.run(["umount", "--lazy", path], check=True)


def left_behind(backend: str, seed: int, scratch: Path, options: dict[str, Any]) -> list[str]:
    """What a run that is over left on this machine."""
    files = [path.relative_to(scratch) for path in scratch.rglob("*/*") if path.suffix != ".pace"]
    wrong = [f"{path} is left in the temporary directory" for path in files]
    deadline = time.monotonic() + 10
    words = [nap(seed, number) for number in range(WORKERS)]
    while (living := [word for word in words if marked(word)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    wrong += [f"a process sleeps for {word}" for word in living]
    if backend == "nomad":
        found = anyio.run(once_there, make_backend(backend, options).sandboxes)
        wrong += [f"job {info.sandbox} is left" for info in found if info.labels.run_id == f"faults-{seed}"]
    if backend == "docker":
        wrong += [f"container {name[:12]} is left" for name in containers(f"faults-{seed}", options.get("base_url"))]
    if backend == "modal":
        run = f"faults-{seed}"
        wrong += [f"sandbox {one.sandbox} is left" for one in sandboxes() if one.labels.run_id == run]
    return wrong


def containers(run_id: str, url: str | None) -> list[str]:
    """The containers of a run, on a daemon that may be restarting."""
    from docker import DockerClient, from_env
    from docker.errors import DockerException

    deadline = time.monotonic() + 60
    while True:
        try:
            client = from_env() if url is None else DockerClient(base_url=url)
            found = client.api.containers(all=True, filters={"label": f"hermes-exec.run-id={run_id}"})
            client.close()
            return [str(one["Id"]) for one in found]
        except (DockerException, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def sandboxes() -> list[SandboxInfo]:
    """What there is on Modal."""
    made = make_backend("modal")

    async def found() -> list[SandboxInfo]:
        try:
            return await made.sandboxes()
        finally:
            await made.aclose()

    return anyio.run(found)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LONGEST_S - 20)
    print(json.dumps(asdict(episode(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))))
