"""A backend of another package, whose engine wants a token and says what it was given; as an installed distribution."""

from __future__ import annotations

from pathlib import Path

MODULE = '''
"""Local sandboxes behind a door."""

import logging

from pydantic import SecretStr

from hermes_exec.backends.base import Labels, LaunchSpec
from hermes_exec.backends.local.backend import LocalBackend
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.config import ConfigModel
from hermes_exec.errors import BackendUnavailable, LaunchError


class Key(ConfigModel):
    name: str = "k"
    phrase: SecretStr | None = None


class Config(LocalConfig):
    backend = "guarded"
    token: SecretStr
    keys: tuple[Key, ...] = ()


def create(config):
    return Guarded(config)


class Guarded(LocalBackend):
    name = "guarded"

    def __init__(self, config):
        super().__init__(config)
        self.token = config.token.get_secret_value()

    def _enter(self):
        if self.token.startswith("wrong"):
            try:
                raise ValueError(f"X-Token: {self.token}")
            except ValueError as error:
                raise BackendUnavailable(f"the token {self.token} is refused: set another one") from error

    async def check(self, spec):
        self._enter()
        await super().check(spec)

    async def launch(self, spec, labels):
        if self.token.startswith("late"):
            raise LaunchError(f"no sandbox for {self.token}", retryable=False)
        return await super().launch(spec, labels)

    async def sandboxes(self):
        self._enter()
        return await super().sandboxes()

    async def reap(self, which):
        self._enter()
        return await super().reap(which)
'''
POINTS = "[hermes_exec.backends]\nguarded = hermes_guarded\nhalf = hermes_guarded.not_there\n"


def install(directory: Path) -> Path:
    """Put the distribution into a directory, which is then to be on the path of a program; it has a broken backend
    too.
    """
    (directory / "hermes_guarded.py").write_text(MODULE)
    info = directory / "hermes_guarded-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hermes-guarded\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return directory
