"""Git on the driver's host, without hooks or user settings, so that commit ids are the same everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hermes_atropos.cache import hold_lock, make_once
from hermes_atropos.envs.swe_smith_oracle.instance import InstanceUnusable

_DATE = "946684800 +0000"
_AUTHOR = f"swe-smith <swe-smith@localhost> {_DATE}"
_SETTINGS = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", "-c", "core.fileMode=true",
    "-c", "core.attributesFile=/dev/null", "-c", "core.excludesFile=/dev/null", "-c", "core.fsmonitor=false",
    "-c", "protocol.ext.allow=never", "-c", "gc.auto=0", "-c", "safe.directory=*",
)  # fmt: skip
_NETWORK_S = 1800.0


class GitFailed(Exception):
    """Raised when a git command fails. The message has its output."""


def git(*arguments: str, env: Mapping[str, str] | None = None, stdin: str | None = None) -> str:
    """Run git without the settings of the user and the system, and return its output."""
    alone = {"PATH": os.defpath, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    return _run(arguments, {**alone, "GIT_TERMINAL_PROMPT": "0", **(env or {})}, stdin)


def _run(arguments: tuple[str, ...], env: Mapping[str, str] | None, stdin: str | None) -> str:
    program = shutil.which("git")
    if program is None:
        raise GitFailed("this host has no git")
    done = subprocess.run(
        [program, *_SETTINGS, *arguments],
        env=env,
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=_NETWORK_S,
        check=False,
    )
    if done.returncode != 0:
        raise GitFailed(f"git {' '.join(arguments[:3])}: {done.stderr.strip()[-500:] or done.returncode}")
    return done.stdout


def commit_all(tree: Path, git_dir: Path, message: str) -> str:
    """Commit all files of a directory as the only commit of a new repository, and return its id, which depends on
    nothing but the files and the message.
    """
    git("init", "-q", "--bare", "--object-format=sha1", str(git_dir))
    git_dir.joinpath("info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
    env = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(tree)}
    git("-C", str(tree), "add", "--all", "--force", ".", env=env)
    tree_id = git("write-tree", env=env).strip()
    text = f"tree {tree_id}\nauthor {_AUTHOR}\ncommitter {_AUTHOR}\n\n{message}\n"
    commit = git("hash-object", "-t", "commit", "-w", "--stdin", env=env, stdin=text).strip()
    git("update-ref", "refs/heads/main", commit, env=env)
    git("symbolic-ref", "HEAD", "refs/heads/main", env=env)
    return commit


def ensure_clone(repo: str, base_url: str, cache: Path) -> Path:
    """Return the cached bare clone of a repository, and clone it first if it is missing.

    Raises:
        InstanceUnusable: If it cannot be cloned.
    """
    owner, _, name = repo.partition("/")

    def make(path: Path) -> None:
        try:
            _run(("clone", "--quiet", "--bare", f"{base_url.rstrip('/')}/{repo}", str(path)), None, None)
        except (GitFailed, subprocess.TimeoutExpired) as error:
            raise InstanceUnusable(f"{repo} cannot be cloned from {base_url}: {error}") from error

    return make_once(cache / "repositories" / f"{owner}__{name}.git", make)


def check_out(bare: Path, commit: str, target: Path) -> None:
    """Write the files of a commit into `target`, without a `.git`. The commit is fetched if the clone lacks it.

    Raises:
        InstanceUnusable: If there is no such commit.
    """
    target.mkdir(parents=True)
    env = {"GIT_DIR": str(bare), "GIT_WORK_TREE": str(target), "GIT_INDEX_FILE": f"{target}.index"}
    try:
        with hold_lock(bare):
            if not _has(commit, env):
                _run(("--git-dir", str(bare), "fetch", "--quiet", "origin", commit), None, None)
        git("read-tree", commit, env=env)
        git("-C", str(target), "checkout-index", "--all", "--force", env=env)
    except (GitFailed, subprocess.TimeoutExpired) as error:
        raise InstanceUnusable(f"commit {commit} cannot be fetched: {error}") from error
    finally:
        Path(f"{target}.index").unlink(missing_ok=True)


def _has(commit: str, env: Mapping[str, str]) -> bool:
    try:
        git("cat-file", "-e", f"{commit}^{{commit}}", env=env)
    except GitFailed:
        return False
    return True


def apply(patch: str, tree: Path, git_dir: Path, *, reverse: bool = False) -> bool:
    """Apply a patch to a directory, completely or not at all. Return whether it applied."""
    env = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(tree)}
    try:
        git(
            "-C",
            str(tree),
            "apply",
            "--whitespace=nowarn",
            *(["--reverse"] if reverse else []),
            "-",
            env=env,
            stdin=patch,
        )
    except GitFailed:
        return False
    return True


def list_patched_files(patch: str, git_dir: Path) -> tuple[str, ...]:
    """Return the paths that a patch changes.

    Raises:
        InstanceUnusable: If the text is not a patch.
    """
    try:
        listed = git("apply", "--numstat", "-z", "-", env={"GIT_DIR": str(git_dir)}, stdin=patch)
    except GitFailed as error:
        raise InstanceUnusable(f"its patch is invalid: {error}") from error
    return tuple(line.split("\t", 2)[2] for line in listed.split("\0") if line.count("\t") >= 2)
