"""What a driver, its runners and the engine hold, looked at from outside.

`python -m tests.soak.gauges PID RUN_ID DIRECTORY` prints a line of JSON every few seconds until it is ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from docker import DockerClient, from_env
from docker.errors import DockerException, NotFound

EVERY_S = 5.0
LABEL = "hermes-exec.run-id"
PROC = Path("/proc")
MIB = 1 << 20


class Look:
    """One look at all processes of this host."""

    def __init__(self) -> None:
        self.state: dict[int, str] = {}
        self.children: dict[int, list[int]] = defaultdict(list)
        for entry in PROC.iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                self.state[int(entry.name)] = fields[0]
                self.children[int(fields[1])].append(int(entry.name))

    def below(self, pid: int) -> list[int]:
        """A process and all its descendants."""
        found, rest = [], [pid]
        while rest:
            found.append(rest[-1])
            rest += self.children.get(rest.pop(), [])
        return found


def words(pid: int) -> list[str]:
    """The command line of a process; of one that has ended none."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def docker() -> DockerClient | None:
    """The client of the engine of this machine; None where there is none."""
    client = from_env()
    try:
        client.ping()
    except DockerException:
        return None
    return client


def containers(client: DockerClient | None, run_id: str, *, ended: bool = False) -> list[str]:
    """The ids of the containers of a run."""
    filters = {"label": f"{LABEL}={run_id}"}
    return [] if client is None else [c["Id"] for c in client.api.containers(all=ended, filters=filters)]


def main_process(client: DockerClient | None, container: str) -> int:
    """The first process of a container; 0 when it has ended."""
    try:
        return 0 if client is None else int(client.api.inspect_container(container)["State"]["Pid"])
    except NotFound:
        return 0


def held(pid: int) -> tuple[int, int, float]:
    """Descriptors, threads, and MiB of memory of its own of a process; pages of its program, which come in as they are
    used, are none.
    """
    directory = PROC / str(pid)
    try:
        status = dict(line.split(":", 1) for line in (directory / "status").read_text().splitlines() if ":" in line)
        return len(os.listdir(directory / "fd")), int(status["Threads"]), int(status["RssAnon"].split()[0]) / 1024
    except (OSError, KeyError):
        return 0, 0, 0.0


def groups_in(directory: Path) -> list[str]:
    """How the names of cgroups begin that runners in this directory have made."""
    files = [*directory.glob("*/groups"), *directory.glob("*/base/groups")]
    return [beginning for file in files for beginning in file.read_text().splitlines()]


def cgroups(ids: list[str]) -> int:
    """How many cgroups have these in their paths: those of containers, and those in them."""
    count = 0
    for root, directories, _ in os.walk("/sys/fs/cgroup"):
        if any(i in root for i in ids):
            count += 1
        elif root.count("/") > 7:
            directories.clear()
    return count


def sample(client: DockerClient | None, driver: int, run_id: str, directory: Path) -> dict[str, float]:
    """One line. Ours is what is below the driver and in its containers, and what works in its directory."""
    look = Look()
    ids = containers(client, run_id)
    mains = [main_process(client, container) for container in ids]
    there = [pid for pid in look.state if any(word.startswith(f"{directory}/") for word in words(pid))]
    ours = {pid for root in (driver, *mains, *there) if root for pid in look.below(root)}
    runners = [pid for pid in ours if words(pid)[1:2] == ["serve"]]
    agents = [pid for pid in ours if words(pid)[:2] == ["runner", "agent"]]
    totals = [
        [sum(values) for values in zip((0, 0, 0.0), *map(held, group), strict=True)] for group in (runners, agents)
    ]
    fds, threads, rss = held(driver)
    return {
        "driver descriptors": fds,
        "driver threads": threads,
        "driver MiB": rss,
        "driver children": len(look.children[driver]),
        "runners": len(runners),
        "runner descriptors": totals[0][0],
        "runner threads": totals[0][1],
        "runner MiB": totals[0][2],
        "slot agents": len(agents),
        "agent descriptors": totals[1][0],
        "agent MiB": totals[1][2],
        "zombies": sum(look.state.get(pid) == "Z" for pid in ours),
        "directories": sum(len(directories) for root, directories, _ in os.walk(directory) if root.count("/") < 8),
        "containers": len(ids),
        "cgroups": cgroups([*ids, *groups_in(directory)]),
    }


def main() -> None:
    """Look until ended."""
    driver, run_id, directory = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    client = docker()
    begin = time.monotonic()
    while True:
        print(json.dumps({"s": time.monotonic() - begin, **sample(client, driver, run_id, directory)}), flush=True)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
