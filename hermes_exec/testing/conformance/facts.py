"""Facts of a backend and an image, probed once in a real slot before the checks run."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError
from hermes_exec.results import Isolation
from hermes_exec.testing.applets import find_applets
from hermes_exec.testing.conformance import outside
from hermes_exec.testing.conformance.registry import NotGiven, PoolFactory
from hermes_exec.testing.conformance.sandboxes import disk_here, signalable

if TYPE_CHECKING:
    from hermes_exec import Slot

# The kernel gives the first pid namespace of a machine this number (PROC_PID_INIT_INO).
HOST_PID_NAMESPACE = "pid:[4026531836]"
HELPER = ".conformance-helper"
PLATFORMS = (("linux", "amd64"), ("linux", "arm64"), ("darwin", "arm64"))


@dataclass(slots=True)
class Facts:
    """The facts of one backend and image. `missing` maps each unmet need to the reason."""

    backend: str = ""
    disk_here: bool = False
    image: str | None = None
    isolation: Isolation = field(default_factory=lambda: Isolation("none"))
    platform: tuple[str, str] | None = None
    uid: int = -1
    pid_namespace: str = ""
    shell: str = ""
    keeps: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def own_root(self) -> bool:
        """Whether slots have roots of their own over the image."""
        return self.isolation.filesystem.startswith("own root")

    @property
    def image_home(self) -> bool:
        """Whether HOME is the image's, which may be missing or read-only."""
        return self.own_root or self.isolation.level == "exclusive"

    @property
    def own_pids(self) -> bool:
        """Whether a slot is proven to have its own process namespace, so that killing all processes is safe."""
        mine = ""
        if sys.platform == "linux":
            mine = os.readlink("/proc/self/ns/pid")
        own = self.pid_namespace.startswith("pid:[") and self.pid_namespace not in {HOST_PID_NAMESPACE, mine}
        return own and self.isolation.level in {"namespaces", "exclusive"}


async def put_helper(slot: Slot, platform: tuple[str, str]) -> str:
    """Copy the applets into the slot and return the absolute path of the program there."""
    data = await anyio.Path(find_applets(*platform)).read_bytes()
    path = f"{slot.workspace}/{HELPER}"
    await slot.files.write_bytes(path, data, mode=0o755)
    return path


async def learn(factory: PoolFactory) -> Facts:
    """Probe the facts in a slot of a new pool.

    Raises:
        ExecError: If no slot can be acquired.
    """
    facts = Facts()
    async with factory() as pool, pool.slot() as slot:
        facts.backend, facts.image, facts.isolation = slot.backend, slot.image, slot.isolation
        await _shells(slot, facts)
        await _helper(slot, facts)
        await _users(slot, facts)
        if not facts.own_root:
            facts.missing["own-root"] = f"the slot has no own root: {slot.isolation.filesystem}"
        if slot.isolation.level == "none":
            facts.missing["confined"] = "at the level none a slot is what its user is on the whole machine"
        facts.disk_here = disk_here(pool)
        if signalable(pool, slot) is None:
            facts.missing["kill-sandbox"] = f"sandboxes of backend {slot.backend!r} cannot be killed from outside"
    await _sharing(factory, facts)
    try:
        pickle.dumps(factory)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        facts.missing["picklable-factory"] = f"the pool factory cannot be handed to a second driver: {error}"
    return facts


async def _shells(slot: Slot, facts: Facts) -> None:
    probe = await slot.run("echo shell works")
    if probe.stdout != "shell works\n":
        why = f"the image has no shell (exit {probe.exit_code}: {probe.stderr.strip()[:200]})"
        facts.missing |= dict.fromkeys(("shell", "bash", "python"), why)
        return
    session = slot.session()
    await session.run("true")
    facts.keeps = tuple(session.keeps)
    for need, command in (("bash", "command -v bash"), ("python", "command -v python3")):
        lookup = await slot.run(command)
        if not lookup.ok:
            facts.missing[need] = f"the image has no {command.split()[-1]}"
    facts.shell = "sh" if "bash" in facts.missing else "bash"


async def _helper(slot: Slot, facts: Facts) -> None:
    why = []
    for platform in PLATFORMS:
        try:
            helper = await put_helper(slot, platform)
        except (BackendUnavailable, ConfigError) as error:
            why.append(str(error))
            continue
        works = await slot.run([helper, "echo", "here"])
        if works.stdout == "here\n":
            facts.platform = platform
            break
        why.append(f"the applets for {'/'.join(platform)} cannot be executed in the slot: {works.stderr.strip()[:200]}")
    if facts.platform is None:
        for need in ("helper", "procfs", "outside-view", "ordinary-user"):
            facts.missing[need] = "; ".join(why)
        return
    helper = f"{slot.workspace}/{HELPER}"
    facts.uid = int((await slot.run([helper, "id"])).stdout.split()[0])
    if facts.uid == 0:
        facts.missing["ordinary-user"] = "the slot's user is root and has every permission"
    namespace = await slot.run([helper, "namespace", "pid"])
    facts.pid_namespace = namespace.stdout.strip()
    if not facts.pid_namespace:
        facts.missing["procfs"] = "the sandbox has no /proc"
    mark = f"conformance-view-{os.getpid()}-{id(facts)}"
    process = await slot.spawn([helper, "sleep", "60", mark])
    if not await outside.wait_for_processes(mark, 1, within_s=2):
        facts.missing["outside-view"] = "processes of the sandbox are not visible on the driver's host"
    await process.kill()


async def _users(slot: Slot, facts: Facts) -> None:
    for need, user in (("root", "root"), ("image-users", "nobody")):
        if "helper" in facts.missing:
            facts.missing[need] = facts.missing["helper"]
            continue
        try:
            result = await slot.run([f"{slot.workspace}/{HELPER}", "id"], user=user)
        except (ConfigError, NotGiven) as error:
            facts.missing[need] = f"user {user!r}: {error}"
            continue
        if not result.ok:
            facts.missing[need] = f"user {user!r}: {result.stderr.strip()[:200]}"
        elif need == "image-users" and result.stdout.split()[0] == str(slot.uid):
            facts.missing[need] = f"the slot's own user is {user!r}"


async def _sharing(factory: PoolFactory, facts: Facts) -> None:
    try:
        async with factory(slots_per_sandbox=2, max_sandboxes=1, min_isolation="uid") as pool, pool.slot() as slot:
            if slot.isolation.level in {"uid", "namespaces"}:
                return
            facts.missing["shared-sandbox"] = f"two slots in a sandbox get the level {slot.isolation.level}"
    except ExecError as error:
        facts.missing["shared-sandbox"] = f"two slots in one sandbox cannot be isolated: {error}"


def why_not(facts: Facts, needs: tuple[str, ...]) -> str | None:
    """Return the first unmet need's reason, or None if a check with these needs can run."""
    return next((facts.missing[need] for need in needs if need in facts.missing), None)
