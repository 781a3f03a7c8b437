"""Attempts to gain privileges."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import Target, libc, main, read, refused, syscall, worked

Attempts = dict[str, Callable[[], object]]
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000, 0x20000000, 0x40000000


def _effective() -> tuple[int, int]:
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").decode().splitlines() if ":\t" in line)
    return int(status["Uid"].split()[1]), int(status["CapEff"], 16)


def setuid_program(target: Target) -> None:
    """Run a copy of `id` that belongs to root and is set-user-id, and copies that carry capabilities."""
    for path in target["planted"]:
        with refused():
            told = subprocess.run([path, "/proc/self/status"], capture_output=True, text=True, check=False).stdout
            fields = dict(line.split(":\t", 1) for line in told.splitlines() if ":\t" in line)
            uid, capabilities = int(fields["Uid"].split()[1]), int(fields["CapEff"], 16)
            if (uid, capabilities) != _effective():
                worked(f"{path} ran as uid {uid} with capabilities {capabilities:x}")


def own_setuid_program(target: Target) -> None:
    """Make a set-user-id and a capable program of our own."""
    path = os.path.abspath("own-program")
    pathlib.Path(path).write_bytes(pathlib.Path("/bin/cat").read_bytes())
    changes: tuple[Callable[[], object], ...] = (
        lambda: os.chmod(path, 0o6755),
        lambda: os.chown(path, 0, 0),
        lambda: os.setxattr(
            path, "security.capability", bytes.fromhex("010000020000000000000000000000000000000000")[:20]
        ),
    )
    for change in changes:
        with refused():
            change()
    os.chmod(path, os.stat(path).st_mode | 0o755)
    setuid_program({"planted": [path]})


def become_root(target: Target) -> None:
    if _effective()[0] == 0:
        return
    for name, arguments in (("setuid", (0,)), ("setresuid", (0, 0, 0)), ("setgid", (0,)), ("setfsuid", (0,))):
        with refused():
            libc(name, *arguments)
    with refused():
        os.setgroups([0])
        worked("the group 0")
    uid, capabilities = _effective()
    if uid == 0 or capabilities:
        worked(f"uid {uid}, capabilities {capabilities:x}")


def privileges(target: Target) -> None:
    """Calls that only an administrator of the machine may make, none of which would change anything here."""
    attempts: Attempts = {
        "a host name": lambda: libc("sethostname", os.uname().nodename.encode(), len(os.uname().nodename)),
        "the clock": lambda: libc("adjtimex", ctypes.create_string_buffer(bytes([1, 0, 0, 0]), 256)),
        "a mount": lambda: libc("mount", b"none", b"/tmp", b"tmpfs", 0, None),
        "another root": lambda: libc("chroot", b"/"),
        "a module": lambda: syscall("finit_module", os.open("/dev/null", os.O_RDONLY), b"", 0),
        "a BPF program": lambda: syscall("bpf", 5, ctypes.create_string_buffer(bytes([2] + [0] * 127), 128), 128),
        "counters of the whole machine": lambda: syscall("perf_event_open", _perf(), -1, 0, -1, 0),
        "ports of the processor": lambda: libc("ioperm", 0x80, 1, 1),
        "accounting": lambda: libc("acct", None),
        "the limit of open files": lambda: _raise_limit(),
    }
    for what, attempt in attempts.items():
        with refused():
            attempt()
            worked(what)


def kernel_log(target: Target) -> None:
    buffer = ctypes.create_string_buffer(1000)
    if libc("klogctl", 3, buffer, 1000) > 0:
        worked("the kernel's log was read")


def _perf() -> ctypes.Array[ctypes.c_char]:
    attributes = bytearray(128)
    attributes[0:8] = (1).to_bytes(4, "little") + (128).to_bytes(4, "little")
    return ctypes.create_string_buffer(bytes(attributes), 128)


def _raise_limit() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard + 1))


def kernel_settings(target: Target) -> None:
    """Open for writing what changes the kernel; nothing is written."""
    for path in (
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/file-max",
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
        "/proc/sys/kernel/randomize_va_space",
        "/proc/kcore",
        "/dev/mem",
        "/proc/irq/default_smp_affinity",
    ):
        with refused():
            os.close(os.open(path, os.O_WRONLY))
            worked(f"{path} can be written")


def control_groups(target: Target) -> None:
    """Leave the group that limits us, or raise its limits."""
    for root, _, names in os.walk("/sys/fs/cgroup"):
        for name in names:
            if name in {
                "cgroup.procs",
                "tasks",
                "release_agent",
                "pids.max",
                "memory.limit_in_bytes",
                "memory.max",
                "cpu.max",
            }:
                with refused():
                    os.close(os.open(os.path.join(root, name), os.O_WRONLY))
                    worked(f"{root}/{name} can be written")
    for version in (b"cgroup", b"cgroup2"):
        with refused():
            os.makedirs("groups", exist_ok=True)
            libc(
                "mount",
                b"none",
                os.path.abspath("groups").encode(),
                version,
                0,
                b"pids" if version == b"cgroup" else None,
            )
            worked("a hierarchy of groups was mounted")


def namespaces(target: Target) -> None:
    """All capabilities in a user namespace of our own: what do they give outside of it?"""
    syscall("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    if _effective()[1] == 0:
        return
    attempts: Attempts = {
        "the clock": lambda: libc("adjtimex", ctypes.create_string_buffer(bytes([1, 0, 0, 0]), 256)),
        "a module": lambda: syscall("finit_module", os.open("/dev/null", os.O_RDONLY), b"", 0),
        "a device": lambda: os.mknod("node", 0o60666, os.makedev(1, 1)),
        "a host name": lambda: libc("sethostname", os.uname().nodename.encode(), len(os.uname().nodename)),
        "a new /proc": lambda: _mount_proc(),
        "the host's /sys": lambda: libc("mount", b"sysfs", os.path.abspath(".").encode(), b"sysfs", 0, None),
    }
    for what, attempt in attempts.items():
        with refused():
            attempt()
            worked(what)


def _mount_proc() -> None:
    os.makedirs("proc", exist_ok=True)
    libc("mount", b"proc", os.path.abspath("proc").encode(), b"proc", 0, None)
    visible = {name for name in os.listdir("proc") if name.isdigit()} - {
        name for name in os.listdir("/proc") if name.isdigit()
    }
    if not visible:
        raise OSError("it shows nothing new")


def join_namespaces(target: Target) -> None:
    for pid in [*target["pids"], 1]:
        for name in ("user", "mnt", "pid", "net", "ipc", "uts"):
            with refused():
                path = f"/proc/{pid}/ns/{name}"
                if os.stat(path).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
                    syscall("setns", os.open(path, os.O_RDONLY), 0)
                    worked(f"in the {name} namespace of process {pid}")


main(globals())
