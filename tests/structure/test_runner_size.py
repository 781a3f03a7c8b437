"""The runner's packages, types and lines stay small: what outgrows one is split, not squeezed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

RUNNER = Path(__file__).parents[2] / "runner"
MOST_LINES = 2000
"""Of code in a package: without tests, comments and blank lines, the files of all systems together."""
MOST_METHODS = 25
"""Of a type; one that each system has in its own way counts once."""
LONGEST_LINE = 120
TAB = " " * 4
METHOD = re.compile(r"^func \(\w*\s*\*?(\w+)(?:\[[^]]*\])?\) (\w+)", re.MULTILINE)
SOURCES = [path for path in RUNNER.rglob("*.go") if not path.name.endswith("_test.go")]


def code_lines(text: str) -> int:
    lines = (line.strip() for line in text.splitlines())
    return sum(1 for line in lines if line and not line.startswith("//"))


def test_no_package_is_too_large() -> None:
    sizes: Counter[str] = Counter()
    for path in SOURCES:
        sizes[str(path.parent.relative_to(RUNNER))] += code_lines(path.read_text())
    assert len(sizes) > 10
    assert {name: size for name, size in sizes.items() if size > MOST_LINES} == {}


def test_no_type_has_too_many_methods() -> None:
    methods: defaultdict[str, set[str]] = defaultdict(set)
    for path in SOURCES:
        for receiver, method in METHOD.findall(path.read_text()):
            methods[f"{path.parent.name}.{receiver}"].add(method)
    assert len(methods) > 50
    assert {name: len(found) for name, found in methods.items() if len(found) > MOST_METHODS} == {}


def test_no_line_is_too_long() -> None:
    long = [
        f"{path.relative_to(RUNNER)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line.replace("\t", TAB)) > LONGEST_LINE
    ]
    assert long == []
