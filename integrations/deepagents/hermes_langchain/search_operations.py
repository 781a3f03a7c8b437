"""The searches of deepagents on a slot. The runner finds candidates; deepagents' own matcher decides about names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from deepagents.backends.protocol import FileInfo, GlobResult, GrepMatch, GrepResult
from deepagents.backends.utils import InvalidGlobPatternError, compile_grep_include_glob

from hermes_exec import ConfigError, SearchResult, Slot
from hermes_langchain.file_operations import explain_error

MATCH_LIMIT = 10_000
CANDIDATE_LIMIT = 100_000
PLAIN_PATTERN = re.compile(r"[\w.*?-][\w./*? -]*")
"""Name patterns that mean no less to the runner than to deepagents."""


async def glob(slot: Slot, pattern: str, path: str | None) -> GlobResult:
    """Find regular files by name, sorted."""
    root = posixpath.join(slot.workdir, path or "/")
    try:
        includes = compile_grep_include_glob(pattern)
        answer = await _search(slot, _candidates(pattern), root, target="files", limit=CANDIDATE_LIMIT)
    except (InvalidGlobPatternError, ConfigError) as error:
        return GlobResult(error=f"Path '{root}': {error}")
    except OSError as error:
        return GlobResult(error=f"Path '{root}': {_path_error(error)}")
    paths = sorted(file.path for file in answer.files if includes(_relative(file.path, root)))
    matches: list[FileInfo] = [{"path": name, "is_dir": False} for name in paths[:MATCH_LIMIT]]
    if answer.truncated or len(paths) > MATCH_LIMIT:
        return GlobResult(matches=matches, truncated=True, truncation_reason="budget")
    if answer.errors:
        return GlobResult(matches=matches, truncated=True, truncation_reason="unreadable")
    return GlobResult(matches=matches)


async def grep(
    slot: Slot, text: str, path: str | None, glob: str | None, max_count: int | None, excluded: Sequence[str]
) -> GrepResult:
    """Find lines that contain a text, outside of directories with an excluded name."""
    root = posixpath.join(slot.workdir, path or ".")
    try:
        includes = _include_all if glob is None else compile_grep_include_glob(glob)
        names = None if glob is None else _candidates(glob)
        answer = await _search(slot, text, root, regex=False, glob=names, limit=CANDIDATE_LIMIT)
    except (InvalidGlobPatternError, ConfigError) as error:
        return GrepResult(error=str(error))
    except OSError as error:
        return GrepResult(error=f"Path '{root}': {_path_error(error)}")
    matches: list[GrepMatch] = []
    for match in answer.matches:
        relative = _relative(match.path, root)
        if includes(relative) and not set(excluded).intersection(relative.split("/")[:-1]):
            matches.append({"path": match.path, "line": match.line, "text": match.text})
    most = len(matches) if max_count is None else max(max_count, 0)
    return GrepResult(matches=matches[:most], truncated=answer.truncated or len(matches) > most)


async def _search(slot: Slot, pattern: str, root: str, **more: object) -> SearchResult:
    return await slot.files.search(pattern, root, hidden=True, ignore_files=False, **more)  # type: ignore[arg-type]


def _candidates(pattern: str) -> str:
    """Return a name pattern for the runner that matches at least the files that deepagents' pattern matches."""
    return pattern if PLAIN_PATTERN.fullmatch(pattern) else "*"


def _include_all(_: str) -> bool:
    return True


def _relative(path: str, root: str) -> str:
    return posixpath.relpath(path, root) if path != root else posixpath.basename(path)


def _path_error(error: OSError) -> str:
    code = explain_error(error)
    return "path_not_found" if code == "file_not_found" else code
