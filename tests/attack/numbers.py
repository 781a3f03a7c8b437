"""Gives a pid namespace few numbers, so that they are reused: `python -m tests.attack.numbers PID MOST`.

Since Linux 6.14 `kernel.pid_max` belongs to the pid namespace of whoever writes it. Nothing outside of it changes.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

UNLIMITED = 1 << 22
FEW = 1000


def limit_numbers(pid: int, most: int = FEW) -> str:
    """Let the namespace of a process give no number from `most` on; why that cannot be had, or nothing."""
    if os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid"):
        return "the slot shares the host's process numbers"
    command = [sys.executable, "-m", "tests.attack.numbers", str(pid), str(most)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else f"kernel.pid_max cannot be set: {done.stderr.strip().splitlines()[-1]}"


def main(pid: str, most: str) -> int:
    """Go over into the namespaces of a process and set it there."""
    names = ["pid"]
    if os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user"):
        names.insert(0, "user")
    for descriptor in [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in names]:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    host = Path("/proc/sys/kernel/pid_max").read_text()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if Path("/proc/sys/kernel/pid_max").read_text() == host and int(host) < UNLIMITED:
        sys.exit("it is the host's (Linux before 6.14)")
    Path("/proc/sys/kernel/pid_max").write_text(most)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
