"""Notes on exit codes that look like failures but are not, or whose cause is not visible."""

from __future__ import annotations

import re
from types import MappingProxyType

_SEGMENTS = re.compile(r"\s*(?:\|\||&&|[|;\n])\s*")
_SIGNALLED = frozenset({128 + 9, 128 + 15})
_PKILL_BY_COMMAND_LINE = re.compile(r"\bpkill\b[^|;&\n]*\s(-[a-zA-Z0-9]*f|--full)\b")
_PKILLED_ITSELF = (
    "pkill -f also ended the shell that ran the command, because its command line contains the pattern; the rest of "
    "the command was not run. A pattern like '[n]ame' matches name without matching itself"
)
_NO_MATCH = MappingProxyType({1: "No matches found (not an error)"})
_DIFFER = MappingProxyType({1: "Files differ (expected, not an error)"})
_FALSE = MappingProxyType({1: "Condition evaluated to false (expected, not an error)"})
_MEANINGS = MappingProxyType(
    {
        **dict.fromkeys(("grep", "egrep", "fgrep", "rg", "ag", "ack"), _NO_MATCH),
        **dict.fromkeys(("diff", "colordiff", "cmp"), _DIFFER),
        **dict.fromkeys(("test", "["), _FALSE),
        "find": MappingProxyType({1: "Some directories were inaccessible (partial results may still be valid)"}),
        "curl": MappingProxyType(
            {
                6: "Could not resolve host",
                7: "Failed to connect to host",
                22: "HTTP response code indicated error (e.g. 404, 500)",
                28: "Operation timed out",
            }
        ),
        "git": MappingProxyType({1: "Non-zero exit (often normal — e.g. 'git diff' returns 1 when files differ)"}),
    }
)


def exit_code_meaning(command: str, exit_code: int) -> str | None:
    """Return a note on `exit_code` of `command`, or None. It only informs: nothing depends on it."""
    if exit_code == 0:
        return None
    if exit_code in _SIGNALLED and _PKILL_BY_COMMAND_LINE.search(command):
        return _PKILLED_ITSELF
    last = _SEGMENTS.split(command.strip())[-1]
    for word in last.split():
        if "=" in word and not word.startswith("-"):
            continue
        meanings = _MEANINGS.get(word.rsplit("/", 1)[-1])
        return meanings.get(exit_code) if meanings else None
    return None
