"""What a driver, its runners and the engine hold, looked at from outside.

`python -m tests.soak.gauges PID RUN_ID FOLDER` prints a line of JSON every few seconds until it is ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from docker import DockerClient, from_env

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


def held(pid: int) -> tuple[int, int, float]:
    """Descriptors, threads, and MiB of memory of its own of a process; pages of its program, which come in as they are
    used, are none.
    """
    folder = PROC / str(pid)
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        return len(os.listdir(folder / "fd")), int(status["Threads"]), int(status["RssAnon"].split()[0]) / 1024
    except (OSError, KeyError):
        return 0, 0, 0.0


def cgroups(ids: list[str]) -> int:
    """How many cgroups there are of these containers, their own and those in them."""
    count = 0
    for root, folders, _ in os.walk("/sys/fs/cgroup"):
        if any(i in root for i in ids):
            count += 1
        elif root.count("/") > 7:
            folders.clear()
    return count


def sample(client: DockerClient, driver: int, run_id: str, folder: Path) -> dict[str, float]:
    """One line."""
    look = Look()
    containers = client.api.containers(filters={"label": f"{LABEL}={run_id}"})
    boxes = [client.api.inspect_container(c["Id"])["State"]["Pid"] for c in containers]
    ours = [pid for root in (driver, *boxes) for pid in look.below(root)]
    runners = [pid for pid in ours if words(pid)[1:2] == ["serve"]]
    agents = [pid for pid in ours if words(pid)[1:2] == ["agent"]]
    totals = [
        [sum(values) for values in zip((0, 0, 0.0), *map(held, group), strict=True)] for group in (runners, agents)
    ]
    fds, threads, rss = held(driver)
    return {
        "driver descriptors": fds,
        "driver threads": threads,
        "driver MiB": rss,
        "runner descriptors": totals[0][0],
        "runner threads": totals[0][1],
        "runner MiB": totals[0][2],
        "slot agents": len(agents),
        "agent descriptors": totals[1][0],
        "agent MiB": totals[1][2],
        "zombies": sum(look.state.get(pid) == "Z" for pid in ours),
        "folders": sum(len(folders) for root, folders, _ in os.walk(folder) if root.count("/") < 8),
        "containers": len(containers),
        "cgroups": cgroups([c["Id"] for c in containers]),
    }


def main() -> None:
    """Look until ended."""
    driver, run_id, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    client = from_env()
    begin = time.monotonic()
    while True:
        print(json.dumps({"s": time.monotonic() - begin, **sample(client, driver, run_id, folder)}), flush=True)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
