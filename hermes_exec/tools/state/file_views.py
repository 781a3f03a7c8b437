"""File versions that one model has seen: used to report changes by others and to avoid sending the same text twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_FILES = 2_000
_MAX_PAGES = 2_000


class Page(NamedTuple):
    """A range of lines of a file."""

    path: str
    offset: int
    limit: int


def fingerprint_of(data: bytes) -> bytes:
    """Return a short hash of a file's content."""
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass
class FileViews:
    """Fingerprints of the files as this model last saw or wrote them.

    They are hashes of the content, so they do not depend on a clock.
    """

    _files: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    _pages: OrderedDict[Page, tuple[bytes, int]] = field(default_factory=OrderedDict)

    def record(self, path: str, fingerprint: bytes) -> None:
        """Store the fingerprint of a file that the model just read or wrote."""
        self._files[path] = fingerprint
        self._files.move_to_end(path)
        if len(self._files) > _MAX_FILES:
            self._files.popitem(last=False)

    def forget(self, path: str) -> None:
        """Forget a file that was deleted or moved."""
        self._files.pop(path, None)

    def has_changed(self, path: str, fingerprint: bytes | None) -> bool:
        """Return whether the file differs from the version that the model last saw (None: it was deleted).

        False for a file that the model never saw.
        """
        return path in self._files and self._files[path] != fingerprint

    def count_repeats(self, page: Page, fingerprint: bytes) -> int:
        """Count this request for a page and return how many requests came before it since the text was sent.

        The count restarts at 0 if the file has changed.
        """
        last_fingerprint, count = self._pages.pop(page, (b"", -1))
        count = count + 1 if last_fingerprint == fingerprint else 0
        self._pages[page] = (fingerprint, count)
        if len(self._pages) > _MAX_PAGES:
            self._pages.popitem(last=False)
        return count

    def copy(self) -> FileViews:
        """Return a copy that changes by itself."""
        return FileViews(self._files.copy(), self._pages.copy())

    def forget_pages(self) -> None:
        """Send every page in full again, as needed after the model's context was cut."""
        self._pages.clear()


@dataclass
class Repetition:
    """Counts consecutive equal searches with equal results."""

    _last: tuple[str, bytes] | None = None
    _count: int = 0

    def count(self, call: str, result: bytes) -> int:
        """Count this search and return how often in a row it returned the same result."""
        self._count = self._count + 1 if self._last == (call, result) else 1
        self._last = (call, result)
        return self._count

    def interrupt(self) -> None:
        """Reset the count, because another tool was called."""
        self._last, self._count = None, 0
