"""Parsers that find the tool calls in a model's text, by the name of the format."""

from __future__ import annotations

import difflib
from types import MappingProxyType

from hermes_agent.parsers import hermes
from hermes_agent.parsers.base import Parsed, Parser
from hermes_exec.errors import ConfigError

PARSERS: MappingProxyType[str, Parser] = MappingProxyType({"hermes": hermes.parse, "qwen": hermes.parse})
"""The parser of each format name."""


def get_parser(name: str) -> Parser:
    """The parser of that name. Raises ConfigError for an unknown one, with the nearest name."""
    try:
        return PARSERS[name]
    except KeyError:
        near = difflib.get_close_matches(name, PARSERS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no parser {name!r}{hint} (known: {', '.join(sorted(PARSERS))})") from None


__all__ = ["PARSERS", "Parsed", "Parser", "get_parser"]
