"""What is prepared on the driver's host: caches, repositories, sources."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from hermes_atropos.cache import file_name, make_once
from hermes_atropos.envs.swe_smith_oracle import sdist
from hermes_atropos.envs.swe_smith_oracle.git import commit_all, git
from hermes_atropos.envs.swe_smith_oracle.instance import Instance, InstanceUnusable
from hermes_atropos.envs.swe_smith_oracle.repository import is_source, make_trees, source_files
from hermes_atropos.envs.swe_smith_oracle.wheels import SlotPython, read_requirements

GOOD, BAD = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b\n"
PATCH = f"""diff --git a/pkg/it.py b/pkg/it.py
--- a/pkg/it.py
+++ b/pkg/it.py
@@ -1,2 +1,2 @@
 {GOOD.splitlines()[0]}
-{GOOD.splitlines()[1]}
+{BAD.splitlines()[1]}
"""


@pytest.fixture
def origin(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A place of repositories, as a URL, with `o/r`: a commit without the bug and one with it."""
    repo = tmp_path / "origin" / "o" / "r"
    (repo / "pkg").mkdir(parents=True)
    (repo / "tests").mkdir()
    (repo / "tests" / "test_it.py").write_text("import pkg.it\ndef test_add(): assert pkg.it.add(2, 2) == 4\n")
    (repo / "link").symlink_to("pkg")
    ids = {}
    own = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*own, "init", "-q", "-b", "main"], check=True)
    for name, text in (("good", GOOD), ("bad", BAD), ("later", GOOD)):
        (repo / "pkg" / "it.py").write_text(text)
        subprocess.run([*own, "add", "."], check=True)
        subprocess.run([*own, "commit", "-qm", name], check=True)
        ids[name] = subprocess.run(
            [*own, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()
    return (tmp_path / "origin").as_uri(), ids


def instance(commit: str, patch: str = PATCH) -> Instance:
    return Instance("o__r.1", "o/r", commit, "broken", ("tests/test_it.py::test_add",), (), patch)


def log(tree: Path) -> list[str]:
    return git("-C", str(tree), "log", "--all", "--format=%s").splitlines()


@pytest.mark.parametrize("at", ["good", "bad"])
def test_the_bug_is_in_whether_the_commit_has_it_or_not(
    tmp_path: Path, origin: tuple[str, dict[str, str]], at: str
) -> None:
    url, ids = origin
    trees = make_trees(instance(ids[at]), tmp_path / "cache", url)
    assert (trees.start / "pkg" / "it.py").read_text() == BAD
    assert (trees.solution / "pkg" / "it.py").read_text() == GOOD
    assert (trees.sources, trees.solution_paths) == (("pkg/it.py",), ("pkg/it.py",))
    assert (trees.start / "link").is_symlink()
    assert log(trees.start) == ["The state of the repository"]
    assert git("-C", str(trees.start), "status", "--porcelain") == ""


def test_without_a_patch_the_commit_is_the_start(tmp_path: Path, origin: tuple[str, dict[str, str]]) -> None:
    url, ids = origin
    trees = make_trees(instance(ids["bad"], ""), tmp_path / "cache", url)
    assert ((trees.start / "pkg" / "it.py").read_text(), trees.solution_paths) == (BAD, ())


def test_what_cannot_be_made_says_why(tmp_path: Path, origin: tuple[str, dict[str, str]]) -> None:
    url, ids = origin
    for wrong, words in (
        (instance("f" * 40), "commit f+ cannot be fetched"),
        (instance(ids["bad"], PATCH.replace("pkg/it.py", "tests/test_it.py")), "which is not a source file"),
        (instance(ids["bad"], "no patch"), "its patch is invalid"),
    ):
        with pytest.raises(InstanceUnusable, match=words):
            make_trees(wrong, tmp_path / "cache", url)
    with pytest.raises(InstanceUnusable, match="o/r cannot be cloned"):
        make_trees(instance(ids["bad"]), tmp_path / "other", (tmp_path / "nowhere").as_uri())
    left = {p.name for p in (tmp_path / "cache" / "instances").iterdir() if not p.name.endswith(".lock")}
    assert left == set()


def test_a_commit_that_the_clone_lacks_is_fetched(tmp_path: Path, origin: tuple[str, dict[str, str]]) -> None:
    url, ids = origin
    make_trees(instance(ids["bad"]), tmp_path / "cache", url)
    repo = tmp_path / "origin" / "o" / "r"
    own = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    (repo / "new").write_text("x")
    subprocess.run([*own, "add", "."], check=True)
    subprocess.run([*own, "commit", "-qm", "newer"], check=True)
    newer = subprocess.run([*own, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert (make_trees(instance(newer), tmp_path / "cache", url).start / "new").exists()


def test_several_threads_make_a_directory_once(tmp_path: Path) -> None:
    begun: list[int] = []

    def make(path: Path) -> None:
        begun.append(1)
        path.mkdir()
        (path / "whole").touch()

    threads = [threading.Thread(target=make_once, args=(tmp_path / "it", make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1
    assert (tmp_path / "it" / "whole").exists()


def test_what_a_process_that_died_had_begun_is_made_anew(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from hermes_atropos.cache import make_once
def make(path):
    path.mkdir()
    (path / "half").touch()
    os._exit(9)
make_once(Path({str(tmp_path / "it")!r}), make)
"""
    root = Path(__file__).parents[4]
    places = [str(root), str(root / "integrations" / "atropos")]
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {places!r}\n{code}"], check=False)
    assert done.returncode == 9
    assert not (tmp_path / "it").exists()
    make_once(tmp_path / "it", Path.mkdir)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it", "it.lock"]
    assert list((tmp_path / "it").iterdir()) == []


def test_the_id_of_a_commit_depends_on_the_files_alone(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "two"):
        tree = tmp_path / name
        (tree / "sub").mkdir(parents=True)
        (tree / ".gitignore").write_text("*.log\n")
        (tree / ".gitattributes").write_text("* text eol=crlf\n")
        (tree / "sub" / "a.log").write_bytes(b"x\r\ny\n")
        ids.append(commit_all(tree, tmp_path / f"{name}.git", "message"))
    assert ids[0] == ids[1]
    assert "sub/a.log" in git("--git-dir", str(tmp_path / "one.git"), "ls-tree", "-r", "--name-only", ids[0])


def test_a_source_distribution_is_unpacked_within_its_directory(tmp_path: Path) -> None:
    def archive(**members: bytes) -> Path:
        path = tmp_path / "a.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return path

    sdist.unpack(archive(**{"pkg-1/a.py": b"a", "pkg-1/sub/b.py": b"b", "PKG": b"c"}), tmp_path / "ok")
    assert sorted(p.relative_to(tmp_path / "ok").as_posix() for p in (tmp_path / "ok").rglob("*.py")) == [
        "a.py",
        "sub/b.py",
    ]
    with pytest.raises(tarfile.OutsideDestinationError):
        sdist.unpack(archive(**{"pkg-1/../../out.py": b"a"}), tmp_path / "bad")
    assert not (tmp_path.parent / "out.py").exists()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("pkg/it.py", True),
        ("src/pkg/testing/tools.py", True),
        ("it.py", True),
        ("setup.py", False),
        ("conftest.py", False),
        ("pkg/conftest.py", False),
        ("tests/helper.py", False),
        ("pkg/tests/deep/helper.py", False),
        ("test_it.py", False),
        ("pkg/it_test.py", False),
        ("docs/conf.py", False),
        ("pkg/data.json", False),
    ],
)
def test_what_a_source_file_is(name: str, source: bool) -> None:
    assert is_source(name) is source


def test_files_of_tests_and_links_are_no_sources(tmp_path: Path) -> None:
    for name in ("a.py", "checks.py"):
        (tmp_path / name).touch()
    (tmp_path / "b.py").symlink_to("/etc/passwd")
    assert source_files(tmp_path, ("checks.py::test_a",)) == ["a.py"]


def test_requirements_are_read_without_running_anything(tmp_path: Path) -> None:
    (tmp_path / "PKG-INFO").write_text("Name: a\nRequires-Dist: b>=1\nRequires-Dist: c; extra == 'x'\n\nbody")
    assert read_requirements(tmp_path)[-1] == "b>=1"
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools-scm"]\n[project]\nname="a"\ndependencies = ["d"]\n'
    )
    assert read_requirements(tmp_path)[-2:] == ["setuptools-scm", "d"]
    (tmp_path / "pyproject.toml").write_text("[")
    with pytest.raises(InstanceUnusable, match=r"its pyproject\.toml"):
        read_requirements(tmp_path)


def test_wheels_are_those_of_the_slots() -> None:
    assert "manylinux_2_28_x86_64" in SlotPython((3, 11), "linux-x86_64", "2.36").tags()
    assert "musllinux_1_2_aarch64" in SlotPython((3, 12), "linux-aarch64", "").tags()
    assert SlotPython((3, 12), "macosx-14.0-arm64", "").tags() == ["macosx_14_0_arm64"]


def test_names_of_files_hold_no_path() -> None:
    assert file_name("a/b@c:../../d") == "a__b__c__..__..__d"
    assert file_name("..") == "_"
