"""Environments of adapter tests: what they need, and the reason where one cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.doors import Door, DoorClosed, door_names, prepare


@pytest.mark.parametrize("name", door_names())
def test_door_names_its_adapter_and_pins_its_target(name: str) -> None:
    door = Door.read(name)
    assert door.package is None or door.package.startswith("hermes_")
    assert [requirement for requirement in (*door.requirements, *door.bare) if "==" in requirement]


def test_door_without_its_python_is_closed_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_DOORS", str(tmp_path))
    with pytest.raises(DoorClosed, match=r"needs Python 3\.99: install one"):
        prepare(Door("harbor", "hermes_harbor", ("3.99",), ("harbor==1",)))
    assert list(tmp_path.iterdir()) == []
