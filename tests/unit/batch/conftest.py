"""Fixtures of tests of batch runs."""

from __future__ import annotations

import pytest

from tests.unit.batch.exporting import CommandLine


@pytest.fixture
def batch(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs commands of `hermes-exec batch` in this process."""
    return CommandLine(capfd, monkeypatch)
