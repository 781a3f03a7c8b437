"""V4A patches as models write them: the files of a directory before and after, or the reason of the refusal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import NamedTuple

FILES = {
    "a.py": "def f():\n    x = 1\n    return x\n",
    "b.txt": "one\ntwo\n",
    "open.txt": "one\ntwo",
    "v4a.md": "*** Begin Patch\n*** Update File: b.txt\n two\n*** End Patch\n```\nEOF\n",
}
UPDATE = "*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-    x = 1\n+    x = 2\n     return x\n*** End Patch"
BOTH = (
    "*** Begin Patch\n*** Update File: a.py\n-    x = 1\n+    x = 2\n*** Update File: b.txt\n-two\n+TWO\n*** End Patch"
)
UPDATED = {"a.py": "def f():\n    x = 2\n    return x\n"}
BOTH_UPDATED = {**UPDATED, "b.txt": "one\nTWO\n"}
ADD = "*** Begin Patch\n*** Add File: new.txt\n+x\n+\n+y\n*** End Patch"
ADDED: dict[str, str | None] = {"new.txt": "x\n\ny\n"}


class PatchText(NamedTuple):
    """A text, and the files that it changes (None: removed) or the reason with which it is refused."""

    name: str
    text: str
    changes: dict[str, str | None] | None = None
    reason: str = ""


def _patch(body: str) -> str:
    return f"*** Begin Patch\n{body}\n*** End Patch"


def _update(path: str, body: str) -> str:
    return _patch(f"*** Update File: {path}\n{body}")


def _heredoc(opening: str, closing: str = "EOF") -> str:
    return f"{opening}\n{UPDATE}\n{closing}\n"


def _pad(pad: str, text: str) -> str:
    return "".join(pad + line if line.startswith("***") else line for line in text.splitlines(keepends=True))


def _accept(name: str, text: str, changes: Mapping[str, str | None] = UPDATED) -> PatchText:
    return PatchText(name, text, dict(changes))


def _refuse(name: str, text: str, reason: str) -> PatchText:
    return PatchText(name, text, reason=reason)


_GIT_DIFF = (
    "diff --git a/a.py b/a.py\nindex 1..2 100644\n--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n def f():\n"
    "-    x = 1\n+    x = 2\n     return x\n"
)
_UNIFIED = "this is a unified diff, and a V4A patch is wanted"
_COMMAND = "there is a shell command before '*** Begin Patch'"
_NO_END = "the patch has no last line '*** End Patch'"
_CUT = f"{_NO_END} (was it cut off?)"

TEXTS = [
    # White space and characters
    _accept("strict", UPDATE),
    _accept("trailing-blanks", UPDATE.replace("Patch", "Patch  \t").replace("a.py", "a.py  ")),
    _accept("padded-by-one", _pad(" ", BOTH), BOTH_UPDATED),
    _accept("padded-by-four", _pad("    ", BOTH), BOTH_UPDATED),
    _accept("padded-end", UPDATE.replace("*** End", "  *** End")),
    _accept("padded-begin", "  " + UPDATE),
    _accept(
        "padded-first-and-last", "\n \n" + UPDATE.replace("*** Begin", " *** Begin").replace("*** End", " *** End")
    ),
    _accept("indented", textwrap.indent(BOTH, "    "), BOTH_UPDATED),
    _accept("indented-by-one", textwrap.indent(BOTH, " "), BOTH_UPDATED),
    _accept("indented-by-tab", textwrap.indent(ADD, "\t"), ADDED),
    _accept("indented-after-first-line", textwrap.indent(UPDATE, "        ").strip()),
    _accept("indented-with-blank-lines", textwrap.indent(UPDATE, "  ").replace("  *** End", "\n\n  *** End")),
    _accept("cr-lf", UPDATE.replace("\n", "\r\n")),
    _accept("cr", UPDATE.replace("\n", "\r")),
    _accept("byte-order-mark", "\ufeff" + UPDATE),
    _accept("zero-width-space", "\u200b" + UPDATE),
    _accept(
        "no-break-space-in-markers", BOTH.replace("*** ", "***\u00a0").replace("File: ", "File:\u00a0"), BOTH_UPDATED
    ),
    _accept("no-break-space-before-context", UPDATE.replace("\n     return", "\n\u00a0    return")),
    _accept("no-break-space-as-indent", UPDATE.replace("    ", "\u00a0" * 4)),
    _accept("no-break-space-everywhere", UPDATE.replace(" ", "\u00a0")),
    _accept("no-break-space-in-hint", UPDATE.replace("@@ ", "@@\u00a0")),
    _accept(
        "no-break-space-in-move",
        _patch("*** Move File: b.txt\u00a0->\u00a0c.txt"),
        {"b.txt": None, "c.txt": "one\ntwo\n"},
    ),
    # Text around the patch
    _accept("heredoc", _heredoc("<<'EOF'")),
    _accept("heredoc-unquoted", _heredoc("<<EOF")),
    _accept("heredoc-of-apply-patch", _heredoc("apply_patch <<'EOF'")),
    _accept("heredoc-of-applypatch", _heredoc('applypatch <<"EOF"')),
    _accept("heredoc-of-prompt", _heredoc("$ apply_patch <<-'EOF'")),
    _accept("heredoc-of-cat", _heredoc("cat <<'PATCH-1' | apply_patch", "PATCH-1")),
    _accept("heredoc-closed-only", f"{UPDATE}\nEOF"),
    _accept("command", f"apply_patch\n{UPDATE}"),
    _accept("fence", f"```\n{UPDATE}\n```"),
    _accept("fence-with-language", f"```diff\n{UPDATE}\n```\n"),
    _accept("fence-of-tildes", f"~~~~ patch\n{UPDATE}\n~~~~"),
    _accept("fence-and-heredoc", f"```bash\n{_heredoc(chr(60) * 2 + 'EOF')}```"),
    _accept("fence-indented", textwrap.indent(f"```\n{UPDATE}\n```", "  ")),
    _accept("tags", f"<patch>\n{UPDATE}\n</patch>"),
    _accept("sentence-before", f"Here is the patch:\n\n```\n{UPDATE}\n```"),
    _accept("no-first-line", UPDATE.partition("\n")[2]),
    _accept("fence-and-no-first-line", f"```\n{UPDATE.partition(chr(10))[2]}\n```"),
    # Spelling of markers
    _accept("stars-after", UPDATE.replace("Patch", "Patch ***")),
    _accept("stars-after-every-marker", UPDATE.replace("Patch", "Patch ***").replace("a.py", "a.py ***")),
    _accept("no-blank-after-stars", BOTH.replace("*** ", "***"), BOTH_UPDATED),
    _accept("two-blanks-and-four-stars", BOTH.replace("*** ", "****  "), BOTH_UPDATED),
    _accept(
        "lower-case", UPDATE.replace("Begin Patch", "begin patch").replace("End P", "END P").replace("File", "file")
    ),
    _accept("no-blank-after-colon", UPDATE.replace("File: ", "File:")),
    _accept("end-of-patch", UPDATE.replace("End Patch", "End of Patch")),
    _accept("create-file", ADD.replace("Add", "Create"), ADDED),
    _accept("new-file", ADD.replace("Add", "New"), ADDED),
    _accept("modify-file", UPDATE.replace("Update", "Modify")),
    _accept("edit-file", UPDATE.replace("Update", "Edit")),
    _accept("remove-file", _patch("*** Remove File: b.txt"), {"b.txt": None}),
    _accept("rename-file", _patch("*** Rename File: b.txt -> c.txt"), {"b.txt": None, "c.txt": "one\ntwo\n"}),
    _accept("rename-to", _update("b.txt", "*** Rename to: c.txt\n-two\n+2"), {"b.txt": None, "c.txt": "one\n2\n"}),
    _accept(
        "move-to-after-the-hunks",
        _update("b.txt", "-two\n+2\n*** Move to: c.txt"),
        {"b.txt": None, "c.txt": "one\n2\n"},
    ),
    _accept("environment-id", UPDATE.replace("*** Update", "*** Environment ID: local-1\n*** Update")),
    _accept("hunk-header-in-new-file", ADD.replace("+x", "@@ -0,0 +1,3 @@\n+x"), ADDED),
    _accept("end-of-new-file", ADD.replace("+y", "+y\n*** End of File"), ADDED),
    _accept("end-of-file-with-stars", _update("b.txt", "-two\n+2\n*** End of File ***"), {"b.txt": "one\n2\n"}),
    # The end of the last line
    _accept(
        "no-newline-on-both-sides",
        _update("open.txt", "-two\n\\ No newline at end of file\n+2\n\\ No newline at end of file"),
        {"open.txt": "one\n2"},
    ),
    _accept(
        "no-newline-before", _update("open.txt", "-two\n\\ No newline at end of file\n+2"), {"open.txt": "one\n2\n"}
    ),
    _accept("no-newline-after", _update("b.txt", "-two\n+2\n\\ No newline at end of file"), {"b.txt": "one\n2"}),
    _accept(
        "no-newline-after-context",
        _update("b.txt", "-one\n+1\n two\n\\ No newline at end of file"),
        {"b.txt": "1\ntwo\n"},
    ),
    _accept(
        "no-newline-after-added-line",
        _update("b.txt", " two\n+three\n\\ No newline at end of file"),
        {"b.txt": "one\ntwo\nthree"},
    ),
    _accept(
        "no-newline-after-appended-line",
        _update("b.txt", "+three\n\\ No newline at end of file"),
        {"b.txt": "one\ntwo\nthree"},
    ),
    _accept(
        "no-newline-in-the-middle", _update("b.txt", "-one\n+1\n\\ No newline at end of file"), {"b.txt": "1\ntwo\n"}
    ),
    _accept(
        "no-newline-in-new-file", _patch("*** Add File: new.txt\n+x\n\\ No newline at end of file"), {"new.txt": "x"}
    ),
    _accept(
        "no-newline-after-end-of-file",
        _update("b.txt", "-two\n+2\n*** End of File\n\\ No newline at end of file"),
        {"b.txt": "one\n2\n"},
    ),
    # Lines of files that look like markers
    _accept(
        "markers-as-lines-of-a-file",
        _update("v4a.md", " *** Begin Patch\n-*** Update File: b.txt\n+*** Delete File: b.txt\n  two\n *** End Patch"),
        {"v4a.md": "*** Begin Patch\n*** Delete File: b.txt\n two\n*** End Patch\n```\nEOF\n"},
    ),
    _accept(
        "closing-lines-as-lines-of-a-file",
        _update("v4a.md", " ```\n-EOF\n+END"),
        {"v4a.md": "*** Begin Patch\n*** Update File: b.txt\n two\n*** End Patch\n```\nEND\n"},
    ),
    _accept(
        "markers-in-new-file",
        _patch("*** Add File: new.txt\n+*** End Patch\n+```"),
        {"new.txt": "*** End Patch\n```\n"},
    ),
    # Refused
    _refuse("cut-in-hunk", UPDATE[:80], _CUT),
    _refuse("cut-in-last-line", UPDATE[:-3], _CUT),
    _refuse("cut-in-fence", f"```\n{UPDATE[:80]}", _CUT),
    _refuse("first-line-alone", "*** Begin Patch", _CUT),
    _refuse("closed-without-last-line", f"```\n{UPDATE.removesuffix('*** End Patch')}```", f"{_NO_END}. Nothing"),
    _refuse(
        "last-line-as-content", UPDATE.replace("*** End", "+*** End"), "the last line must be '*** End Patch' alone"
    ),
    _refuse("last-line-quoted", f'{UPDATE}"', "the last line must be '*** End Patch' alone, found '*** End Patch\"'"),
    _refuse("written-out-line-breaks", UPDATE.replace("\n", "\\n"), "its line breaks are written out as '\\n'"),
    _refuse("git-diff", _GIT_DIFF, _UNIFIED),
    _refuse("unified-diff", _GIT_DIFF.partition("100644\n")[2], _UNIFIED),
    _refuse("hunks-only", _GIT_DIFF.partition("b/a.py\n@@")[2].join(["@@", ""]), _UNIFIED),
    _refuse("diff-in-fence", f"```diff\n{_GIT_DIFF}```", _UNIFIED),
    _refuse(
        "context-diff",
        "*** a.py\n--- a.py\n***************\n*** 1,4 ****\n! x\n",
        "expected '*** Begin Patch', found '*** a.py'",
    ),
    _refuse("diff-in-update", _update("a.py", "index 1..2 100644\n" + _GIT_DIFF), "found 'index 1..2 100644'"),
    _refuse("diff-in-patch", _patch(_GIT_DIFF), _UNIFIED),
    _refuse(
        "diff-of-patch",
        "--- a/v4a.md\n+++ b/v4a.md\n@@ -1,4 +1,4 @@\n *** Begin Patch\n-x\n+y\n *** End Patch\n",
        _UNIFIED,
    ),
    _refuse("diff-in-new-file", _patch("*** Add File: c.py\ndiff --git a/c.py b/c.py\n+x"), _UNIFIED),
    _refuse("other-directory", _heredoc("cd src && apply_patch <<'EOF'"), _COMMAND),
    _refuse("commands", _heredoc("set -e\napply_patch <<'EOF'"), _COMMAND),
    _refuse("quoted-command", f'cd src; apply_patch "{UPDATE}\n"', _COMMAND),
    _refuse("no-patch", "x = 2", "the text has no '*** Begin Patch'"),
    _refuse("text-after", f"{UPDATE}\nThis sets x.", "there is text after '*** End Patch'"),
    _refuse("two-patches", f"{UPDATE}\n{UPDATE}", "there is text after '*** End Patch'"),
    _refuse("write-file", ADD.replace("Add", "Write"), "expected '*** Update File: '"),
    _refuse("line-without-sign", _update("b.txt", "one\n-two\n+2"), "a line of a hunk starts with a space"),
    _refuse("new-line-without-sign", ADD.replace("+y", "y"), "each line of an added file starts with '+', found 'y'"),
    _refuse("contents-of-deleted-file", _patch("*** Remove File: b.txt\n-one"), "'Remove File' takes no lines"),
]
