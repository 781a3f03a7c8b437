"""What a test was doing when its time was over: `pytest-timeout` says that where nobody hears a worker of xdist."""

from __future__ import annotations

import faulthandler
import gc
import inspect
import os
import threading
from collections.abc import Generator, Iterator
from typing import Any, TextIO

import pytest

BEFORE_S = 5.0
"""How long before `pytest-timeout` ends the process it is told."""


class Hangs:
    """Writes what threads and coroutines wait for to the standard error of the process, also of a worker of xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._out = os.fdopen(os.dup(2), "w", encoding="utf-8")  # before a test captures what is written there
        config.add_cleanup(self._out.close)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch one test, with its fixtures."""
        marked = item.get_closest_marker("timeout")
        timeout_s = float(marked.args[0] if marked else item.config.getini("timeout"))
        watch = threading.Timer(timeout_s - BEFORE_S, tell, [item.nodeid, self._out])
        watch.daemon = True
        watch.start()
        try:
            return (yield)
        finally:
            watch.cancel()


def tell(name: str, out: TextIO) -> None:
    """Write the stacks of all threads, and of all coroutines that wait, to a file that has a descriptor."""
    out.write(f"\n{name} hangs:\n")
    out.flush()
    faulthandler.dump_traceback(out)
    coroutines = [each for each in gc.get_objects() if inspect.iscoroutine(each)]
    inner = {id(each.cr_await) for each in coroutines}
    for each in coroutines:
        if id(each) not in inner and inspect.getcoroutinestate(each) == inspect.CORO_SUSPENDED:
            out.writelines(["coroutine:\n", *chain(each)])
    out.flush()


def chain(coroutine: Any) -> Iterator[str]:  # noqa: ANN401 -- a coroutine, generator, or other awaitable
    """Where a coroutine waits, and those in it that it waits for."""
    while coroutine is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(coroutine, f"{kind}_frame")), None)
        if kind is None or (frame := getattr(coroutine, f"{kind}_frame")) is None:
            yield f"  for {coroutine!r:.200}\n"
            return
        yield f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}\n"
        coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
