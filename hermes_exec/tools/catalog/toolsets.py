"""The named sets of tools, and the tools of this package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hermes_exec.errors import ConfigError
from hermes_exec.tools.browser import playwright_driver

_BROWSER = tuple(
    f"browser_{name}"
    for name in [
        "navigate",
        "snapshot",
        "click",
        "type",
        "scroll",
        "back",
        "press",
        "get_images",
        "vision",
        "console",
        "cdp",
        "dialog",
    ]
)
_BROWSER_EXTRA = tuple(
    f"browser_{name}"
    for name in [
        "close",
        "wait_for",
        "tabs",
        "hover",
        "drag",
        "network_requests",
        "storage_state",
        "set_storage_state",
    ]
)
"""Browser tools that models of Hermes do not know."""
SHIPPED = (
    *("terminal", "process", "read_file", "write_file", "patch", "search_files", "execute_code"),
    *_BROWSER,
    *_BROWSER_EXTRA,
)
"""The tools of this package. All of them work in the slot."""

_FILE = ("read_file", "write_file", "patch", "search_files")
_WEB = ("web_search", "web_extract")
_TERMINAL = ("terminal", "process")
_SKILLS = ("skills_list", "skill_view", "skill_manage")
_HOME = ("ha_list_entities", "ha_get_state", "ha_list_services", "ha_call_service")
_KANBAN = tuple(
    f"kanban_{name}"
    for name in [
        "show",
        "list",
        "complete",
        "block",
        "heartbeat",
        "comment",
        "create",
        "link",
        "unblock",
        "attach",
        "attach_url",
        "attachments",
    ]
)
_FEISHU_DRIVE = tuple(
    f"feishu_drive_{name}" for name in ["list_comments", "list_comment_replies", "reply_comment", "add_comment"]
)
_YUANBAO = tuple(
    f"yb_{name}" for name in ["query_group_info", "query_group_members", "send_dm", "search_sticker", "send_sticker"]
)
_SPOTIFY = tuple(
    f"spotify_{name}" for name in ["playback", "devices", "queue", "search", "playlists", "albums", "library"]
)
_PLAN = ("todo", "memory", "session_search")
_EDITOR = (*_WEB, *_TERMINAL, *_FILE, "vision_analyze", *_SKILLS, *_BROWSER, *_PLAN, "execute_code", "delegate_task")
_CORE = (
    *(
        *_WEB,
        *_TERMINAL,
        "read_terminal",
        "close_terminal",
        *_FILE,
        "vision_analyze",
        "image_generate",
        *_SKILLS,
        *_BROWSER,
    ),
    *(
        "text_to_speech",
        *_PLAN,
        "clarify",
        "execute_code",
        "delegate_task",
        "cronjob",
        *_HOME,
        *_KANBAN,
        "computer_use",
    ),
)
_PLATFORMS = [
    "telegram",
    "discord",
    "whatsapp",
    "slack",
    "signal",
    "bluebubbles",
    "homeassistant",
    "email",
    "mattermost",
    "matrix",
    "dingtalk",
    "feishu",
    "weixin",
    "qqbot",
    "wecom",
    "wecom-callback",
    "yuanbao",
    "sms",
]
_PLATFORM_TOOLS = {
    "discord": (*_CORE, "discord", "discord_admin"),
    "feishu": (*_CORE, "feishu_doc_read", *_FEISHU_DRIVE),
    "yuanbao": (*_CORE, *_YUANBAO),
}
_WEBHOOK = (*_WEB, "vision_analyze", "clarify")


_BASE_TOOLSETS: dict[str, tuple[str, ...]] = {
    "web": _WEB,
    "search": ("web_search",),
    "x_search": ("x_search",),
    "terminal": _TERMINAL,
    "file": _FILE,
    "code_execution": ("execute_code",),
    "browser": (*_BROWSER, "web_search"),
    "browser_extra": _BROWSER_EXTRA,
    "vision": ("vision_analyze",),
    "video": ("video_analyze",),
    "image_gen": ("image_generate",),
    "video_gen": ("video_generate", "xai_video_edit", "xai_video_extend"),
    "tts": ("text_to_speech",),
    "computer_use": ("computer_use",),
    "skills": _SKILLS,
    "todo": ("todo",),
    "memory": ("memory",),
    "session_search": ("session_search",),
    "clarify": ("clarify",),
    "delegation": ("delegate_task",),
    "cronjob": ("cronjob",),
    "project": ("project_list", "project_create", "project_switch"),
    "kanban": _KANBAN,
    "context_engine": (),
    "homeassistant": _HOME,
    "discord": ("discord",),
    "discord_admin": ("discord_admin",),
    "yuanbao": _YUANBAO,
    "feishu_doc": ("feishu_doc_read",),
    "feishu_drive": _FEISHU_DRIVE,
    "spotify": _SPOTIFY,
    "debugging": (*_TERMINAL, *_WEB, *_FILE),
    "safe": (*_WEB, "vision_analyze", "image_generate"),
    "coding": (*_EDITOR, "read_terminal", "close_terminal", "clarify"),
    "moa": ("mixture_of_agents",),
    "hermes-cli": _CORE,
    "hermes-acp": _EDITOR,
    "hermes-api-server": (*_EDITOR, "image_generate", "cronjob", *_HOME),
    "hermes-cron": _CORE,
    "hermes-webhook": _WEBHOOK,
}


def _table() -> dict[str, tuple[str, ...]]:
    sets = dict(_BASE_TOOLSETS)
    sets |= {f"hermes-{platform}": _PLATFORM_TOOLS.get(platform, _CORE) for platform in _PLATFORMS}
    gateway = [tool for platform in _PLATFORMS for tool in sets[f"hermes-{platform}"]]
    sets["hermes-gateway"] = tuple(dict.fromkeys([*gateway, *_WEBHOOK]))
    return sets


TOOLSETS: Mapping[str, tuple[str, ...]] = MappingProxyType(_table())
"""Toolset name to the names of its tools."""

EVERYTHING = frozenset({"all", "*"})
"""The names that stand for all tools."""

KNOWN_TOOLS = frozenset(tool for tools in TOOLSETS.values() for tool in tools) | set(SHIPPED)
"""All tool names of all toolsets, shipped or not."""


def usable_tools() -> tuple[str, ...]:
    """Return the shipped tools whose requirements are installed: the browser tools need an extra."""
    return (
        SHIPPED
        if playwright_driver.is_installed()
        else tuple(name for name in SHIPPED if not name.startswith("browser_"))
    )


@dataclass(frozen=True)
class Selection:
    """The selected tools: those available here, in a stable order, and those that are unavailable."""

    tools: tuple[str, ...]
    unavailable: tuple[str, ...]


def select(toolsets: Iterable[str], *, strict: bool = False) -> Selection:
    """Return the tools of `toolsets`.

    Raises:
        ConfigError: If no toolset has a name (the message suggests the nearest), or, with `strict`, if this package has
            no tool of a toolset.
    """
    toolsets = list(toolsets)
    names: list[str] = []
    for toolset in toolsets:
        if toolset not in TOOLSETS and toolset not in EVERYTHING:
            raise ConfigError(f"unknown toolset {toolset!r}{_suggest_nearest(toolset, [*TOOLSETS, *EVERYTHING])}")
        names += sorted(KNOWN_TOOLS) if toolset in EVERYTHING else TOOLSETS[toolset]
    if strict:
        _refuse_empty(toolsets)
    unique_names = dict.fromkeys(names)
    available = usable_tools()
    return Selection(
        tuple(name for name in available if name in unique_names),
        tuple(name for name in unique_names if name not in available),
    )


def _refuse_empty(toolsets: Iterable[str]) -> None:
    for toolset in toolsets:
        if toolset not in EVERYTHING and not any(name in usable_tools() for name in TOOLSETS[toolset]):
            first = next(iter(TOOLSETS[toolset]), None)
            reason = "it is empty" if first is None else unavailability_reason(first)
            raise ConfigError(f"the toolset {toolset!r} has no tool here: {reason}")


def require_tool(name: str) -> None:
    """Check that this package has the tool `name`.

    Raises:
        ConfigError: If the tool is known but not available, or unknown.
    """
    if name in usable_tools():
        return
    if name in KNOWN_TOOLS:
        reason = unavailability_reason(name)
        raise ConfigError(f"the tool {name!r} is not available: {reason}. Available tools: {', '.join(usable_tools())}")
    suggestion = _suggest_nearest(name, [*SHIPPED, *KNOWN_TOOLS])
    raise ConfigError(f"unknown tool {name!r}; available tools: {', '.join(usable_tools())}{suggestion}")


def unavailability_reason(name: str) -> str:
    """Return the reason why a known tool is unavailable, as part of a sentence."""
    if name.startswith("browser_"):
        return playwright_driver.MISSING_EXTRA
    return "it works outside of the slot, and this package runs every tool inside; declare your own with @tool"


def _suggest_nearest(name: str, candidates: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(candidates), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
