"""A pause of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the garbage collector in the block, which makes many objects and keeps them. The collector would search all
    of them again and again, for a third of the time. After the block they are old objects, which it seldom searches.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            _promote_objects()
            gc.enable()


def _promote_objects() -> None:
    """Move all objects to the oldest generation. Otherwise, the collector would search them at once.

    Nothing is done in a program that has frozen objects itself: they would be no longer frozen.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
