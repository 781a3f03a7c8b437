"""The files of an instance's slots, created once on the driver's host: the repository with the bug and, separately, the
solution.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hermes_atropos.cache import digest, file_name, make_once
from hermes_atropos.envs.swe_smith_oracle import sdist
from hermes_atropos.envs.swe_smith_oracle.git import apply, check_out, commit_all, ensure_clone, git, list_patched_files
from hermes_atropos.envs.swe_smith_oracle.instance import Instance, InstanceUnusable, Sdist

_FORMAT = 1
_TEST_DIRECTORIES = frozenset({"test", "tests"})
_SETTINGS = frozenset({"conftest.py", "setup.py", "noxfile.py", "fabfile.py", "sitecustomize.py", "usercustomize.py"})
_SETTINGS_DIRECTORIES = frozenset({"doc", "docs", "examples", "benchmarks", "scripts", ".github"})


@dataclass(frozen=True)
class Trees:
    """Local directories. `start` is the model's repository, with a `.git` of one commit. `solution` has the patched
    files without the bug (empty: not known). `sources` are the files that are scored.
    """

    start: Path
    solution: Path
    sources: tuple[str, ...]

    @property
    def solution_paths(self) -> tuple[str, ...]:
        """The paths of the solution's files."""
        return tuple(sorted(p.relative_to(self.solution).as_posix() for p in self.solution.rglob("*") if p.is_file()))


def make_trees(instance: Instance, cache: Path, base_url: str) -> Trees:
    """Return the directories of an instance, and create them first if they are missing. Blocks.

    Raises:
        InstanceUnusable: If they cannot be created.
    """
    key = digest(
        _FORMAT, instance.repo, instance.base_commit, instance.patch, instance.row().get("sdist"), instance.tests
    )
    target = cache / "instances" / f"{file_name(instance.instance_id)}-{key}"
    directory = make_once(target, lambda path: _make(path, instance, cache, base_url))
    sources = json.loads((directory / "sources.json").read_text("utf-8"))
    return Trees(directory / "start", directory / "solution", tuple(sources))


def sdist_tree(source: Sdist, cache: Path, target: Path, git_dir: Path) -> str:
    """Unpack a source distribution into `target`, commit it to a new repository, and return the commit id."""
    sdist.unpack(sdist.fetch_archive(source, cache), target)
    return commit_all(target, git_dir, f"{source.name} {source.version}")


def _make(path: Path, instance: Instance, cache: Path, base_url: str) -> None:
    start, solution, base_git = path / "start", path / "solution", path / "base.git"
    path.mkdir()
    if instance.sdist is not None:
        commit = sdist_tree(instance.sdist, cache, start, base_git)
        if not commit.startswith(instance.base_commit):
            raise InstanceUnusable(f"its source distribution gives commit {commit}, not {instance.base_commit}")
    else:
        check_out(ensure_clone(instance.repo, base_url, cache), instance.base_commit, start)
        commit_all(start, base_git, "base")
    sources = source_files(start, instance.tests)
    solution.mkdir()
    if instance.patch:
        _apply_bug(instance, start, solution, base_git, sources)
    shutil.rmtree(base_git)
    # The slot's history is only this commit, without any other object of the repository.
    git_dir = start / ".git"
    commit_all(start, path / "start.git", "The state of the repository")
    (path / "start.git").rename(git_dir)
    env = {"GIT_DIR": str(git_dir)}
    git("config", "core.bare", "false", env=env)
    git("repack", "-a", "-d", "-q", env=env)
    (path / "sources.json").write_text(json.dumps(sources), "utf-8")


def _apply_bug(instance: Instance, start: Path, solution: Path, base_git: Path, sources: list[str]) -> None:
    files = list_patched_files(instance.patch, base_git)
    foreign = [file for file in files if file not in sources]
    if foreign:
        raise InstanceUnusable(f"its patch changes {foreign[0]}, which is not a source file of the repository")
    before = {file: (start / file).read_bytes() for file in files if (start / file).is_file()}
    if apply(instance.patch, start, base_git):
        solved = before
    elif apply(instance.patch, start, base_git, reverse=True):
        # The commit already has the bug: the reversed patch is the solution.
        solved = {file: (start / file).read_bytes() for file in files if (start / file).is_file()}
        for file, content in before.items():
            (start / file).write_bytes(content)
    else:
        raise InstanceUnusable(f"its patch applies to {instance.base_commit} neither forwards nor in reverse")
    for file, content in solved.items():
        (solution / file).parent.mkdir(parents=True, exist_ok=True)
        (solution / file).write_bytes(content)


def source_files(tree: Path, tests: tuple[str, ...] = ()) -> list[str]:
    """Return the sorted Python files that a solution may change: all but tests and their configuration."""
    of_tests = {test.partition("::")[0] for test in tests}
    names = []
    for path in sorted(tree.rglob("*.py")):
        name = path.relative_to(tree).as_posix()
        if path.is_file() and not path.is_symlink() and name not in of_tests and is_source(name):
            names.append(name)
    return names


def is_source(name: str) -> bool:
    """Return whether a path looks like a source file by its name."""
    path = PurePosixPath(name)
    if path.suffix != ".py" or path.name in _SETTINGS or path.name.startswith("test_") or path.stem.endswith("_test"):
        return False
    directories = path.parts[:-1]
    return not (
        path.name in ("test.py", "tests.py")
        or _TEST_DIRECTORIES.intersection(directories)
        or (directories and directories[0] in _SETTINGS_DIRECTORIES)
        or ".git" in directories
    )
