"""Parsers that find the tool calls in a model's text, and renderers that write them, by the name of the format."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from hermes_agent.parsers import (
    bare_json,
    deepseek_v3,
    deepseek_v32,
    glm,
    hermes,
    kimi_k2,
    longcat,
    mistral,
    qwen3_coder,
)
from hermes_agent.parsers.base import BrokenCall, Format, ParsedText, Parser, Renderer
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.thinking import BRACKETS, THINK
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError

FORMATS: MappingProxyType[str, Format] = MappingProxyType(
    {
        "hermes": hermes.FORMAT,
        "qwen": hermes.FORMAT,
        "longcat": longcat.FORMAT,
        "mistral": mistral.FORMAT,
        "llama3_json": bare_json.LLAMA,
        "llama4_json": bare_json.LLAMA,
        "json": bare_json.JSON,
        "deepseek_v3": deepseek_v3.V3,
        "deepseek_v3_1": deepseek_v3.V3_1,
        "deepseek_v31": deepseek_v3.V3_1,
        "deepseek_v32": deepseek_v32.FORMAT,
        "deepseek_dsml": deepseek_v32.FORMAT,
        "kimi_k2": kimi_k2.FORMAT,
        "glm45": glm.GLM45,
        "glm47": glm.GLM47,
        "qwen3_coder": qwen3_coder.FORMAT,
    }
)
"""The formats by name."""


_WITH_TAGS = ("hermes", "longcat", "mistral", "deepseek_v3", "deepseek_v32", "kimi_k2", "qwen3_coder")

read_plain = parser(Family("", {}, thinking=(THINK, BRACKETS), mentions=True))
"""Parser for endpoints that extract calls from the text themselves, but perhaps not the thinking. It still cuts text
that the model wrote in another role. The tokens that begin a turn are text in the middle of a sentence.
"""


def get_parser(name: str) -> Parser:
    """Return the parser of a format. Raise ConfigError for an unknown name, with the nearest one."""
    return _format(name).parse


def get_renderer(name: str) -> Renderer:
    """Return the renderer of a format. Raise ConfigError for an unknown name, with the nearest one."""
    return _format(name).render


def holds_call(reasoning: str, parse: Callable[[str], ParsedText] | None) -> bool:
    """Return whether thinking contains text that looks like a call, in the format of `parse` (None: in any format with
    tags).
    """
    unclosed = f"<think>{reasoning}"
    read = [parse(unclosed)] if parse else [FORMATS[name].parse(unclosed, ()) for name in _WITH_TAGS]
    return any(bool(parsed.tool_calls or parsed.problems) for parsed in read)


def _format(name: str) -> Format:
    try:
        return FORMATS[name]
    except KeyError:
        raise ConfigError(f"there is no parser {name!r}; {nearest(name, FORMATS)}") from None


__all__ = [
    "FORMATS",
    "BrokenCall",
    "Format",
    "ParsedText",
    "Parser",
    "Renderer",
    "get_parser",
    "get_renderer",
    "holds_call",
    "read_plain",
]
