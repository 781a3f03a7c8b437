"""Toolsets and distributions: every known name, what is not shipped, and seeded draws."""

from __future__ import annotations

from collections import Counter

import pytest

from hermes_exec.errors import ConfigError
from hermes_exec.tools.browser import playwright_driver
from hermes_exec.tools.catalog.distributions import DISTRIBUTIONS, draw_toolsets, list_distributions
from hermes_exec.tools.catalog.toolsets import KNOWN_TOOLS, SHIPPED, TOOLSETS, require_tool, select

NAMED = [
    "web",
    "search",
    "x_search",
    "terminal",
    "file",
    "code_execution",
    "browser",
    "browser_extra",
    "vision",
    "video",
    "image_gen",
    "video_gen",
    "tts",
    "computer_use",
    "skills",
    "todo",
    "memory",
    "session_search",
    "clarify",
    "delegation",
    "cronjob",
    "project",
    "kanban",
    "context_engine",
    "homeassistant",
    "discord",
    "discord_admin",
    "yuanbao",
    "feishu_doc",
    "feishu_drive",
    "spotify",
    "debugging",
    "safe",
    "coding",
    "hermes-cli",
    "hermes-acp",
    "hermes-api-server",
    "hermes-cron",
    "hermes-webhook",
    "hermes-gateway",
]


SLOT_TOOLS = SHIPPED[:6]
WITHOUT_EXTRA = tuple(name for name in SHIPPED if name not in TOOLSETS["browser_extra"])


def test_every_toolset_of_the_table_is_known() -> None:
    assert set(NAMED) <= set(TOOLSETS)
    assert sum(name.startswith("hermes-") for name in TOOLSETS) == 18 + 6


@pytest.mark.parametrize(
    ("toolset", "tools"),
    [
        ("terminal", ("terminal", "process")),
        ("file", ("read_file", "write_file", "patch", "search_files")),
        ("debugging", SLOT_TOOLS),
        ("coding", WITHOUT_EXTRA),
        ("hermes-cli", WITHOUT_EXTRA),
        ("all", SHIPPED),
        ("*", SHIPPED),
        ("code_execution", ("execute_code",)),
        ("web", ()),
        ("context_engine", ()),
    ],
)
def test_a_toolset_gives_the_tools_that_are_here(toolset: str, tools: tuple[str, ...]) -> None:
    assert select([toolset]).tools == tools


def test_what_is_not_here_is_named() -> None:
    assert select(["debugging"]).unavailable == ("web_search", "web_extract")
    assert set(select(["all"]).unavailable) == KNOWN_TOOLS - set(SHIPPED)
    assert len([name for name in TOOLSETS["browser"] if name.startswith("browser_")]) == 12
    assert len(TOOLSETS["kanban"]) == 12


def test_names_that_nobody_knows_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'terminal'"):
        select(["terminl"])
    with pytest.raises(ConfigError, match="not available"):
        require_tool("web_search")
    with pytest.raises(ConfigError, match="did you mean 'read_file'"):
        require_tool("readfile")


def test_the_same_seed_gives_the_same_draw() -> None:
    draws = [draw_toolsets("balanced", seed) for seed in range(50)]
    assert draws == [draw_toolsets("balanced", seed) for seed in range(50)]
    assert len({draw.toolsets for draw in draws}) > 1


def test_items_and_groups_have_draws_of_their_own() -> None:
    draws = [draw_toolsets("balanced", 7, "group", group) for group in range(50)]
    assert draws == [draw_toolsets("balanced", 7, "group", group) for group in range(50)]
    assert len({draw.toolsets for draw in draws}) > 1
    assert draws != [draw_toolsets("balanced", 7, "item", item) for item in range(50)]
    assert draws != [draw_toolsets("balanced", 8, "group", group) for group in range(50)]


def test_toolsets_without_a_tool_are_provided_or_refused() -> None:
    assert draw_toolsets("terminal_web", 0, provided=["web_search"]).toolsets == ("terminal", "file", "web")
    assert draw_toolsets("terminal_only", 0, strict=True).dropped == ()
    assert draw_toolsets("minimal", 0, strict=True, provided=["web_search"]).toolsets == ("web",)
    with pytest.raises(ConfigError, match="without a tool here: web"):
        draw_toolsets("terminal_web", 0, strict=True)
    with pytest.raises(ConfigError, match="'web' has no tool here"):
        select(["terminal", "web"], strict=True)
    assert select(["terminal", "web"]).unavailable == ("web_search", "web_extract")


def test_distributions_are_listed() -> None:
    assert list_distributions() == tuple(DISTRIBUTIONS)


def test_a_distribution_drops_what_has_no_tools_and_says_so() -> None:
    draw = draw_toolsets("default", 0)
    assert draw.toolsets == ("terminal", "file", "browser")
    assert draw.dropped == ("web", "vision", "image_gen")


def test_browser_tools_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playwright_driver, "is_installed", lambda: False)
    assert select(["browser"]).tools == ()
    assert "browser" in draw_toolsets("default", 0).dropped
    with pytest.raises(ConfigError, match=r"pip install 'hermes-exec\[browser\]'"):
        require_tool("browser_click")


def test_the_most_probable_is_taken_when_nothing_is_drawn() -> None:
    assert draw_toolsets({"file": 0, "terminal": 0.001}, 1).toolsets == ("terminal",)
    assert draw_toolsets({"file": 0, "terminal": 0}, 1).toolsets == ("file",)


def test_draws_are_independent_and_have_their_chances() -> None:
    counts: Counter[str] = Counter()
    for item in range(2_000):
        counts.update(draw_toolsets("development", 3, item).toolsets)
    assert 0.76 < counts["terminal"] / 2_000 < 0.84
    assert 0.76 < counts["file"] / 2_000 < 0.84


def test_the_tables_chances() -> None:
    assert dict(DISTRIBUTIONS["science"]) == {
        "web": 94, "terminal": 94, "file": 94, "vision": 65, "browser": 50, "image_gen": 15
    }  # fmt: skip
    assert len(DISTRIBUTIONS) == 17
    assert all(name in TOOLSETS for chances in DISTRIBUTIONS.values() for name in chances)


@pytest.mark.parametrize("bad", ["defualt", {"terminal": 101}, {"terminal": -1}, {"nothing": 5}, {}])
def test_bad_distributions_are_refused(bad: str | dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        draw_toolsets(bad, 0)
