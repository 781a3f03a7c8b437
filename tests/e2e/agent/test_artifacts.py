"""Files that an episode left are copied to this host, whatever its programs have made of the slot."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Artifacts, CommandCheck, Rollout, RolloutResult, Scoring
from hermes_agent.artifacts import CollectedFiles, collect_artifacts, safe_name
from hermes_exec import SandboxPool, Slot
from hermes_exec.errors import ConfigError, ErrorCause, ExecError, HostDiskFull
from tests.conftest import BackendCase
from tests.e2e.agent.plans import PlanModel

pytestmark = pytest.mark.anyio
HOSTILE = """
mkdir -p out/deep ./-n
echo a > out/a.txt; echo b > out/deep/b.txt; echo c > 'out/c d.txt'; echo d > 'out/e:f|g.txt'; echo h > .hidden
printf x > "$(printf 'out/bad\\377\\nname.txt')"; printf y > '-n/-rf'; printf z > "out/$(printf 'n%.0s' $(seq 240)).txt"
mkfifo out/fifo; ln -s /etc etc; ln -s /etc/hostname out/link.txt; ln -s deep out/linked; ln out/a.txt out/hard.txt
truncate -s 5G out/huge.bin; : > out/unreadable; chmod 000 out/unreadable
"""


def tree(top: Path) -> dict[str, bytes]:
    """The files below a directory with their contents. No entry is anything but a file or a directory."""
    entries = [path for path in top.rglob("*") if not path.is_dir()]
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in entries)
    return {str(path.relative_to(top)): path.read_bytes() for path in entries}


async def run(pool: SandboxPool, commands: str, artifacts: Artifacts, check: str | None = None) -> RolloutResult:
    scoring = None if check is None else Scoring(check=CommandCheck(check), score_in="slot")
    rollout = Rollout(messages="go", toolsets=["terminal"], collect=artifacts, scoring=scoring)
    return await rollout.run(pool, PlanModel({"go": [[commands], "done"]}))


async def collect(slot: Slot, directory: Path, *patterns: str, **limits: Any) -> CollectedFiles:
    return await collect_artifacts(slot, Artifacts(patterns, directory, **limits))


async def test_only_regular_files_inside_the_workspace_are_copied(tmp_path: Path, backend: BackendCase) -> None:
    into = tmp_path / "run" / "artifacts"
    patterns = ["**", "etc/*", "out/linked/*", "out/link.txt", ".hidden", "none", "none/*"]
    async with SandboxPool(backend.backend, **backend.options) as pool:
        result = await run(pool, HOSTILE, Artifacts(patterns, into, limit_bytes=1 << 20), "test -e out/a.txt")
    assert (result.error, result.solved) == (None, True)
    copied = tree(tmp_path)
    assert {f"run/artifacts/{path}" for path in result.collected.paths} == set(copied)
    plain = {path.removeprefix("run/artifacts/"): content for path, content in copied.items()}
    long_name = f"out/{'n' * 150}-{safe_name('n' * 240 + '.txt').rpartition('-')[2]}"
    assert plain.pop(long_name) == b"z"
    (bad,) = [path for path in plain if path.startswith("out/bad")]
    assert (bad, plain.pop(bad)) == (f"out/{safe_name(os.fsdecode(b'bad') + chr(0xDCFF) + chr(10) + 'name.txt')}", b"x")
    assert plain.pop(f"{safe_name('-n')}/{safe_name('-rf')}") == b"y"
    assert plain.pop(f"out/{safe_name('e:f|g.txt')}") == b"d\n"
    plain.pop("out/unreadable", None)  # empty; root of a container reads it
    assert plain == {
        "out/a.txt": b"a\n",
        "out/hard.txt": b"a\n",
        "out/deep/b.txt": b"b\n",
        "out/c d.txt": b"c\n",
        ".hidden": b"h\n",
    }
    problems = "\n".join(result.collected.problems)
    for text in ("'out/fifo' is not a file but a fifo", "'out/huge.bin' has 5368709120 bytes", "not a file but a link"):
        assert text in problems
    assert problems.count("'etc' is a link, which is not followed") == 1
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").rglob("*")}
    assert modes == {0o700, 0o600}


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_limits_leave_files_out_with_a_note(tmp_path: Path) -> None:
    into = tmp_path / "artifacts"
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await slot.run("mkdir d; for n in 1 2 3 4 5 6; do head -c 100 /dev/zero > d/$n; done")
        await slot.run("head -c 999 /dev/zero > big")
        few = await collect(slot, into, "d", limit_files=2)
        assert (len(few.paths), len(tree(into))) == (2, 2)
        assert few.problems == (
            "more than 2 paths match '**' in 'd'; the oldest were left out",
            "there are more than 2 files; the others were left out",
        )
        small = await collect(slot, tmp_path / "other", "big", "d/*", limit_bytes=250)
        assert (small.paths, set(tree(tmp_path / "other"))) == (("d/1", "d/2"), {"d/1", "d/2"})
        assert small.problems[0] == "'big' has 999 bytes, and 250 are left of the limit"
        assert len(small.problems) == 5


async def test_huge_tree_ends_at_the_time_limit(tmp_path: Path) -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await slot.run("mkdir d && cd d && seq 20000 | xargs touch")
        collected = await collect(slot, tmp_path / "a", "d", limit_files=50_000, timeout_s=1)
    assert collected.problems == ("the files could not be copied within 1 s; the others were left out",)
    assert 0 < len(collected.paths) < 20_000
    assert {*collected.paths} == {*tree(tmp_path / "a")}


async def test_file_that_grows_while_it_is_copied_is_left_out(tmp_path: Path) -> None:
    """Its size is below the limit when it is looked at. A hook of the test makes it grow before it is read."""
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await slot.files.write_text("log", "short")
        read = slot.files.read_bytes

        async def grow(*arguments: Any, **more: Any) -> bytes:
            await slot.run("head -c 9000000 /dev/zero > log")
            return await read(*arguments, **more)

        slot.files.read_bytes = grow  # type: ignore[method-assign]
        collected = await collect(slot, tmp_path / "a", "log", limit_bytes=5_000_000)
    assert collected == CollectedFiles(problems=("'log' has more bytes than are left of the limit",))
    assert tree(tmp_path) == {}


async def test_paths_that_a_hostile_sandbox_reports_lead_nowhere(tmp_path: Path) -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await slot.files.write_text("ok", "ok")
        paths = ["../out", "/etc/passwd", "a/../../b", "a//b", "..", ".", "", "nul\0", "ok"]

        async def glob(*_: object, **__: object) -> list[str]:
            return paths

        slot.files.glob = glob  # type: ignore[method-assign]
        collected = await collect(slot, tmp_path / "a", "*")
    assert (collected, tree(tmp_path)) == (CollectedFiles(("ok",)), {"a/ok": b"ok"})


async def test_files_are_copied_before_scoring_changes_them(tmp_path: Path) -> None:
    into = tmp_path / "a"
    async with SandboxPool("local") as pool:
        scoring = Scoring(check=CommandCheck("rm result"), files={"result": "of the check"})
        rollout = Rollout(messages="go", scoring=scoring, collect=Artifacts(["*"], into))
        result = await rollout.run(pool, PlanModel({"go": [["echo mine > result"], "done"]}))
        assert (result.solved, tree(into)) == (True, {"result": b"mine\n"})
        again = Rollout(messages="go", collect=Artifacts(["result", "other"], into))
        await again.run(pool, PlanModel({"go": [["echo new > result; echo new > other"], "done"]}))
        assert tree(into) == {"result": b"new\n", "other": b"new\n"}


@pytest.mark.docker
async def test_sandbox_that_the_model_ended_is_scored_without_artifacts(
    docker_image: Callable[[str], str], tmp_path: Path
) -> None:
    async with SandboxPool("docker", image=docker_image("busybox"), slots_per_sandbox=1) as pool:
        result = await run(pool, "kill -9 -1", Artifacts(["*"], tmp_path / "a"), "true")
    assert (result.error, result.reward, result.cause) == (None, 0.0, ErrorCause.POLICY)
    assert result.collected.paths == ()
    assert result.collected.problems


async def test_full_disk_of_this_host_is_no_failure_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        await slot.files.write_text("a", "text " * 1000)
        with file_size_limit(1000), pytest.raises(ExecError, match=r"cannot write .*/a on this host: File too large"):
            await collect(slot, tmp_path / "a", "a")
        monkeypatch.setattr("hermes_agent.artifacts._NO_ROOM", frozenset({errno.EFBIG}))
        with file_size_limit(1000):
            rollout = Rollout(messages="go", collect=Artifacts(["a"], tmp_path / "a"))
            result = await rollout.run_in(slot, PlanModel({"go": ["done"]}))
    assert isinstance(result.exception, HostDiskFull)
    assert (result.trainable, tree(tmp_path)) == (False, {})


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"patterns": ["/etc/*"]}, "not a path inside the working directory"),
        ({"patterns": ["a/../../b"]}, "not a path inside the working directory"),
        ({"patterns": "out"}, "a list of patterns"),
        ({"patterns": ["a"], "limit_bytes": 0}, "limit_bytes is 1 or more"),
    ],
)
def test_bad_artifacts_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Artifacts(**{"directory": Path("a"), **settings})


@pytest.mark.parametrize("name", ["a.txt", "naïve résumé.md", ".hidden", "a-b_c+d=e@f (1)~", "日本語", "a,b"])
def test_ordinary_name_stays(name: str) -> None:
    assert safe_name(name) == name


def test_unsafe_names_stay_apart() -> None:
    names = ["a\nb", "a\tb", "a:b", "a_b", "-rf", "~", " a", "a ", "a.", "con\udcff", "x" * 200, "x" * 201]
    names.append("é" * 200 + ".py")
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    assert all(len(name.encode()) <= 200 and not set(name) & set("\n\t:/\\") for name in safe)
    assert safe[-1].endswith(".py")
