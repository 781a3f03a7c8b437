"""Secrets are masked in parts, too: by the line, and where an output was cut."""

from __future__ import annotations

import json
import textwrap

import pytest

from hermes_exec.redact import mask, spellings

ROWS = [chr(97 + row) * 30 + f"{row:02}" for row in range(6)]
LINES = ["-----BEGIN PRIVATE KEY-----", *ROWS, "-----END PRIVATE KEY-----"]
KEY = "\n".join(LINES) + "\n"
ENDS = ("\n", "\r\n", "\\n", "\\r\\n")


def shown(text: str) -> list[str]:
    return [line for line in LINES if line[2:-2] in text]


@pytest.mark.parametrize("given", ENDS)
@pytest.mark.parametrize("printed", ENDS)
def test_redact_masks_each_line_of_a_secret(given: str, printed: str) -> None:
    secrets = spellings([given.join(LINES)])
    text = printed.join(LINES)
    for way in (text, textwrap.indent(text, "\t| "), json.dumps(text), json.dumps({"a": json.dumps(text)})):
        assert not shown(mask(way, secrets)), way
    numbered = "".join(f"{number}|{line}{printed}" for number, line in enumerate(LINES))
    assert mask(numbered, secrets) == "".join(f"{number}|***{printed}" for number, _ in enumerate(LINES))
    assert not shown(mask(printed.join(LINES[2:5]), secrets))


def test_redact_masks_lines_that_a_secret_indents() -> None:
    document = json.dumps({"type": "service_account", "private_key": KEY, "id": "5"}, indent=4)
    secrets = spellings([document])
    again = json.dumps(json.loads(document), indent=2)
    assert not shown(mask(again, secrets))
    assert '"id": "5"' in mask(again, secrets)


def test_redact_leaves_short_lines_and_other_text() -> None:
    secrets = spellings(["first line of it\nshort\n", "word\n"])
    assert mask("short, first line of i, first line of it, word", secrets) == "short, first line of i, ***, ***"


def test_redact_masks_what_a_cut_left_of_a_secret() -> None:
    token = "token-" + "0123456789abcdef" * 4
    secrets = spellings([token, "shortkey"])
    assert mask(f"a {token[:50]}... [truncated]", secrets) == "a ***... [truncated]"
    assert mask(f"[OUTPUT TRUNCATED] ...\n{token[20:]}b {token}", secrets) == "[OUTPUT TRUNCATED] ...\n***b ***"
    assert mask(f"{token[:40]}|{token[-40:]}|{token[:40]}", secrets) == "***|***|***"
    assert mask(f"{token[:20]} short shortke", secrets) == f"{token[:20]} short shortke"


def test_spelling_that_begins_as_another_does_not_mask_it_in_part() -> None:
    secret = 'p"w\\q é-x9'
    spelled = spellings([secret])
    for text in spelled:
        assert mask(f"<{text}>", spelled) == "<***>"
