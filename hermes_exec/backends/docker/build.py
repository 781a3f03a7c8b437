"""Images built from a directory with a Dockerfile, tagged by the content of that directory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO

REPOSITORY = "hermes-exec-build"


def tag_of(directory: Path, platform: str | None, archive: IO[bytes] | None = None) -> str:
    """Return the tag of a directory's image, and write the context of its build to the archive; blocking.

    Raises:
        ConfigError: If the directory cannot be read.
    """
    from hermes_exec.backends.docker.context import pack_context

    with open(os.devnull, "wb") as nowhere:
        key = f"{pack_context(directory, nowhere if archive is None else archive)} {platform or ''}"
    return f"{REPOSITORY}:{hashlib.sha256(key.encode()).hexdigest()[:24]}"
