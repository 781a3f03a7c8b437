"""What one model has seen of the files: to tell it of changes by others, and not to send the same text twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_FILES = 2_000
_MAX_PAGES = 2_000


class Page(NamedTuple):
    """A range of a file that was read."""

    path: str
    offset: int
    limit: int


def fingerprint_of(data: bytes) -> bytes:
    """A short fingerprint of a file's content."""
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass
class FileViews:
    """Fingerprints of the files as this model last saw or wrote them. They are of the slot's own bytes, so no clock
    is involved.
    """

    _files: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    _pages: OrderedDict[Page, tuple[bytes, int]] = field(default_factory=OrderedDict)

    def record(self, path: str, fingerprint: bytes) -> None:
        """Remember how the file looked when the model read or wrote it."""
        self._files[path] = fingerprint
        self._files.move_to_end(path)
        if len(self._files) > _MAX_FILES:
            self._files.popitem(last=False)

    def forget(self, path: str) -> None:
        """Forget a file that is gone or moved."""
        self._files.pop(path, None)

    def has_changed(self, path: str, fingerprint: bytes | None) -> bool:
        """True when the file is another one now (None: it is gone) than the model last saw; False for one that it
        never saw.
        """
        return path in self._files and self._files[path] != fingerprint

    def count_repeats(self, page: Page, fingerprint: bytes) -> int:
        """How often this page was asked for again since its text was given, the file being the same; 0 is the first
        time.
        """
        last_fingerprint, count = self._pages.pop(page, (b"", -1))
        count = count + 1 if last_fingerprint == fingerprint else 0
        self._pages[page] = (fingerprint, count)
        if len(self._pages) > _MAX_PAGES:
            self._pages.popitem(last=False)
        return count

    def forget_pages(self) -> None:
        """Give every page in full again, as after the model's context was cut."""
        self._pages.clear()


@dataclass
class Repetition:
    """Counts equal searches in a row that found the same."""

    _last: tuple[str, bytes] | None = None
    _count: int = 0

    def count(self, call: str, result: bytes) -> int:
        """How often, this time included, the call was made in a row with the same result."""
        self._count = self._count + 1 if self._last == (call, result) else 1
        self._last = (call, result)
        return self._count

    def interrupt(self) -> None:
        """End a run of equal searches: another tool was called."""
        self._last, self._count = None, 0
