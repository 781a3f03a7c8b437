"""The files that pages have a browser fetch: into ~/Downloads of the slot, under the names that they came with."""

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
"""Downloads of one browser of which the model was not told; further ones are broken off."""
MAX_NAME_BYTES, MAX_SUFFIX_BYTES = 255, 100
"""Bytes of a file's name, and of what counts as its ending."""


@dataclass
class FileDownload:
    """A file that a page had the browser fetch; `path` is where it is in the slot, once it is there."""

    url: str
    name: str
    state: str = "in progress"
    path: str | None = None
    size: int = 0
    reported: bool = False
    arrival_path: str | None = None
    """Where the browser has put it, under a name of its own."""

    @property
    def under_way(self) -> bool:
        """Whether it is still coming, or waits for its name."""
        return self.state == "in progress" or (self.state == "completed" and self.path is None)


class Downloads:
    """The downloads of one browser; `on_change` is called when one begins, goes on or ends."""

    def __init__(self, slot: Slot, on_change: Callable[[], None]) -> None:
        self._slot, self._on_change = slot, on_change
        self._most_mb = slot.browser_rules.download_mb
        self._directory = f"{slot.home.rstrip('/')}/Downloads"
        self._files: dict[str, FileDownload] = {}
        self._session: CDPSession | None = None
        self._stopping = BackgroundTasks()
        self.began = False
        """Whether one began since this was set to false."""

    async def accept(self, session: CDPSession, context_id: str) -> None:
        """Take the downloads of a browser's context; `session` is one with the browser."""
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
        """Those whose end the model was not told."""
        return [download for download in self._files.values() if not download.reported]

    def refuse(self, url: str, why: str) -> None:
        """Keep nothing that came from a URL."""
        for download in list(self._files.values()):
            if download.url == url[:MAX_URL_CHARS] and download.path is None:
                download.state = f"refused: {why}"

    @property
    def in_progress(self) -> bool:
        """Whether one still comes."""
        return any(download.state == "in progress" for download in self._files.values())

    async def settle(self) -> None:
        """Give those that are complete the names that they came with, or the next ones that are free, and remove those
        that are refused and came all the same.
        """
        files = self._slot.files
        for download in list(self._files.values()):
            if download.arrival_path is None or download.path is not None:
                continue
            try:
                if download.state == "completed":
                    download.path = await self._move_to_name(download.arrival_path, download.name)
                else:
                    await files.remove(download.arrival_path, missing_ok=True)
            except OSError as error:  # somebody in the slot has it, or its directory, no more as it was
                if isinstance(error, ExecError):
                    raise
                download.state = f"lost: {error.strerror or error}"
            if download.path is None:
                download.arrival_path = None

    async def _move_to_name(self, arrived: str, name: str) -> str:
        """The path of a file that has come, under its name or the next one that is free."""
        for number in itertools.count(1):
            path = (
                f"{self._directory}/{number_name(posixpath.basename(name.replace(chr(0), '')) or 'download', number)}"
            )
            with contextlib.suppress(FileExistsError):
                await self._slot.files.move(arrived, path, overwrite=False)
                return path
        raise AssertionError

    def _on_begin(self, event: dict[str, Any]) -> None:
        self.began = True
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
    """A number of bytes, as a browser tells it that may be another program."""
    return int(min(max(number, 0), 1 << 60)) if isinstance(number, int | float) else 0


def number_name(name: str, number: int) -> str:
    """A name with a number, except the first, in what a file system takes; its ending is kept."""
    stem, dot, ending = name.partition(".")
    if len(ending.encode("utf-8", "replace")) > MAX_SUFFIX_BYTES:
        stem, dot, ending = name, "", ""
    rest = f"{'' if number == 1 else f'-{number}'}{dot}{ending}"
    room = MAX_NAME_BYTES - len(rest.encode("utf-8", "replace"))
    return stem.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + rest
