"""Names and sentences of the product stay as plain as they are: the figures only go down, until TARGETS are reached."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.words import CLAUSES, Count, count, is_participle

ROOT = Path(__file__).resolve().parents[2]
SORTS = ("documentation", "comments", "messages")
TARGETS = {
    "participles": 2.0,
    "not_verbs": 5.0,
    "vague": 10.0,
    **{f"{sort} {clause}": 1.0 if clause == "what" else 0.5 for sort in SORTS for clause in CLAUSES},
}
LIMITS = {
    "hermes_exec": (7.9, 39.5, 295, 10.3, 5.3, 2.8, 10.4, 6.0, 3.8, 3.2, 6.3, 1.9),
    "hermes_agent": (14.5, 59.0, 93, 8.9, 5.9, 2.8, 5.2, 5.2, 2.3, 2.4, 2.4, 0.5),
    "integrations": (8.9, 54.7, 91, 9.9, 6.3, 3.7, 10.0, 11.4, 1.5, 1.6, 4.2, 2.1),
    "docs": (0, 0, 0, 6.9, 5.5, 2.6, 0, 0, 0, 0, 0, 0),
}
"""What each tree may have of each of TARGETS, in their order: percents of functions, locals, clauses in 1,000 words."""
GO_PARTICIPLES = 0
"""Functions of the runner that are named by a participle."""
SLACK = 1.1
"""A limit is lowered when the figure is a tenth below it, so that what was gained is kept."""


@cache
def figures(tree: str) -> Count:
    return count(ROOT / tree)


@pytest.mark.parametrize("tree", LIMITS)
def test_the_words_of_a_tree_get_no_worse(tree: str) -> None:
    shares = figures(tree).shares()
    limits = dict(zip(TARGETS, LIMITS[tree], strict=True))
    worse = {name: (value, limits[name]) for name, value in shares.items() if value > max(limits[name], TARGETS[name])}
    assert not worse, f"above the limits; `python -m tests.support.words {tree}` lists the places"
    lower = {
        name: (shares[name], limit)
        for name, limit in limits.items()
        if limit > TARGETS[name] and max(shares[name] * SLACK, TARGETS[name]) < limit
    }
    assert not lower, "better than the limits: lower them in LIMITS"


def test_functions_of_the_runner_are_verbs() -> None:
    named = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in (ROOT / "runner").rglob("*.go")
        if not file.name.endswith("_test.go")
        for name in re.findall(r"^func (?:\([^)]*\) )?(\w+)\(", file.read_text("utf-8"), flags=re.MULTILINE)
        if is_participle(name)
    ]
    assert len(named) <= GO_PARTICIPLES, "\n".join(named)
