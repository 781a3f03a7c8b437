"""The program `hermes-exec` as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import BackendCase

PROGRAM = (sys.executable, "-m", "hermes_exec.cli.main")


@dataclass(frozen=True)
class Cli:
    """Starts the program; settings of the environment are kept out."""

    def start(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
    ) -> subprocess.Popen[str]:
        """Start it and return the process."""
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment() | dict(env or {}),
            start_new_session=start_new_session,
        )

    def run(
        self, *arguments: str, text: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
        with self.start(*arguments, stdin=stdin, env=env) as process:
            out, error = process.communicate(text, timeout=120)
            return subprocess.CompletedProcess(arguments, process.returncode, out, error)

    def json(self, *arguments: str, code: int = 0) -> Any:  # noqa: ANN401 - what JSON holds
        """Run it with --json, expect the exit code, and return what it printed."""
        done = self.run(*arguments)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "TERMINAL_"))} | {"NO_COLOR": "1"}


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def on(backend: BackendCase) -> Sequence[str]:
    """The options that choose the backend of this test."""
    image = backend.options.get("image")
    return ("--backend", backend.backend, *(("--image", str(image)) if image else ()))


Start = Callable[..., subprocess.Popen[str]]
