"""The static busybox of all tests, and a file system that is nothing but it and its links.

`python -m tests.images.busybox` puts it where the Go tests look for it, into the checkout's `.cache`.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PLACE = Path(__file__).resolve().parents[2] / ".cache" / "busybox"
ACCOUNTS = {
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/sh\ntester:x:1000:1000::/home/tester:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
    ),
    "etc/group": "root:x:0:\ntester:x:1000:\nnobody:x:65534:\n",
}
DIRECTORIES = dict.fromkeys(("bin", "dev", "etc", "home", "home/tester", "proc", "sys", "var"), 0o755)
DIRECTORIES |= {"root": 0o700, "tmp": 0o1777}


class BusyboxUnavailable(Exception):
    """Raised when no static busybox can be had here; the message says what was tried."""


def write_rootfs(archive: Path, _scratch: Path) -> None:
    """Write the file system as a tar archive.

    Raises:
        BusyboxUnavailable: apt has no busybox-static and none is installed.
    """
    program = busybox()
    applets = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(archive, "w") as out:
        for name, mode in DIRECTORIES.items():
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, mode
            if name == "home/tester":
                directory.uid = directory.gid = 1000
            out.addfile(directory)
        add_file(out, "bin/busybox", program.read_bytes(), 0o755)
        for name, text in ACCOUNTS.items():
            add_file(out, name, text.encode(), 0o644)
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname, link.mode = tarfile.SYMTYPE, "busybox", 0o777
                out.addfile(link)


def busybox() -> Path:
    """Return the busybox of all tests, found when it is first asked for.

    Raises:
        BusyboxUnavailable: apt has no busybox-static and none is installed.
    """
    if not PLACE.is_file():
        PLACE.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PLACE.parent) as scratch:
            shutil.copy2(find_busybox(Path(scratch)), Path(scratch) / "busybox")
            (Path(scratch) / "busybox").replace(PLACE)
    return PLACE


def find_busybox(scratch: Path) -> Path:
    """Return a static busybox: the one of the package busybox-static, else one that is installed."""
    tried = ["apt-get download busybox-static"]
    if shutil.which("apt-get"):
        got = subprocess.run(
            ["apt-get", "-q", "download", "busybox-static"],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        packages = sorted(scratch.glob("busybox-static*.deb"))
        if got.returncode == 0 and packages:
            subprocess.run(
                ["dpkg-deb", "--extract", str(packages[0]), str(scratch / "unpacked")], check=True, capture_output=True
            )
            for place in ("bin/busybox", "usr/bin/busybox"):
                if (scratch / "unpacked" / place).is_file():
                    return scratch / "unpacked" / place
        tried[0] += f" ({got.stderr.strip().splitlines()[-1] if got.stderr.strip() else 'no package'})"
    installed = shutil.which("busybox")
    if installed and is_static(Path(installed)):
        return Path(installed)
    raise BusyboxUnavailable(f"no static busybox: tried {', '.join(tried)} and busybox on PATH")


def is_static(program: Path) -> bool:
    """Tell whether an ELF program names no interpreter."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False, cwd=empty)
    return "not a dynamic executable" in done.stdout + done.stderr or "statically linked" in done.stdout


def add_file(out: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    """Add a regular file, owned by root, to an archive."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    out.addfile(entry, io.BytesIO(content))


def main() -> int:
    """Print where the busybox of the tests is."""
    try:
        print(busybox())
    except (BusyboxUnavailable, subprocess.SubprocessError, OSError) as error:
        print(f"busybox: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
