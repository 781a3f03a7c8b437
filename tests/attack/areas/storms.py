"""Attacks by mass: processes that come and go, their numbers, the entries of a directory."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from hermes_exec.errors import ExecError, OutputLimitExceeded
from hermes_exec.testing.conformance import outside
from tests.attack.arena import DIRECTORY, Arena
from tests.attack.confined import unconfined
from tests.attack.exhaust import end_of, judge, latencies, p95, start
from tests.attack.fire import mended, own_trouble
from tests.attack.model import Against, Attack, Outcome
from tests.attack.numbers import UNLIMITED, limit_numbers

STORM_S = 900.0
CALL_S = 180.0
MOST_DRIVER_MIB = 400
MOST_RUNNER_MIB = 200
LISTED = 100_000


@dataclass(frozen=True)
class Runner:
    """The serving runner of a sandbox, as the host sees it."""

    pid: int

    @classmethod
    def of(cls, field: Arena) -> Runner:
        """The one that the neighbour's process descends from."""
        pid, found = field.neighbour.host_pid, 0
        while pid > 1:
            if b"\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found = pid
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return cls(found)

    def mib(self, name: str = "VmRSS") -> float:
        """Its memory now, or the most that it ever had (`VmHWM`)."""
        return memory_mib(self.pid, name)

    def descriptors(self) -> int | None:
        """How many it has open; None where that may not be seen."""
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except PermissionError:
            return None

    def zombies(self) -> int:
        """Ended processes below it that nobody has taken off."""
        parents: dict[int, tuple[int, str]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    words = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                parents[int(name)] = int(words[1]), words[0]
        return sum(state == "Z" and self._above(pid, parents) for pid, (_, state) in parents.items())

    def _above(self, pid: int, parents: dict[int, tuple[int, str]]) -> bool:
        while pid in parents and pid != self.pid:
            pid = parents[pid][0]
        return pid == self.pid


def memory_mib(pid: int, name: str) -> float:
    """A line of /proc/PID/status in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


async def storm(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Processes come and go; then the same without end, which is killed; then the slot is reset."""
    if why := await unconfined(field, attack.proof):
        return Outcome("not given", f"not fired: {why}")
    most = field.processes
    trouble: list[str] = []
    runner = Runner.of(field)
    quiet = await latencies(field, trouble)
    memory, descriptors, begin = runner.mib(), runner.descriptors(), time.monotonic()
    process = await start(field, attack, most=most)
    busy: list[float] = []
    async with anyio.create_task_group() as tasks:
        ended = ""

        async def wait() -> None:
            nonlocal ended
            ended = await end_of(process, STORM_S)

        tasks.start_soon(wait)
        while not ended:
            busy += await latencies(field, trouble)
    took = time.monotonic() - begin
    endless = await start(field, attack, most=1 << 40)
    busy += await latencies(field, trouble)
    begin = time.monotonic()
    receipt = await endless.kill()
    kill_s = time.monotonic() - begin
    if receipt.left:
        trouble.append(f"{receipt.left} processes outlive the kill of their command")
    own = await own_trouble(field)
    with anyio.move_on_after(10):
        # The host's table of processes tells nobody of its changes.
        while zombies := runner.zombies():  # noqa: ASYNC110
            await anyio.sleep(0.05)
    if zombies:
        trouble.append(f"{zombies} zombies are left")
    begin = time.monotonic()
    await field.attacker.reset()
    reset_s = time.monotonic() - begin
    quiet += await latencies(field, trouble)
    trouble.append(await mended(field))
    grown = "" if descriptors is None else f", {(runner.descriptors() or 0) - descriptors:+d} descriptors"
    measured = (
        f"{most:,} in {took:.0f} s, kill {kill_s:.2f} s, reset {reset_s:.2f} s, no zombies, the runner "
        f"{runner.mib() - memory:+.1f} MiB{grown}"
    )
    outcome = judge(field, attack, ended, "; ".join(filter(None, trouble)), own)
    return replace(outcome, slower=p95(busy) / p95(quiet), measured=measured)


async def large_directory(field: Arena, attack: Attack, against: Against) -> Outcome:
    """A directory of very many entries; the driver lists it, searches in it and gives the slot to the next tenant."""
    if why := await unconfined(field, attack.proof):
        return Outcome("not given", f"not fired: {why}")
    trouble: list[str] = []
    runner, quiet = Runner.of(field), await latencies(field, trouble)
    told: list[str] = [f"{field.much:,} entries"]
    lowered = lower_peak()

    async def call(name: str, do: Callable[[], Awaitable[object]], *, refused: bool = False) -> None:
        begin = time.monotonic()
        try:
            with anyio.fail_after(CALL_S):
                await do()
            if refused:
                trouble.append(f"{name}: nothing bounds it")
        except OutputLimitExceeded:
            if not refused:
                raise
        except (TimeoutError, ExecError, OSError) as error:
            trouble.append(f"{name}: {type(error).__name__}: {error}")
        told.append(f"{name} {time.monotonic() - begin:.1f} s")

    files = field.attacker.files
    begin = time.monotonic()
    process = await start(field, attack, entries=field.much)
    busy = await latencies(field, trouble)
    ended = await end_of(process, STORM_S)
    told.append(f"made in {time.monotonic() - begin:.0f} s")
    if f"limit: {field.much} entries" not in ended:
        trouble.append(f"they were not made: {ended}")
    await call("list", lambda: files.list("many"), refused=field.much > LISTED)
    await call("list of 10", lambda: files.list("many", limit=10))
    await call("search", lambda: files.search("nowhere", path="many", regex=False))
    await call("by name", lambda: files.search("*7", path="many", target="files", limit=10))
    begin = time.monotonic()
    trouble.append(await next_tenant_finds(field))
    told.append(f"reset {time.monotonic() - begin:.1f} s")
    quiet += await latencies(field, trouble)
    trouble.append(await mended(field))
    if lowered:
        told.append(f"driver at most {memory_mib(os.getpid(), 'VmHWM'):.0f} MiB")
        if memory_mib(os.getpid(), "VmHWM") > MOST_DRIVER_MIB:
            trouble.append("the driver swells")
    told.append(f"runner {runner.mib('VmHWM'):.0f}")
    if runner.mib("VmHWM") > MOST_RUNNER_MIB:
        trouble.append(f"the runner swells to {runner.mib('VmHWM'):.0f} MiB")
    outcome = judge(field, attack, ended, "; ".join(filter(None, trouble)), "")
    return replace(outcome, slower=p95(busy) / p95(quiet), measured=", ".join(told))


async def next_tenant_finds(field: Arena) -> str:
    """Reset the attacker's slot, or take the one that there is in its place when it cannot be; what is in it."""
    try:
        await field.attacker.reset()
    except ExecError as error:
        if not field.attacker.closed:
            return f"reset: {error}"
        async with field.pool.slot() as slot:
            left = (await slot.run(["ls", "-A"], timeout_s=60)).stdout
    else:
        left = (await field.attacker.run(["ls", "-A"], timeout_s=60)).stdout
    return f"the next tenant finds {left!r}" if left else ""


def lower_peak() -> bool:
    """Begin anew to look for the most memory that this process has; False where the kernel does not."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


async def reuse(field: Arena, attack: Attack, against: Against) -> Outcome:
    """A command ends, a stranger gets its number, and the command is signalled, killed, waited for and reset."""
    mark = secrets.token_hex(6)
    slot = field.slot if field.level.level == "uid" else field.attacker
    looked_at = await slot.spawn(["sh", "-c", "sleep 600; :", mark])
    pid = (await outside.wait_for_processes(mark, 1))[0]
    if why := limit_numbers(pid):
        return Outcome("not tried", why)
    try:
        return await _reused(field)
    finally:
        limit_numbers(pid, UNLIMITED)
        await looked_at.kill()


async def _reused(field: Arena) -> Outcome:
    # Numbers below 300 do not come again.
    await field.run("processes.use_up_numbers", {"beyond": 400})
    ended = await field.attacker.spawn(["sh", "-c", "exit 7"])
    await ended.wait(30)
    shared = field.level.level == "uid"
    slot = field.slot if shared else field.attacker
    argv = ["python3", "-B", f"{slot.workspace}/{DIRECTORY}/processes.py", "take_number"]
    stranger = await slot.spawn([*argv, json.dumps({"number": ended.pid})])
    with anyio.fail_after(120):
        said = await stranger.stdout.receive()
    if said != f"ready: {ended.pid}\n".encode():
        return Outcome("not tried", said.decode(errors="replace"))
    harm = []
    for number in (9, 15, 19):
        try:
            await ended.signal(number)
            harm.append(f"signal {number} was sent")
        except ProcessLookupError:
            continue
    if (receipt := await ended.kill()).found:
        harm.append(f"its kill found {receipt.found} processes")
    if (code := (await ended.wait(5)).exit_code) != 7:
        harm.append(f"it is told to have ended with {code}")
    if shared:
        await field.attacker.reset()
    try:
        await stranger.wait(0)
        harm.append("the stranger has ended")
    except TimeoutError:
        await stranger.kill()
    harm.append(await mended(field))
    text = "; ".join(filter(None, harm))
    return Outcome("not given", text) if text else Outcome("prevented", f"number {ended.pid}")


STORMS = (
    Attack(
        "reuse of numbers",
        "processes",
        "a command has ended and another process got its number (at `uid` one of the neighbour): it is signalled, "
        "killed, waited for, and its slot reset",
        against=("own",),
        by=reuse,
        why="another process was hit.",
        succeeds_alone=False,
    ),
)
MUCH = (
    Attack(
        "short-lived processes",
        "resources",
        "starts and ends processes as fast as it can, half of them orphans; then goes on until it is killed",
        "resources.short_lived",
        by=storm,
        proof=("processes", "pids"),
        limit="pids",
        why="no limit of processes holds there, so the attack is not run.",
        succeeds_alone=False,
    ),
    Attack(
        "a large directory",
        "resources",
        "creates a directory of very many entries, which the driver lists, searches and removes",
        "resources.entries",
        by=large_directory,
        proof=("processes",),
        succeeds_alone=False,
    ),
)
