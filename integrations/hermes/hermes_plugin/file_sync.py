"""Copies of hermes-agent's skills, credential files and caches in a slot."""

from __future__ import annotations

import posixpath
import shutil
import tempfile
import threading
from pathlib import Path

from tools.environments.file_sync import FileSyncManager, iter_sync_files

from hermes_exec import ExecError
from hermes_exec.blocking import Slot


class FileSync:
    """Keeps `~/.hermes` of a slot as hermes-agent wants it."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._directory = posixpath.join(slot.home, ".hermes")
        self._lock = threading.Lock()
        self._errors: list[Exception] = []
        self._reported = False
        self._manager = FileSyncManager(
            get_files_fn=lambda: iter_sync_files(self._directory),
            upload_fn=lambda local, remote: self._upload([(local, remote)]),
            delete_fn=self._remove,
            bulk_upload_fn=self._upload,
        )

    def run(self) -> list[str]:
        """Copy changed files, at most every 5 s, and return a notice if it failed for the first time.

        Raises:
            ExecError: If the slot is lost.
        """
        if not self._lock.acquire(blocking=False):
            return []
        try:
            self._errors.clear()
            self._manager.sync()  # it logs failures and hides them
            for error in self._errors:
                if isinstance(error, ExecError):
                    raise error
            if not self._errors or self._reported:
                return []
            self._reported = True
            return [f"skills and credential files were not copied to {self._directory}: {self._errors[0]}"]
        finally:
            self._lock.release()

    def _upload(self, files: list[tuple[str, str]]) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="hermes-exec-") as staged:
                for local, remote in files:
                    copy = Path(staged, posixpath.relpath(remote, self._directory))
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(local, copy)
                self._slot.files.upload(staged, self._directory)
        except (ExecError, OSError) as error:
            self._errors.append(error)
            raise

    def _remove(self, paths: list[str]) -> None:
        try:
            for path in paths:
                if self._slot.files.exists(path):
                    self._slot.files.remove(path)
        except (ExecError, OSError) as error:
            self._errors.append(error)
            raise
