"""Counts how plainly a package is named and written; `python -m tests.support.words PATH…` lists the places."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IRREGULAR = frozenset(
    [
        "begun",
        "bound",
        "built",
        "chosen",
        "drawn",
        "found",
        "given",
        "gone",
        "got",
        "had",
        "held",
        "hidden",
        "kept",
        "known",
        "left",
        "lost",
        "made",
        "met",
        "said",
        "seen",
        "sent",
        "shown",
        "taken",
        "told",
        "written",
    ]
)
"""Participles that do not end with `ed`."""
NOT_PARTICIPLES = frozenset(["embed", "feed", "need", "red", "seed", "shared", "speed"])
NOT_VERBS = frozenset(
    [
        "A",
        "All",
        "An",
        "And",
        "Another",
        "Any",
        "As",
        "At",
        "Both",
        "Bytes",
        "Calls",
        "Each",
        "Every",
        "For",
        "Here",
        "How",
        "If",
        "In",
        "Its",
        "Nothing",
        "No",
        "Not",
        "Of",
        "One",
        "Only",
        "Other",
        "Others",
        "Same",
        "Some",
        "Somebody",
        "That",
        "The",
        "There",
        "Their",
        "These",
        "They",
        "This",
        "Those",
        "To",
        "Two",
        "What",
        "When",
        "Where",
        "Whether",
        "Which",
        "Who",
        "Whose",
        "Why",
        "With",
        "Writing",
        "It",
    ]
)
"""First words of a docstring that says what something is and not what it does."""
VAGUE = frozenset(["found", "given", "known", "made", "said", "shown", "told"])
VALUES = frozenset(
    ["cached_property", "field_validator", "fixture", "model_validator", "overload", "property", "setter"]
)
"""Decorators of functions that are read as values."""
CLAUSES = {
    "what": re.compile(
        r"\b[Ww]hat (is|it|was|were|are|came|comes|has|have|had|a|an|the|this|that|these|can|may|one|they|he|she|nobody"
        r"|somebody|stands|belongs|remains)\b"
    ),
    "told": re.compile(r"\b(told|tells?|telling|said|says?)\b"),
    "pronoun": re.compile(
        r"\b(that|those) of\b|\bone (that|whose|which|of its)\b|\b(is|are|be) (no|any) more\b"
        r"|\b(can|cannot|could|to) be had\b|\bwho(ever)? (waits|looks|asks|has|comes|is)\b"
    ),
}
PAGES = "docs"
MESSAGES = re.compile(r"\s\w+\s")
"""A string with at least three words is read by somebody."""


@dataclass
class Text:
    """Words of one sort (documentation, comments or messages), and the clauses in them."""

    words: int = 0
    clauses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLAUSES, 0))

    def rate(self, clause: str) -> float:
        """Return how many of these clauses there are in 1,000 words."""
        return 1000 * self.clauses[clause] / max(1, self.words)


@dataclass
class Count:
    """The figures of one tree, and the places behind them."""

    functions: int = 0
    participles: int = 0
    documented: int = 0
    not_verbs: int = 0
    vague: int = 0
    documentation: Text = field(default_factory=Text)
    comments: Text = field(default_factory=Text)
    messages: Text = field(default_factory=Text)
    places: list[str] = field(default_factory=list)

    def add(self, sort: Text, text: str, place: str) -> None:
        """Count the words and clauses of a text, without the code in it."""
        plain = re.sub(r"```.*?```|``[^`]*``|`[^`]*`|<!--.*?-->", " ", text, flags=re.DOTALL)
        sort.words += len(plain.split())
        for name, pattern in CLAUSES.items():
            for match in pattern.finditer(plain):
                sort.clauses[name] += 1
                around = " ".join(plain[max(0, match.start() - 50) : match.end() + 50].split())
                self.places.append(f"{place}: {name}: {around}")

    def shares(self) -> dict[str, float]:
        """Return what the limits are for: percents of functions, a number of locals, clauses in 1,000 words."""
        figures = {
            "participles": 100 * self.participles / max(1, self.functions),
            "not_verbs": 100 * self.not_verbs / max(1, self.documented),
            "vague": float(self.vague),
        }
        sorts = {"documentation": self.documentation, "comments": self.comments, "messages": self.messages}
        return figures | {f"{sort} {clause}": text.rate(clause) for sort, text in sorts.items() for clause in CLAUSES}


def count(path: Path) -> Count:
    """Count one tree of Python modules and Markdown pages; data and tests are left out."""
    result = Count()
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    for file in files:
        parts = file.relative_to(ROOT).parts
        if "data" in parts or "tests" in parts or "node_modules" in parts:
            continue
        if file.suffix == ".md":
            body = re.sub(r"^\|.*$", " ", file.read_text("utf-8"), flags=re.MULTILINE)
            result.add(result.documentation, body, file.relative_to(ROOT).as_posix())
        elif file.suffix == ".py":
            _count_module(result, file)
    return result


def _count_module(result: Count, file: Path) -> None:
    name, source = file.relative_to(ROOT).as_posix(), file.read_text("utf-8")
    tree = ast.parse(source)
    documented = set()
    for constant, text in _docstrings(tree):
        documented.add(id(constant))
        result.add(result.documentation, text, f"{name}:{constant.lineno}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _count_function(result, node, name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            message = node.value if MESSAGES.search(node.value) else ""
            result.add(result.messages, message, f"{name}:{node.lineno}")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            result.add(result.comments, token.string, f"{name}:{token.start[0]}")


def _count_function(result: Count, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
    decorators = {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}
    if node.name.startswith("__") or decorators & VALUES:
        return
    place = f"{name}:{node.lineno}: {node.name}"
    result.functions += 1
    if is_participle(node.name):
        result.participles += 1
        result.places.append(f"{place}: participle")
    stored = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    for word in sorted((stored | {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}) & VAGUE):
        result.vague += 1
        result.places.append(f"{place}: local {word}")
    doc = ast.get_docstring(node)
    if doc and "conformance/checks" not in name:  # those are the published meaning of the checks
        result.documented += 1
        if doc.split()[0].strip("`*.,:") in NOT_VERBS:
            result.not_verbs += 1
            result.places.append(f"{place}: {doc.splitlines()[0]}")


def is_participle(name: str) -> bool:
    """Return whether a function is named by a participle: `_told`, `made_ready`."""
    word = re.sub(r"(?<=[a-z])[A-Z].*", "", name.strip("_").split("_")[0]).lower()
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 4 and word not in NOT_PARTICIPLES)


def _docstrings(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    """Yield the docstrings of modules, classes and functions, and those below a value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[:1]
        after_value = [
            it
            for before, it in zip(node.body, node.body[1:], strict=False)
            if isinstance(before, ast.Assign | ast.AnnAssign)
        ]
        for statement in (*first, *after_value):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text)) as constant):
                    yield constant, text


def main() -> None:
    """Print the figures of each path, and the places behind them."""
    for each in sys.argv[1:]:
        result = count((ROOT / each).resolve())
        for place in result.places:
            print(place)
        print(each, {name: round(value, 1) for name, value in result.shares().items()})


if __name__ == "__main__":
    main()
