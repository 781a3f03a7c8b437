"""Files that pages make a browser download: they are stored in ~/Downloads of the slot under their own names."""

from __future__ import annotations

import contextlib
import itertools
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes_exec.errors import ExecError
from hermes_exec.tools.browser.background_tasks import BackgroundTasks

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

    from hermes_exec.slot.slot import Slot

MAX_URL_CHARS = 2000
MAX_FILES = 100
"""The maximum number of downloads not yet reported to the model. Further downloads are cancelled."""
MAX_NAME_BYTES, MAX_SUFFIX_BYTES = 255, 100
"""The maximum size of a file's name, and of its suffix."""


@dataclass
class FileDownload:
    """A download; `path` is its path in the slot, once it is complete."""

    url: str
    name: str
    state: str = "in progress"
    path: str | None = None
    size: int = 0
    reported: bool = False
    arrival_path: str | None = None
    """The path at which the browser stored it, under a generated name."""

    @property
    def under_way(self) -> bool:
        """Whether it is still downloading, or is not renamed yet."""
        return self.state == "in progress" or (self.state == "completed" and self.path is None)


class Downloads:
    """The downloads of one browser. `on_change` is called when one starts, progresses or ends."""

    def __init__(self, slot: Slot, on_change: Callable[[], None]) -> None:
        self._slot, self._on_change = slot, on_change
        self._most_mb = slot.browser_rules.download_mb
        self._directory = f"{slot.home.rstrip('/')}/Downloads"
        self._files: dict[str, FileDownload] = {}
        self._session: CDPSession | None = None
        self._stopping = BackgroundTasks()
        self.has_begun = False
        """Whether a download has started since this was set to False."""

    async def accept(self, session: CDPSession, context_id: str) -> None:
        """Accept the downloads of a browser's context; `session` is a session with the browser."""
        self._session = session
        session.on("Browser.downloadWillBegin", self._on_begin)
        session.on("Browser.downloadProgress", self._on_progress)
        await session.send(
            "Browser.setDownloadBehavior",
            {
                "behavior": "allowAndName",
                "browserContextId": context_id,
                "downloadPath": self._directory,
                "eventsEnabled": True,
            },
        )

    def downloads_to_report(self) -> list[FileDownload]:
        """Return the downloads whose end was not reported to the model."""
        return [download for download in self._files.values() if not download.reported]

    def refuse(self, url: str, reason: str) -> None:
        """Refuse all unfinished downloads from a URL."""
        for download in list(self._files.values()):
            if download.url == url[:MAX_URL_CHARS] and download.path is None:
                download.state = f"refused: {reason}"

    @property
    def in_progress(self) -> bool:
        """Whether a download is in progress."""
        return any(download.state == "in progress" for download in self._files.values())

    async def settle(self) -> None:
        """Rename complete downloads to their own names, or to the next free ones, and remove refused ones."""
        files = self._slot.files
        for download in list(self._files.values()):
            if download.arrival_path is None or download.path is not None:
                continue
            try:
                if download.state == "completed":
                    download.path = await self._move_to_name(download.arrival_path, download.name)
                else:
                    await files.remove(download.arrival_path, missing_ok=True)
            except OSError as error:  # a process in the slot changed the file or its directory
                if isinstance(error, ExecError):
                    raise
                download.state = f"lost: {error.strerror or error}"
            if download.path is None:
                download.arrival_path = None

    async def _move_to_name(self, arrived: str, name: str) -> str:
        """Rename a download to its name or the next free one, and return the new path."""
        for number in itertools.count(1):
            path = (
                f"{self._directory}/{number_name(posixpath.basename(name.replace(chr(0), '')) or 'download', number)}"
            )
            with contextlib.suppress(FileExistsError):
                await self._slot.files.move(arrived, path, overwrite=False)
                return path
        raise AssertionError

    def _on_begin(self, event: dict[str, Any]) -> None:
        self.has_begun = True
        guid, name = str(event.get("guid")), str(event.get("suggestedFilename"))[:MAX_URL_CHARS]
        if len(self._files) >= MAX_FILES:
            reported = [key for key, download in self._files.items() if download.reported]
            if not reported:
                self._stop(guid)
                return
            del self._files[reported[0]]
        self._files[guid] = FileDownload(str(event.get("url"))[:MAX_URL_CHARS], name)
        self._on_change()

    def _on_progress(self, event: dict[str, Any]) -> None:
        guid = str(event.get("guid"))
        download = self._files.get(guid)
        if download is None:
            return
        download.size, total = _byte_count(event.get("receivedBytes")), _byte_count(event.get("totalBytes"))
        state = event.get("state")
        if state == "completed":
            download.arrival_path = f"{self._directory}/{posixpath.basename(guid)}"
        if max(download.size, total) > self._most_mb << 20:
            if state == "inProgress" and download.state == "in progress":
                self._stop(guid)
            download.state = f"refused: larger than {self._most_mb} MiB"
        elif state in ("completed", "canceled") and download.state == "in progress":
            download.state = str(state)
        self._on_change()

    def _stop(self, guid: str) -> None:
        assert self._session is not None
        self._stopping.start(partial(self._session.send, "Browser.cancelDownload", {"guid": guid}))


def _byte_count(number: object) -> int:
    """Return a number of bytes from a message; the browser may be another program, so any value may come."""
    return int(min(max(number, 0), 1 << 60)) if isinstance(number, int | float) else 0


def number_name(name: str, number: int) -> str:
    """Return a file name with a number (none for the first).

    The name is shortened to the limit of file systems and keeps its suffix.
    """
    stem, dot, ending = name.partition(".")
    if len(ending.encode("utf-8", "replace")) > MAX_SUFFIX_BYTES:
        stem, dot, ending = name, "", ""
    rest = f"{'' if number == 1 else f'-{number}'}{dot}{ending}"
    room = MAX_NAME_BYTES - len(rest.encode("utf-8", "replace"))
    return stem.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + rest
