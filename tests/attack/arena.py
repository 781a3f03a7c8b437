"""Where attacks are fired: the slots of an attacker and its neighbour, and a process of the host."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.abc import ByteReceiveStream

from hermes_exec import Process, SandboxPool, Slot
from hermes_exec.errors import ExecError
from hermes_exec.results import RunResult
from hermes_exec.testing.conformance import outside
from tests.attack.levels import Level
from tests.attack.model import Against

PROGRAMS = Path(__file__).parent / "programs"
DIRECTORY = "lib/tests/attack/programs"
TIMEOUT_S = 60.0
SHORT_S, LONG_S = 0.7, 2.5
FEW, MANY, MOST = 10_000, 200_000, 1_000_000
ENTRIES_A_PROCESS = 20


class Tenant(Protocol):
    """Whoever holds something: a slot's process, or one of the host."""

    async def ping(self) -> bool: ...
    async def content(self, path: str) -> bytes: ...


@dataclass
class Victim:
    """A process of victim.py, and where it keeps its secrets."""

    mark: str
    secrets: list[str]
    places: dict[str, Any]
    pids: list[int]
    host_pid: int
    tenant: Tenant
    state: str = ""

    @property
    def paths(self) -> list[str]:
        """Its files, by the names that it has for them, and by the host's."""
        own = [path for key in ("workspace", "home", "tmpdir") for path in self.places.get(key, ())]
        return own + seen_from_host(self.mark)

    def target(self) -> dict[str, Any]:
        """What an attacker is told: everything but the secrets."""
        paths = self.paths
        inodes = [os.stat(path).st_ino for path in paths if os.path.exists(path)]
        found = {"paths": paths, "directories": sorted({os.path.dirname(path) for path in paths}), "mark": self.mark}
        return {
            **self.places,
            **found,
            "inodes": inodes,
            "pids": [*self.pids, self.host_pid],
            "uids": [os.stat(f"/proc/{self.host_pid}").st_uid],
        }

    async def look(self) -> str:
        """Everything of it that an attack may change, in one text."""
        if not await self.tenant.ping():
            return "it does not answer"
        kept = []
        for path in [path for key in ("workspace", "home", "tmpdir") for path in self.places.get(key, ())]:
            content = await self.tenant.content(path)
            kept.append(f"{path}: {'kept' if content == self.secrets[0].encode() else 'changed'}")
        return "\n".join([*kept, standing(self.host_pid)])


def seen_from_host(mark: str) -> list[str]:
    """Paths of the host of a marked file in a sandbox of this host."""
    directories = ("hermes-exec-*/base/slots/*/*", "hermes-singularity-*/overlay/upper/workspace")
    return [
        path for directory in directories for path in glob.glob(f"{tempfile.gettempdir()}/{directory}/secret-{mark}")
    ]


def standing(pid: int) -> str:
    """How the host treats a process: priority, class, processors, limits, state."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    state = "stopped" if stat[0] in "Tt" else "runs"
    limits = Path(f"/proc/{pid}/limits").read_text()
    score = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    processors = "as we" if os.sched_getaffinity(pid) == os.sched_getaffinity(0) else sorted(os.sched_getaffinity(pid))
    return f"{state}, nice {stat[16]}, class {stat[38]}, processors {processors}, score {score}\n{limits}"


class SlotTenant:
    """A victim in a slot."""

    def __init__(self, slot: Slot, process: Process) -> None:
        self._slot, self._process = slot, process

    async def ping(self) -> bool:
        assert self._process.stdin is not None
        return await ask(self._process.stdin.send, self._process.stdout)

    async def content(self, path: str) -> bytes:
        try:
            return await self._slot.files.read_bytes(path)
        except OSError as error:
            return str(error).encode()


class HostTenant:
    """A victim outside of any slot."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process

    async def ping(self) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return await ask(self._process.stdin.send, self._process.stdout)

    async def content(self, path: str) -> bytes:
        return await anyio.Path(path).read_bytes()


async def ask(send: Callable[[bytes], Any], answers: ByteReceiveStream) -> bool:
    """Whether a victim answers at all; a loaded machine gets its time."""
    try:
        with anyio.fail_after(20):
            await send(b"ping\n")
            return (await answers.receive()).strip() == b"pong"
    except (TimeoutError, OSError, ExecError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return False


async def first_line(stream: ByteReceiveStream) -> dict[str, Any]:
    """What a victim prints when all its secrets are in place."""
    line = b""
    with anyio.fail_after(60):
        while not line.endswith(b"\n"):
            line += await stream.receive()
    places: dict[str, Any] = json.loads(line)
    return places


def new_secrets() -> tuple[str, list[str]]:
    """A mark that may be told, and two secrets: one to keep, one for the command line."""
    return secrets.token_hex(6), [secrets.token_hex(12), secrets.token_hex(12)]


async def plant_in_slot(slot: Slot) -> Victim:
    """Start a victim in a slot."""
    mark, hidden = new_secrets()
    await slot.files.upload(PROGRAMS, DIRECTORY)
    process = await slot.spawn(
        ["python3", "-B", f"{slot.workspace}/{DIRECTORY}/victim.py", mark, hidden[1]],
        stdin=True,
        env={"ATTACK_SECRET": hidden[0]},
    )
    places = await first_line(process.stdout)
    host_pid = (await outside.wait_for_processes(mark, 1))[0]
    victim = Victim(mark, hidden, places, [process.pid], host_pid, SlotTenant(slot, process))
    victim.state = await victim.look()
    return victim


def open_directories(directory: str) -> None:
    """Make the directories of a victim on the host, which everybody may enter."""
    for path in (Path(directory), Path(directory, "home"), Path(directory, "tmp")):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)


@asynccontextmanager
async def plant_on_host() -> AsyncIterator[Victim]:
    """Start a victim beside the driver, as the same user, in a directory that everybody may enter."""
    mark, hidden = new_secrets()
    with tempfile.TemporaryDirectory(prefix="attack-host-") as directory:
        open_directories(directory)
        env = {
            "ATTACK_SECRET": hidden[0],
            "HOME": f"{directory}/home",
            "TMPDIR": f"{directory}/tmp",
            "PATH": os.defpath,
        }
        command = [sys.executable, "-B", str(PROGRAMS / "victim.py"), mark, hidden[1]]
        async with await anyio.open_process(command, env=env, cwd=directory, stderr=None) as process:
            try:
                assert process.stdout is not None
                places = await first_line(process.stdout)
                victim = Victim(mark, hidden, places, [], process.pid, HostTenant(process))
                victim.state = await victim.look()
                yield victim
            finally:
                process.kill()
                clean_up(places)


def clean_up(places: dict[str, Any]) -> None:
    """Take away what a host's victim leaves outside of its directory."""
    for key in ("tmp", "var_tmp", "shm"):
        for path in places.get(key, ()):
            Path(path).unlink(missing_ok=True)
    for key, option in (("shm_key", "-M"), ("msg_key", "-Q"), ("sem_key", "-S")):
        if key in places:
            subprocess.run(["ipcrm", option, str(places[key])], check=False, capture_output=True)
    if "queue" in places:
        ctypes.CDLL(None).mq_unlink(f"/{places['queue']}".encode())


@dataclass
class Arena:
    """A level in use."""

    level: Level
    pool: SandboxPool
    slot: Slot
    """The neighbour's."""
    neighbour: Victim
    host: Victim
    planted: list[str]
    stack: AsyncExitStack
    seconds: float
    """How long attacks on resources last."""
    much: int
    """How many entries a directory gets that others have to list, search and remove; twenty times the short-lived
    processes."""
    attacker: Slot = field(init=False)

    def target(self, against: Against) -> dict[str, Any]:
        """What the attacker is told of whom it attacks."""
        if against == "neighbour":
            told = self.neighbour.target()
        elif against == "host":
            told = self.host.target()
        else:
            told = {
                "paths": [],
                "directories": [],
                "mark": self.neighbour.mark,
                "address": self.neighbour.places["address"],
            }
        return {**told, "planted": self.planted}

    async def run(self, program: str, target: dict[str, Any], slot: Slot | None = None, **more: Any) -> RunResult:
        """Run a function of a program in the attacker's slot, or another."""
        slot = slot or self.attacker
        file, _, function = program.partition(".")
        argv = ["python3", "-B", f"{slot.workspace}/{DIRECTORY}/{file}.py", function, json.dumps(target)]
        return await slot.run(argv, timeout_s=TIMEOUT_S, **more)

    async def harm(self) -> str:
        """What has become worse for the others, and put them in order again."""
        harm = []
        if (now := await self.neighbour.look()) != self.neighbour.state:
            harm.append(f"neighbour: {difference(self.neighbour.state, now)}")
        with anyio.move_on_after(30) as patience:
            try:
                if (await self.slot.run(["true"], timeout_s=20)).exit_code != 0:
                    harm.append("neighbour: a command fails")
            except ExecError as error:
                harm.append(f"neighbour: {error}")
        if patience.cancelled_caught:
            harm.append("neighbour: a command does not return")
        if (now := await self.host.look()) != self.host.state:
            harm.append(f"host: {difference(self.host.state, now)}")
        return "; ".join(harm)

    async def replace_victims(self) -> None:
        """Put fresh victims in the place of those that were hurt, the neighbour in a fresh slot."""
        with contextlib.suppress(ExecError):
            await self.pool.release(self.slot)
        self.slot = await self.pool.acquire()
        self.neighbour = await plant_in_slot(self.slot)
        self.host = await self.stack.enter_async_context(plant_on_host())

    @property
    def processes(self) -> int:
        """How many short-lived processes are started."""
        return self.much // ENTRIES_A_PROCESS

    @asynccontextmanager
    async def an_attacker(self) -> AsyncIterator[Slot]:
        """A slot for one attack."""
        async with self.pool.slot() as self.attacker:
            await self.attacker.files.upload(PROGRAMS, DIRECTORY)
            yield self.attacker


def difference(before: str, after: str) -> str:
    """The lines that are new."""
    known = before.splitlines()
    return ", ".join(line for line in after.splitlines() if line not in known) or "something is missing"


@asynccontextmanager
async def arena(
    level: Level,
    planted: Path | None,
    image: Callable[[], str],
    seconds: float = SHORT_S,
    much: int = FEW,
    **options: Any,
) -> AsyncIterator[Arena]:
    """Open a level with a victim beside the attacker and one on the host."""
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(plant_on_host())
        pool = await stack.enter_async_context(level.pool(planted, image, **options))
        slot = await pool.acquire()
        seen = [] if planted is None else [f"{level.planted_at or planted}/{name}" for name in os.listdir(planted)]
        yield Arena(level, pool, slot, await plant_in_slot(slot), host, seen, stack, seconds, much)
