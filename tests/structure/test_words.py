"""Names and sentences of the product stay plain: one noun for each thing, verbs for functions, English of the field."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.support.words import CLAUSES, Count, count, is_participle

ROOT = Path(__file__).resolve().parents[2]
TREES = ("hermes_exec", "hermes_agent", "integrations", "docs", "README.md", "AGENTS.md", "CHANGELOG.md")
SORTS = ("documentation", "comments", "messages")
LIMITS = {
    "participles": 1.0,
    "not_verbs": 1.0,
    "vague": 3.0,
    **{f"{sort} {clause}": 1.0 if clause == "what" else 0.5 for sort in SORTS for clause in CLAUSES},
}
"""Percents of functions and docstrings, a number of locals, and clauses in 1,000 words."""
FORBIDDEN = re.compile(r"(?<![a-z])(box|boxes|folders?|rungs?|ladder|lend|lends|lent|tenancy)(?![a-z])", re.IGNORECASE)
"""Nouns and verbs that docs/glossary.md replaces."""
ALLOWED = re.compile(r"text box|\bbox=|(is|was) rung|shared_folder/|/box/")
OTHER_BOXES = ("hermes_exec/tools/browser/annotations.py", "examples/browser/shop/")
"""Modules about the boxes of elements in a page."""
TWINS = "hermes_exec/blocking.py"
"""Its classes are the blocking form of the classes with the same names."""
IN_SLOTS = "hermes_exec/tools/code/programs/"
"""Programs that run in a slot, without this package."""


@cache
def figures(tree: str) -> Count:
    return count(ROOT / tree)


@pytest.mark.parametrize("tree", TREES)
def test_names_and_sentences_are_plain(tree: str) -> None:
    above = {name: value for name, value in figures(tree).shares().items() if value > LIMITS[name]}
    assert not above, f"above the limits; `python -m tests.support.words {tree}` lists the places"


def test_functions_of_the_runner_are_verbs() -> None:
    named = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in (ROOT / "runner").rglob("*.go")
        if not file.name.endswith("_test.go")
        for name in re.findall(r"^func (?:\([^)]*\) )?(\w+)\(", file.read_text("utf-8"), flags=re.MULTILINE)
        if is_participle(name)
    ]
    assert not named, "\n".join(named)


def test_each_package_of_the_runner_has_a_doc_comment() -> None:
    packages = {file.parent for file in (ROOT / "runner").rglob("*.go") if not file.name.endswith("_test.go")}
    missing = [str(package.relative_to(ROOT)) for package in packages if not (package / "doc.go").exists()]
    assert not missing, missing


def test_class_name_means_one_thing() -> None:
    places = defaultdict(set)
    for tree in ("hermes_exec", "hermes_agent", "integrations"):
        for file in (ROOT / tree).rglob("*.py"):
            name = file.relative_to(ROOT).as_posix()
            if "/data/" in name or name == TWINS or name.startswith(IN_SLOTS):
                continue
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_one_noun_for_each_thing() -> None:
    found = []
    for tree in ("hermes_exec", "hermes_agent", "integrations", "runner", "docs", "examples", *TREES[-3:]):
        path = ROOT / tree
        for file in [path] if path.is_file() else path.rglob("*"):
            name = file.relative_to(ROOT).as_posix()
            if file.suffix not in {".py", ".go", ".md"} or "/data/" in name or name.startswith(OTHER_BOXES):
                continue
            for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
                if FORBIDDEN.search(ALLOWED.sub("", line)):
                    found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not found, "docs/glossary.md has the nouns:\n" + "\n".join(found)
