"""The rows of a search's matches, with the lines around them."""

from __future__ import annotations

from hermes_exec.results import SearchMatch, SearchResult
from hermes_exec.tools.files.search_files import format_matches


def test_lines_around_matches_stand_once_and_end_before_the_next_match() -> None:
    matches = tuple(
        SearchMatch("a", line, 1, f"hit {line}", (f"line {line - 1}",), (f"line {line + 1}", f"line {line + 2}"))
        for line in (2, 4, 9)
    )
    told = format_matches(SearchResult(matches, total=3), str)
    assert told["matches_text"].split("\n") == [
        "a",
        "  1- line 1",
        "  2: hit 2",
        "  3- line 3",
        "  4: hit 4",
        "  5- line 5",
        "  6- line 6",
        "  8- line 8",
        "  9: hit 9",
        "  10- line 10",
        "  11- line 11",
    ]


def test_each_match_is_looked_at_once() -> None:
    """A comparison of all matches with all others takes an hour."""
    matches = tuple(SearchMatch("a", line, 1, "x") for line in range(1, 200_001))
    told = format_matches(SearchResult(matches, total=200_000), str)
    assert told["matches_text"].count("\n") == 200_000
