"""Nothing that a tenant shapes is read whole by the runner: package `bounded` reads files and directories, in parts."""

from __future__ import annotations

import re
from pathlib import Path

RUNNER = Path(__file__).parents[2] / "runner"
SOURCES = [path for path in (RUNNER / "internal").rglob("*.go") if not path.name.endswith("_test.go")]
WHOLE = re.compile(
    r"\b(?:os|fs|ioutil)\.Read(?:File|Dir)\(|\bio\.ReadAll\(|\bbufio\.NewScanner\(|\.ReadDir\(-1\)|\.Readdir(?:names)?\(-1\)"
)
"""A line of a scanner has a bound, but one that is longer ends the scan without a word."""

NOT_SHAPED = {
    "internal/rootfs/image_linux.go: os.ReadDir(": "the sandbox's image, before there is a tenant",
    "internal/rootfs/own_linux.go: os.ReadDir(": "the sandbox's image, before there is a tenant",
    "internal/rootfs/paths_linux.go: os.ReadDir(": "directories in which confined tenants create nothing",
    "internal/shared/dirs_linux.go: os.ReadDir(": "the sandbox's image, before there is a tenant",
    "internal/tenants/pause_linux.go: os.ReadDir(": "the threads of a process, of which the kernel has a limit",
    "internal/proc/proc.go: .Readdirnames(-1)": "the numbers of processes, of which the kernel has a limit",
}
"""Places that read something whole, and why no tenant can make it large."""


WALK = re.compile(r"\b(?:os\.RemoveAll|filepath\.Walk(?:Dir)?|fs\.WalkDir)\(")
"""They hold a path, an open directory and all names of each level; a tenant makes ten thousands of levels."""

NO_TREE_OF_TENANTS = {
    "internal/rootfs/image_linux.go: filepath.WalkDir(": "the sandbox's image, before there is a tenant",
    "internal/slots/root.go: os.RemoveAll(": "what the runner has made itself, before there is a tenant",
    "internal/link/fifo.go: os.RemoveAll(": "a directory of FIFOs in the runner's own",
    "internal/testdriver/testdriver.go: os.RemoveAll(": "a directory of a test",
}


def places(pattern: re.Pattern[str]) -> set[str]:
    """Where the runner's code matches, as `file: match`."""
    return {
        f"{path.relative_to(RUNNER)}: {match.group()}"
        for path in SOURCES
        for line in path.read_text().splitlines()
        if not line.strip().startswith("//")
        for match in pattern.finditer(line)
    }


def test_runner_reads_nothing_whole_that_tenants_shape() -> None:
    assert len(SOURCES) > 100
    assert places(WHOLE) == set(NOT_SHAPED), "use internal/bounded, or say here why no tenant shapes what is read"


def test_runner_walks_no_tree_of_tenants_without_a_bound() -> None:
    assert places(WALK) == set(NO_TREE_OF_TENANTS), "use internal/tree, or a walk with a bound of depth and names"
