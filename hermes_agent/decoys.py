"""Removes files of a model that would be read instead of a check's own, and builds the environment of a check."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from hermes_exec import Slot
from hermes_exec.errors import ExecError
from hermes_exec.results import FileStat

_CACHE = "__pycache__"
_GIT_KEYS = {
    "core": "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol",
    "remote": "url pushurl fetch",
    "branch": "remote merge rebase",
    "user": "name email",
    "submodule": "url active",
    "extensions": "objectformat refstorage",
}
"""The settings of a repository that neither run a program nor lead to another location."""
_SECTION = re.compile(r'\s*\[(\w+)(?: "[^"\\]+")?\]\s*')
_SETTING = re.compile(r"\s*(\w+)\s*=([^\\]|\\[\\\"ntb])*")
"""A setting that ends with its line: it has no lone backslash."""


def check_env(slot: Slot, *, sealed: bool, whole: bool) -> dict[str, str]:
    """Return the environment variables of a check: Python reads no bytecode of the model, and git runs no program of
    it.

    In a sealed slot git runs no hooks either. If the home directory lies in a working directory that was copied as a
    `whole`, the model's user settings for git and Python are ignored.
    """
    git = {"core.fsmonitor": "false", **({"core.hooksPath": "/dev/null"} if sealed else {})}
    env = {"PYTHONPYCACHEPREFIX": f"{slot.tmp}/pycache-{secrets.token_hex(8)}", "GIT_CONFIG_COUNT": str(len(git))}
    for number, (key, value) in enumerate(git.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    if whole and PurePosixPath(slot.home).is_relative_to(slot.workdir):
        env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "PYTHONNOUSERSITE": "1"}
    return env


async def remove_decoys(slot: Slot, placed: Sequence[str], roots: Iterable[str], *, sealed: bool) -> None:
    """Remove everything that would be read instead of the files that were `placed` for a check.

    These are bytecode and modules that Python prefers to them, and links below `roots` that lead to them or to a
    directory above them. In `sealed` work, links that lead nowhere, to a device or into `/proc` are removed too,
    because a check may create their targets, and so are settings of git repositories that make git run a program.
    """
    whole = await _whole(slot, placed)
    await _remove_modules(slot, [path for path in whole if path.endswith(".py")])
    for directory in {_parent(path) for path in whole}:
        await slot.files.remove(_join(directory, _CACHE), recursive=True, missing_ok=True)
    ids = await _ids(slot, placed, whole)
    for root in roots:
        facts = await _unless_missing(slot, root)
        if facts is None or not facts.is_dir:
            continue
        for link in await slot.files.list(root, recursive=True, only="link", follow=True, force=True):
            if (link.id in ids or _leads_elsewhere(link, sealed=sealed)) and not _is_below(link.path, placed):
                await _remove_link(slot, link.path)
        if sealed:
            await _remove_git_programs(slot, root)


def _leads_elsewhere(link: FileStat, *, sealed: bool) -> bool:
    """Return whether a link leads nowhere, or to something that only a process of the check has, such as its standard
    input.
    """
    target = str(link.target)
    of_process = target.startswith(("/proc/", "/dev/")) and target != "/dev/null"
    if not sealed:
        return link.type == "link" and target.startswith("/proc/")
    return of_process or not (link.is_file or link.is_dir or target == "/dev/null")


async def _whole(slot: Slot, placed: Sequence[str]) -> dict[str, FileStat]:
    """Return the placed files, and the files in placed directories."""
    whole = {}
    for path in placed:
        facts = await slot.files.stat(path, follow=False)
        whole[path] = facts
        if facts.is_dir:
            whole |= {entry.path: entry for entry in await slot.files.list(path, recursive=True)}
    return whole


async def _ids(slot: Slot, placed: Sequence[str], whole: dict[str, FileStat]) -> set[str]:
    """Return the ids that no link may lead to: the placed files, and every directory above one."""
    above = {str(parent) for path in placed for parent in (PurePosixPath(slot.workdir) / path).parents}
    ids = {facts.id for facts in whole.values()}
    for directory in above:
        facts = await _unless_missing(slot, directory)
        if facts is not None:
            ids.add(facts.id)
    return ids


async def _remove_modules(slot: Slot, scripts: Sequence[str]) -> None:
    """Remove modules that Python finds before these files, or before their directories."""
    for directory in {_parent(path) for path in scripts}:
        stems = {PurePosixPath(path).stem for path in scripts if _parent(path) == directory}
        names = await _remove_matches(slot, directory, scripts, rf"({_any_of(stems)})\.(.*\.)?(so|pyc|pyd)")
        for package in stems & names:
            await _remove_matches(slot, _join(directory, package), scripts, r"__init__\..*")
    for package in {str(p) for path in scripts for p in PurePosixPath(path).parents if str(p) != "."}:
        # Python prefers modules to a directory without an `__init__`.
        if not any(entry.name.startswith("__init__.") for entry in await slot.files.list(package)):
            name = PurePosixPath(package).name
            await _remove_matches(slot, _parent(package), scripts, rf"{re.escape(name)}\.(py|(.*\.)?(so|pyc|pyd))")


async def _remove_matches(slot: Slot, directory: str, own: Sequence[str], pattern: str) -> set[str]:
    """Remove the files of a directory whose name matches, except the check's own. Return the names in it."""
    facts = await _unless_missing(slot, directory)
    entries = await slot.files.list(directory) if facts is not None and facts.is_dir else []
    for entry in entries:
        if re.fullmatch(pattern, entry.name) and entry.path not in own and not entry.is_dir:
            await slot.files.remove(entry.path)
    return {entry.name for entry in entries}


async def _remove_link(slot: Slot, path: str) -> None:
    """Remove a link, even from a read-only directory."""
    try:
        await slot.files.remove(path)
    except PermissionError:
        directory = _parent(path)
        mode = (await slot.files.stat(directory)).mode
        await slot.files.chmod(directory, mode | 0o700)
        await slot.files.remove(path)
        await slot.files.chmod(directory, mode)


async def _remove_git_programs(slot: Slot, root: str) -> None:
    """Reduce the configuration of each repository to settings that make git run nothing and read nothing else."""
    for config in await slot.files.list(root, recursive=True, name="config", follow=True, force=True):
        if not config.is_file or not await _is_repository(slot, _parent(config.path)):
            continue
        text = await slot.files.read_text(config.path, "latin-1")
        plain = plain_git_config(text)
        if plain != text:
            await slot.files.remove(config.path)
            await slot.files.write_text(config.path, plain, "latin-1")


async def _is_repository(slot: Slot, directory: str) -> bool:
    """Return whether git reads a directory as a repository, or does after `git init`."""
    beside = [await _unless_missing(slot, _join(directory, name)) for name in ("objects", "refs")]
    return None not in beside or PurePosixPath(directory).name == ".git"


def plain_git_config(text: str) -> str:
    """Return those lines of a repository's configuration that make git neither run a program nor read another file."""
    keys: Sequence[str] = ()
    lines = []
    for line in text.split("\n"):
        section, setting = _SECTION.fullmatch(line), _SETTING.fullmatch(line)
        if section:
            keys = _GIT_KEYS.get(section[1].lower(), "").split()
        if (section and keys) or (setting and setting[1].lower() in keys):
            lines.append(line)
        elif not setting and "[" in line:
            keys = ()  # a section that is left out, or that has a setting in its line
    return "\n".join([*lines, ""])


async def _unless_missing(slot: Slot, path: str) -> FileStat | None:
    try:
        return await slot.files.stat(path)
    except OSError as error:
        if isinstance(error, (ExecError, TimeoutError)):
            raise
        return None


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names))


def _is_below(path: str, placed: Sequence[str]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in placed)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _join(directory: str, name: str) -> str:
    return name if directory == "." else f"{directory}/{name}"
