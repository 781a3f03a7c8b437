"""A start script for Playwright's driver. With it, the driver survives malformed messages and has no secrets.

A driver serves several browsers, so it must keep running if it cannot handle a message of one browser. It does not
inherit the credentials of this process.
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
"""The directory for the script of the driver that starts now."""
_PROGRAM = "process.on('uncaughtException', () => {{}});\nrequire({});\n"
"""Ignore exceptions: a well-formed message without meaning makes a handler fail, which ends the driver by default."""
_VARIABLES = "NODE_(OPTIONS|EXTRA_CA_CERTS)|PW_.*|DEBUG(_.*)?"
"""Names of the environment variables for the driver, in addition to those for all helper programs."""


@contextmanager
def harden_driver() -> Iterator[None]:
    """Make a driver that this task starts inside the block survive exceptions and use a helper program's environment.

    Drivers that other tasks start are not affected.
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
