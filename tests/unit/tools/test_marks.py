"""Lines of a snapshot for elements that have a mark."""

from __future__ import annotations

from hermes_exec.tools.browser.marks import ROLE, Marks, show_marks
from hermes_exec.tools.browser.snapshot import compact

TREE = f"""- generic [ref=e1]:
  - generic [ref=e2]: plain
  - {ROLE} [ref=e3] [cursor=pointer]: Delete
  - generic [ref=e4] [cursor=pointer]:
    - {ROLE} "title" [active] [ref=e5]: inside
    - '{ROLE} "a: b" [ref=e6]': quoted
  - text: {ROLE} [ref=e7]"""


def test_marked_line_is_generic_and_clickable() -> None:
    assert (
        compact(show_marks(TREE))
        == f"""- text: plain
- generic [ref=e3] [cursor=pointer]: Delete
- generic [ref=e4] [cursor=pointer]:
  - generic "title" [active] [ref=e5] [cursor=pointer]: inside
  - 'generic "a: b" [ref=e6] [cursor=pointer]': quoted
- text: {ROLE} [ref=e7]"""
    )


def test_marks_selector_has_places_alone() -> None:
    assert Marks([1, 5], [7]).selector == "hermes-marks=[[1, 5], [7]]"
