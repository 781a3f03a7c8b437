"""What the Go programs are built from, and for which platforms."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from hatch_build import TARGETS, RunnerBuildError, Target, is_source, local_targets, select_targets

RUNNER = Path(__file__).resolve().parents[2] / "runner"


def test_every_embedded_file_is_a_source() -> None:
    embedded = [
        path.parent / name
        for path in RUNNER.rglob("*.go")
        for line in re.findall(r"^//go:embed (.+)$", path.read_text(), re.MULTILINE)
        for name in line.split()
    ]
    assert embedded
    assert [path for path in embedded if not path.is_file() or not is_source(path)] == []


@pytest.mark.parametrize(
    ("system", "machine", "targets"),
    [
        ("Linux", "x86_64", (Target("linux", "amd64"),)),
        ("Linux", "aarch64", (Target("linux", "arm64"),)),
        ("Darwin", "arm64", (Target("linux", "arm64"), Target("darwin", "arm64"))),  # its containers are Linux
        ("Linux", "riscv64", TARGETS),  # its sandboxes are elsewhere
    ],
)
def test_platforms_of_a_machine(
    system: str, machine: str, targets: tuple[Target, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert local_targets() == targets
    assert tuple(select_targets([])) == targets
    assert select_targets(["all"]) == TARGETS


def test_platforms_by_name() -> None:
    assert select_targets(["darwin/arm64", "linux/amd64"]) == [Target("linux", "amd64"), Target("darwin", "arm64")]
    with pytest.raises(RunnerBuildError, match="no such platform: linux/riscv64; there are linux/amd64"):
        select_targets(["linux/arm64", "linux/riscv64"])
