"""The distribution: what a wheel and an editable install carry, an sdist that builds the same, no build twice."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from hatch_build import PROGRAMS, TARGETS, RunnerBuildError, build_runners, find_go, local_targets
from tests.support.disks import small_disk
from tests.support.other_user import require_root

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "hermes_exec",
    "hermes_agent",
    "integrations",
    "runner",
    "hatch_build.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources without anything that was built."""
    return copy_sources(tmp_path_factory.mktemp("checkout"))


def copy_sources(copy: Path) -> Path:
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("_runner", "_applets", "__pycache__"))
        else:
            shutil.copy2(source, copy / name)
    return copy


def build(directory: Path, kind: str, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_carries_the_runner_and_an_sdist_builds_the_same(checkout: Path, tmp_path: Path) -> None:
    wheel = build(checkout, "wheel", tmp_path / "wheel")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        for program in PROGRAMS:
            manifest = json.loads(archive.read(f"{program.directory}/manifest.json"))
            assert set(manifest) == {program.file(target) for target in TARGETS}
            for name, digest in manifest.items():
                assert hashlib.sha256(archive.read(f"{program.directory}/{name}")).hexdigest() == digest
        names = archive.namelist()
    packages = ("hermes_exec", "hermes_agent", "hermes_batch", "hermes_atropos", "hermes_mcp")
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "examples", "runner"))]
    hidden = {name for name in names if "/." in name}
    tasks = checkout / "integrations" / "atropos"
    assert hidden == {str(p.relative_to(tasks)) for p in (tasks / "hermes_atropos" / "data").rglob(".*") if p.is_file()}

    sdist = build(checkout, "sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if "_runner/" in name or "_applets/" in name]
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    again = build(unpacked, "wheel", tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_editable_install_builds_for_this_machine_alone_and_says_so(tmp_path: Path) -> None:
    checkout = copy_sources(tmp_path / "checkout")
    command = [sys.executable, "-c", f"import hatchling.build; hatchling.build.build_editable({str(tmp_path)!r})"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for program in PROGRAMS:
        made = {path.name for path in (checkout / program.directory).glob(f"{program.name}-*")}
        assert made == {program.file(target) for target in local_targets()}
    said = [line for line in done.stderr.splitlines() if line.startswith("built the ")]
    assert [line.rpartition(" in ")[0] for line in said] == [
        f"built the {program.name} for {target}" for program in PROGRAMS for target in local_targets()
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_unchanged_sources_are_not_built_again(checkout: Path) -> None:
    build_runners(checkout, TARGETS, print)
    assert not build_runners(checkout, TARGETS, print)
    for program in PROGRAMS:
        damaged = checkout / program.directory / program.file(TARGETS[0])
        good = damaged.read_bytes()
        damaged.write_bytes(b"something else")
        assert build_runners(checkout, TARGETS, print)
        assert damaged.read_bytes() == good


def test_toolchain_where_no_program_runs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip's own directory for a build, below a TMPDIR that is mounted noexec."""
    require_root()
    with small_disk(tmp_path / "disk", "noexec") as disk:
        shutil.copy2("/bin/true", disk / "go")
        monkeypatch.setattr(sysconfig, "get_path", lambda _: str(disk))
        monkeypatch.setattr(sys, "executable", "/no/python")
        with monkeypatch.context() as path:
            path.setenv("PATH", "/no/path")
            with pytest.raises(RunnerBuildError, match=f"{disk}/go cannot run: .* mounted noexec. Set TMPDIR"):
                find_go()


def test_incomplete_sources_are_named(tmp_path: Path) -> None:
    (tmp_path / "runner").mkdir()
    with pytest.raises(RunnerBuildError, match=r"runner/main\.go"):
        build_runners(tmp_path, TARGETS, print)
