"""Removal of terminal control sequences from text, so that a model never copies them into a file."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]+[0-~]"  # nF: character sets
    r"|\x1b[0-OQ-WYZ\\`-~]"  # Fp, Fe, Fs of two characters
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one C1 character
)


def strip_ansi(text: str) -> str:
    """Return `text` without ECMA-48 escape sequences. Tabs, bells and carriage returns stay."""
    if "\x1b" not in text and "\x9b" not in text:
        return text
    return _SEQUENCES.sub("", text)
