"""Directories of ours are closed to other users, and what is started lies where nobody else may write."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ROOT / "hermes_exec" / "backends"
OPEN_IN_PYTHON = {
    "sandbox_directory.py: (self.path / name).mkdir()": "below the sandbox's directory, which is closed",
    "sandbox_directory.py: directory.path.chmod(mode)": "0o700; on `local` as root 0o711, for slots of own uids",
    "docker/dial_socket.py: self.directory.mkdir()": "below a private directory, for the runner's uid in its container",
    "docker/dial_socket.py: self.directory.chmod(493)": "the same",
    "docker/dial_socket.py: (self.directory / SOCKET).chmod(438)": "the same",
    "singularity/backend.py: (directory / name).mkdir(parents=True)": "below a private directory; no tenant is in it",
    "singularity/backend.py: directory.chmod(493)": "a trial's image, without tenants",
    "singularity/squashfuse.py: wrapper.chmod(448)": "a program in a sandbox's directory, for the engine of its user",
    "singularity/images.py: self._cache.mkdir(parents=True, exist_ok=True)": "images, without tenants",
    "ssh/paramiko_transport.py: self._known_hosts.parent.mkdir(mode=448, parents=True, exist_ok=True)": "keys",
    "strict_path.py: directory.mkdir(493, exist_ok=True)": "above sandboxes: others may pass, and not write",
}
"""Where a directory is made, or opened to others, and why that is right."""
TEMPORARY = {
    "sandbox_directory.py": "below a directory that was checked",
    "strict_path.py": "checks the directory above",
    "singularity/images.py": "in the cache of images",
}
"""Where names are made up below a directory that others may write to."""
OPEN_IN_GO = {
    'slots/slot.go: os.Mkdir(filepath.Join(s.dir, "root"), 0o755)': "a mount point, below it",
    "slots/slot.go: os.Chmod(s.dir, 0o710)": "for the group of the slot's own user",
    "slots/slot.go: os.Chmod(s.dir, 0o711)": "slots of own uids pass; what is below is 0o700",
    "link/fifo.go: os.Mkdir(f.Dir, 0o711)": "below the slot's directory",
    "link/fifo.go: os.Chmod(f.Dir, 0o711)": "below the slot's directory",
    "slots/root.go: os.Mkdir(workspace, 0o755)": "in the image of a whole sandbox",
}
GO_CALL = re.compile(r"(?:os|syscall)\.(?:Mkdir|MkdirAll|Chmod)\((?:[^()]|\([^()]*\))*\)")
MANAGED = ("slots", "link", "detached", "wipe", "channel", "private", "serve", "diskspace", "users")
"""The packages that make directories on the host; those of others are made within a slot's view."""


def python_calls() -> Iterator[tuple[str, str, str]]:
    """Yield each call of a method in the backends: the file, the method and the text."""
    for path in sorted(BACKENDS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield str(path.relative_to(BACKENDS)), node.func.attr, ast.unparse(node)


def go_calls() -> Iterator[str]:
    """Yield each call that makes or opens a directory with a mode for others, with its file."""
    for package in MANAGED:
        for path in sorted((ROOT / "runner" / "internal" / package).glob("*.go")):
            if path.name.endswith("_test.go"):
                continue
            for call in GO_CALL.findall(path.read_text("utf-8")):
                mode = re.search(r"0o([0-7]+)\b", call)
                if mode is not None and int(mode[1], 8) & 0o077:
                    yield f"{package}/{path.name}: {call}"


def test_directories_are_closed_to_others_but_where_a_reason_is_given() -> None:
    made = {f"{file}: {text}" for file, method, text in python_calls() if method in {"mkdir", "makedirs", "chmod"}}
    assert made == OPEN_IN_PYTHON.keys()
    assert set(go_calls()) == OPEN_IN_GO.keys()


def test_temporary_names_are_made_below_checked_directories() -> None:
    used = {file for file, method, _ in python_calls() if method in {"mkdtemp", "mkstemp", "TemporaryDirectory"}}
    assert used == TEMPORARY.keys()


def test_the_runner_checks_the_way_to_its_directory() -> None:
    runner = ROOT / "runner"
    for file, call in {
        "internal/slots/manager.go": "private.Open(baseDir,",
        "internal/detached/detached.go": "private.Check(above)",
        "main.go": "private.Check(filepath.Dir(*base))",
    }.items():
        assert call in (runner / file).read_text("utf-8"), file


def test_shells_use_no_names_that_others_can_guess() -> None:
    """The one with a number of a process is in a directory that was closed before."""
    for path in sorted(BACKENDS.rglob("*.sh")):
        assert "$$" not in path.read_text("utf-8"), path.name
    delivery = (BACKENDS / "nomad" / "delivery.py").read_text("utf-8")
    assert set(re.findall(r"\S*\$\$", delivery)) == {">part.$$", "part.$$"}
    assert "umask 022; mkdir" not in delivery
