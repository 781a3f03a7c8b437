"""Names that resemble one that is missing: the same as difflib's, for names that are made to be hard to compare too."""

from __future__ import annotations

import difflib
import random

from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.tools.files.read_file import near_names

NAMES = st.text("abc._", min_size=1, max_size=12)


@given(NAMES, st.lists(NAMES, unique=True, max_size=30))
def test_the_nearest_names_are_those_of_difflib(name: str, others: list[str]) -> None:
    def likeness(found: list[str]) -> list[float]:
        return [difflib.SequenceMatcher(None, other, name).ratio() for other in found]

    near, usual = near_names(name, others), difflib.get_close_matches(name, others, n=5, cutoff=0.5)
    assert likeness(near) == likeness(usual)


def test_thousands_of_long_names_of_two_letters_are_not_all_compared() -> None:
    """It takes minutes to compare them all."""
    chance = random.Random(1)
    others = ["".join(chance.choices("ab", k=199)) for _ in range(5_000)]
    assert len(near_names("ab" * 99 + "a", others)) <= 5
