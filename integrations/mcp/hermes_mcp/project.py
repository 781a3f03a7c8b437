"""The user's project in the slot: copied in, or bound on Docker; and the tool that copies results out."""

from __future__ import annotations

import os
import posixpath
import secrets
import shutil
import tempfile
from collections.abc import MutableMapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from hermes_exec.errors import ConfigError, OutputLimitExceeded
from hermes_exec.tools import HostTool, ToolFailure, tool

if TYPE_CHECKING:
    from hermes_exec import Slot

BOUND_AT = "/project"
LIMIT_BYTES = 1 << 30
SHOWN = 100
"""The number of names in a result."""
_GIT_TRUSTS_PROJECT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": BOUND_AT}
"""Git otherwise refuses a directory that belongs to another user."""
_COPIED = (
    "The working directory is a copy of the user's project. Changes reach the project only by the tool copy_to_project."
)
_BOUND = "The working directory is the user's project itself, without a copy."


class Project:
    """A directory of this host whose files are in each slot.

    Raises:
        ConfigError: If it is not a directory.
    """

    def __init__(self, directory: Path) -> None:
        try:
            self.directory = directory.resolve()
        except OSError as error:  # the working directory of this process was removed
            raise ConfigError(f"the project {directory}: {error.strerror}; give an existing one with --dir") from None
        if not self.directory.is_dir():
            raise ConfigError(f"the project {directory} is not a directory; give an existing one with --dir")
        self.is_bound = False
        self.instructions = _COPIED

    def add_to(self, settings: MutableMapping[str, Any]) -> None:
        """Change the settings of a pool so that its slots have the project in their working directory."""
        self.is_bound = settings.get("backend", "local") == "docker"
        if self.is_bound:
            self.instructions = _BOUND
            settings["shared_volumes"] = [*settings.get("shared_volumes", ()), f"{self.directory}:{BOUND_AT}"]
            settings["workdir"] = BOUND_AT
            settings["env"] = _GIT_TRUSTS_PROJECT | dict(settings.get("env", {}))
        else:
            settings["files"] = {**settings.get("files", {}), ".": str(self.directory)}

    def tools(self, slot: Slot | None) -> Sequence[HostTool]:
        """Return the tool that copies results out; without a slot, to describe it only."""
        return () if self.is_bound else (self._copy_tool(slot),)

    def _copy_tool(self, slot: Slot | None) -> HostTool:
        async def copy_to_project(paths: list[str]) -> dict[str, object]:
            assert slot is not None
            files: list[str] = []
            refused: list[str] = []
            for part in [_relative_path(path, slot.workdir) for path in paths]:
                try:
                    await self._copy(slot, part, files, refused)
                except (OSError, OutputLimitExceeded) as error:
                    refused.append(f"{part}: {_reason(error)}")
            if refused and not files:
                raise ToolFailure("not_copied", f"No file was copied: {'; '.join(refused[:SHOWN])}")
            result: dict[str, object] = {"count": len(files), "files": files[:SHOWN]}
            return result | {"refused": refused[:SHOWN]} if refused else result

        description = (
            f"Copy files or directories from the slot into the user's project {self.directory.name!r}, over the files "
            "there. Paths are relative to the project; '.' is everything. Nothing is deleted in the project. Links "
            "and Git's own files (.git) are not copied."
        )
        return tool(description=description)(copy_to_project)

    async def _copy(self, slot: Slot, part: str, files: list[str], refused: list[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="hermes-mcp-") as directory:
            tree = await slot.files.download(
                posixpath.join(slot.workdir, part), Path(directory, "files", part), limit_bytes=LIMIT_BYTES
            )
            refused += tree.refused
            await anyio.to_thread.run_sync(_merge, Path(directory, "files"), self.directory, files, refused)


def _reason(error: OSError | OutputLimitExceeded) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _relative_path(path: str, workdir: str) -> str:
    """Return a path of the model as a path relative to the project.

    Raises:
        ToolFailure: If it leads out of the project, or into Git's own files.
    """
    absolute = PurePosixPath(workdir, path)
    if "\0" in path or ".." in absolute.parts or not absolute.is_relative_to(workdir):
        raise ToolFailure("bad_value", f"'{path}' is not in the project, whose files are in {workdir}.")
    relative = absolute.relative_to(workdir)
    if any(_is_git(part) for part in relative.parts):
        raise ToolFailure("bad_value", f"'{path}' belongs to Git: it could run programs on the user's machine.")
    return str(relative)


def _is_git(name: str) -> bool:
    return name.lower() == ".git"


def _merge(source: Path, project: Path, files: list[str], refused: list[str]) -> None:
    """Copy the regular files of a tree over the project, following no link, and add them to the lists."""
    for directory, subdirectories, names in os.walk(source):
        links = [name for name in subdirectories if Path(directory, name).is_symlink()]
        subdirectories[:] = sorted(name for name in subdirectories if not _is_git(name))
        for name in sorted([*names, *links]):
            path = Path(directory, name)
            relative = path.relative_to(source)
            if _is_git(name):
                continue
            try:
                if path.is_symlink() or not _prepare_target(project, relative):
                    refused.append(f"{relative}: a link, or not a file")
                    continue
                _replace(project / relative, path)
            except OSError as error:
                refused.append(f"{relative}: not written to the project: {_reason(error)}")
            else:
                files.append(str(relative))


def _replace(target: Path, source: Path) -> None:
    beside = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        shutil.copy(source, beside)
        beside.replace(target)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _prepare_target(project: Path, relative: Path) -> bool:
    """Create the directories above a file. Return False if one of them is a link or a file, or the file is neither."""
    for parent in list(reversed(relative.parents))[1:]:
        if (project / parent).is_symlink() or (project / parent).is_file():
            return False
        (project / parent).mkdir(exist_ok=True)
    target = project / relative
    return not target.is_symlink() and (target.is_file() or not target.exists())
