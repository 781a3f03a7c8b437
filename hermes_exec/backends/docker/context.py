"""The context of a build: a directory without the files in `.dockerignore`, as an archive identified by its content."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import IO

from docker.utils.build import Pattern, PatternMatcher
from docker.utils.fnmatch import fnmatchcase

from hermes_exec.backends.dockerfile import DOCKERFILE
from hermes_exec.errors import ConfigError

ALWAYS = (f"!{DOCKERFILE}", "!.dockerignore")
"""Files that the builder needs in any case."""


class _Pattern(Pattern):
    """A case-sensitive pattern, as in Docker; the SDK's own ignores case."""

    def match(self, filepath: str) -> bool:
        return fnmatchcase(filepath, self.cleaned_pattern)


def pack_context(directory: Path, archive: IO[bytes]) -> str:
    """Write the context of a directory as a tar archive, like Docker's client, and return the digest of its content;
    blocking.

    The content is names, types, modes, targets of links, and the bytes of files.

    Raises:
        ConfigError: If something in the directory cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with tarfile.open(fileobj=archive, mode="w") as out:
            for name in _names(directory):
                path = directory / name
                if path.is_symlink() or path.is_file() or path.is_dir():
                    entry = out.gettarinfo(path, name)
                    entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, "", ""
                    entry.mtime = int(entry.mtime)
                    digest.update(repr((name, entry.type, entry.mode, entry.linkname, entry.size)).encode())
                    if not entry.isreg():
                        out.addfile(entry)
                        continue
                    with path.open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
                        file.seek(0)
                        out.addfile(entry, file)
    except OSError as error:
        raise ConfigError(f"the directory {str(directory)!r} cannot be packed for a build: {error}") from error
    return digest.hexdigest()


def _names(directory: Path) -> list[str]:
    ignore = directory / ".dockerignore"
    lines = ignore.read_text("utf-8-sig", "surrogateescape").splitlines() if ignore.is_file() else []
    matcher = PatternMatcher([])
    wanted = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
    matcher.patterns = [pattern for pattern in map(_Pattern, (*wanted, *ALWAYS)) if pattern.dirs]
    return sorted(matcher.walk(directory))
