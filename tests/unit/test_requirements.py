"""Which installed versions satisfy what an adapter needs."""

from __future__ import annotations

import re

import pytest

from hermes_exec.errors import ConfigError
from hermes_exec.requirements import require_version


@pytest.mark.parametrize("installed", ["0.3.285", "0.3.285.dev1", "0.3.300", "0.3.1000rc1"])
def test_version_within_the_bounds_is_accepted(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"target-x": installed}.__getitem__)
    require_version("adapter", "target-x>=0.3.285,<0.4")


@pytest.mark.parametrize("installed", ["0.3.284", "0.2.999", "0.4", "0.4.0", "0.10.1", "1.0"])
def test_version_outside_the_bounds_is_named(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"target-x": installed}.__getitem__)
    message = f"adapter needs target-x>=0.3.285,<0.4, installed: {installed}. Run: pip install 'target-x>=0.3.285,<0.4'"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        require_version("adapter", "target-x>=0.3.285,<0.4")


def test_missing_package_is_named() -> None:
    with pytest.raises(ConfigError, match="installed: none"):
        require_version("adapter", "no-such-package-x>=1,<2")
