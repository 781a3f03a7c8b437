"""A text for parsers, the tools that it may call, and results that are computed once for the whole text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from hermes_agent.parsers.argument_types import Toolset

T = TypeVar("T")


class SourceText:
    """One text under a parser."""

    def __init__(self, text: str, tools: Toolset) -> None:
        self.text, self.tools = text, tools
        self._worked_out: dict[object, object] = {}

    def once(self, work_out: Callable[[str], T]) -> T:
        """Return `work_out(text)`, computed on the first request only.

        Readers request it at each call, and a text may have thousands of calls.
        """
        if work_out not in self._worked_out:
            self._worked_out[work_out] = work_out(self.text)
        return cast("T", self._worked_out[work_out])
