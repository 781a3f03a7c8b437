"""Playwright's driver as a program that goes on when it cannot take a message of one browser: it serves others, too."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

_FOLDER: ContextVar[str | None] = ContextVar("_FOLDER", default=None)
"""Where the program of a driver is written that starts now."""
_PROGRAM = "process.on('uncaughtException', () => {{}});\nrequire({});\n"
"""A message that is well formed and makes no sense has a handler of the driver fail, which ends it by default."""


@contextmanager
def lasting() -> Iterator[None]:
    """Have a driver that is started meanwhile, by this task, go on after exceptions. Others are as they were."""
    transport: Any = importlib.import_module("playwright._impl.transport")
    usual = transport.compute_driver_executable
    if getattr(usual, "__module__", "") != __name__:

        def compute_driver_executable() -> tuple[str, str]:
            node, program = usual()
            if (folder := _FOLDER.get()) is None:
                return node, program
            script = Path(folder) / "driver.js"
            script.write_text(_PROGRAM.format(json.dumps(program)))
            return node, str(script)

        transport.compute_driver_executable = compute_driver_executable
    with tempfile.TemporaryDirectory(prefix="hermes-playwright-") as folder:
        token = _FOLDER.set(folder)
        try:
            yield
        finally:
            _FOLDER.reset(token)
