"""Playwright's driver as a program that goes on when it cannot take a message of one browser, for it serves others, and
that has no keys of this process.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hermes_exec.backends.helpers import helper_environment

_DIRECTORY: ContextVar[str | None] = ContextVar("_DIRECTORY", default=None)
"""Where the program of a driver is written that starts now."""
_PROGRAM = "process.on('uncaughtException', () => {{}});\nrequire({});\n"
"""A message that is well formed and makes no sense has a handler of the driver fail, which ends it by default."""
_VARIABLES = "NODE_(OPTIONS|EXTRA_CA_CERTS)|PW_.*|DEBUG(_.*)?"
"""Names of the variables that a driver gets besides those of every helper program."""


@contextmanager
def run_hardened_driver() -> Iterator[None]:
    """Have a driver that is started meanwhile, by this task, go on after exceptions, with the environment of a helper
    program. Others are as they were.
    """
    transport: Any = importlib.import_module("playwright._impl.transport")
    default_executable, default_env = transport.compute_driver_executable, transport.get_driver_env
    if getattr(default_executable, "__module__", "") != __name__:

        def compute_driver_executable() -> tuple[str, str]:
            node, program = default_executable()
            if (directory := _DIRECTORY.get()) is None:
                return node, program
            script = Path(directory) / "driver.js"
            script.write_text(_PROGRAM.format(json.dumps(program)))
            return node, str(script)

        def get_driver_env() -> dict[str, str]:
            env: dict[str, str] = default_env()
            return env if _DIRECTORY.get() is None else helper_environment(_VARIABLES, env=env)

        transport.compute_driver_executable, transport.get_driver_env = compute_driver_executable, get_driver_env
    with tempfile.TemporaryDirectory(prefix="hermes-playwright-") as directory:
        token = _DIRECTORY.set(directory)
        try:
            yield
        finally:
            _DIRECTORY.reset(token)
