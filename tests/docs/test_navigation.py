"""Every page is in the navigation, in groups of at most seven, and links lead to headings that exist."""

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
LINK = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")


def navigation() -> list[dict[str, object]]:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    entries = yaml.safe_load("nav:" + text.partition("\nnav:")[2])["nav"]
    assert isinstance(entries, list)
    return entries


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


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
