"""The pages are all in the navigation, links and references lead to headings, and lines of prose are short."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "dev" not in p.relative_to(DOCS).parts)
LARGEST_GROUP = 7
LONGEST_LINE = 140
PRODUCT = ("hermes_exec", "hermes_agent", "integrations", "runner")
REFERENCE = re.compile(r"docs/(\S+\.md) \(\"([^\"]+)\"\)")
LINK = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")


def navigation() -> list[dict[str, object]]:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    entries = yaml.safe_load("nav:" + text.partition("\nnav:")[2])["nav"]
    assert isinstance(entries, list)
    return entries


def without_code(text: str) -> str:
    """Return the lines of a page that are not in fenced blocks."""
    lines, fence = [], ""
    for line in text.splitlines():
        if match := re.match(r" *(`{3,}|~{3,})", line):
            fence = match[1] if not fence else "" if line.strip() == fence else fence
        elif not fence:
            lines.append(line)
    return "\n".join(lines)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as the site generator makes them."""
    names = set()
    for title in re.findall(r"^#+ (.+)$", without_code(page.read_text("utf-8")), flags=re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        names.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()))
    return names


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_groups_of_the_navigation_are_small() -> None:
    sizes = {title: len(pages) for entry in navigation() for title, pages in entry.items() if isinstance(pages, list)}
    assert max(sizes.values()) <= LARGEST_GROUP, sizes


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_headings(page: Path) -> None:
    missing = [
        f"{target}#{anchor}"
        for target, anchor in LINK.findall(without_code(page.read_text("utf-8")))
        if anchor not in anchors(page.parent / target if target else page)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_lines_of_prose_are_short(page: Path) -> None:
    lines = without_code(page.read_text("utf-8")).splitlines()
    assert [line for line in lines if len(line) > LONGEST_LINE and not line.startswith("|")] == []


def test_references_of_the_code_lead_to_headings() -> None:
    missing = []
    for directory in PRODUCT:
        for file in (ROOT / directory).rglob("*"):
            if file.suffix in {".py", ".go"}:
                text = re.sub(r"\s*\n\s*(?:#|//)\s*", " ", file.read_text("utf-8"))
                for name, title in REFERENCE.findall(text):
                    if f"# {title}\n" not in (DOCS / name).read_text("utf-8"):
                        missing.append(f"{file.relative_to(ROOT)}: {title}")
    assert missing == []
