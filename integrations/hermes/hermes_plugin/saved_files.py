"""Home and workspace of a task, kept on this host between its slots."""

from __future__ import annotations

import logging
import posixpath
import re
import threading
from pathlib import Path

from tools.environments.base import get_sandbox_dir

from hermes_exec import ConfigError, ExecError
from hermes_exec.blocking import Slot

logger = logging.getLogger(__name__)
LIMIT_BYTES = 2 << 30


class SavedFiles:
    """Archives of home and workspace in hermes-agent's directory of sandboxes, one directory for each task."""

    def __init__(self, task_id: str) -> None:
        name = re.sub(r"[^\w.-]", "_", task_id).lstrip(".") or "_"
        self._directory: Path = get_sandbox_dir() / "hermes_exec" / name

    def save(self, slot: Slot) -> None:
        """Write both archives. A directory that cannot be read keeps its last archive, and a warning is logged."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, path in _directories(slot).items():
            unfinished = self._directory / f"{name}.{threading.get_ident()}"
            try:
                if name == "home" and slot.files.exists(synced := posixpath.join(path, ".hermes")):
                    slot.files.remove(synced, recursive=True)  # the next slot gets its own copies
                with unfinished.open("wb") as archive:
                    slot.files.save(path, archive, LIMIT_BYTES)
                unfinished.replace(self._directory / f"{name}.tar")
            except (ExecError, OSError) as error:
                logger.warning("%s of slot %s was not saved: %s", path, slot.id, error)
                unfinished.unlink(missing_ok=True)

    def restore(self, slot: Slot) -> None:
        """Unpack the archives that there are.

        Raises:
            ConfigError: If an archive cannot be read or unpacked.
            ExecError: If the slot is lost.
        """
        for name, path in _directories(slot).items():
            if (archive := self._directory / f"{name}.tar").exists():
                try:
                    with archive.open("rb") as file:
                        slot.files.restore(file, path)
                except (ExecError, OSError) as error:
                    if isinstance(error, ExecError) and not isinstance(error, ConfigError):
                        raise
                    raise ConfigError(
                        f"the files of the last slot in {archive} were not unpacked into {path}: {error}; remove the "
                        "archive to start without them"
                    ) from error


def _directories(slot: Slot) -> dict[str, str]:
    return {"home": slot.home, "workspace": slot.workspace}
