"""A hostile sandbox does to its driver only the things in docs/evidence/hostile-sandboxes.md, at little cost."""

from __future__ import annotations

import anyio
import pytest

from tests.attack.sandboxes import ASSAULTS, BY_NAME, MOST_MIB, assaulted, line, written


@pytest.mark.parametrize("name", BY_NAME)
def test_it_comes_to_what_the_page_says(name: str) -> None:
    outcome = anyio.run(assaulted, BY_NAME[name])
    assert line(BY_NAME[name], outcome) in written()
    assert outcome.more_mib < MOST_MIB


def test_the_page_has_a_row_for_each() -> None:
    names = [row.partition("**: ")[0] for row in written()]
    assert names == [f"| **{assault.name}" for assault in ASSAULTS]
