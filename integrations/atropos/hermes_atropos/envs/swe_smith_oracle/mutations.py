"""Small bugs for a source file. Each changes one place inside a function and leaves all other bytes unchanged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}
_LARGEST = 100


@dataclass(frozen=True)
class Mutation:
    """A change: the bytes from `start` to `end` become `text`. `kind` names the sort of change and `function` its place
    (`Class.method`).
    """

    kind: str
    function: str
    line: int
    start: int
    end: int
    text: bytes

    def apply(self, source: bytes) -> bytes:
        """Return the source with the change."""
        return source[: self.start] + self.text + source[self.end :]


def find_mutations(source: bytes) -> list[Mutation]:
    """Return all possible mutations of a file in the order of the file. Mutations that would not compile are left out.

    Raises:
        SyntaxError: If it is not Python source.
    """
    candidates = _Finder(source).find_all()
    return [mutation for mutation in candidates if _compiles(mutation.apply(source))]


def _compiles(source: bytes) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._tree = ast.parse(source)
        # Offsets count UTF-8 bytes, so files in other encodings are not supported.
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def find_all(self) -> list[Mutation]:
        if self._source.startswith(b"\xef\xbb\xbf") or b"\f" in self._source:
            return []
        return sorted(self._visit(self._tree, ()), key=lambda mutation: (mutation.start, mutation.end, mutation.text))

    def _visit(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Mutation]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from self._visit(child, (*names, child.name))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                function = ".".join((*names, child.name))
                for statement in child.body:
                    for kind, start, end, text in self._changes(statement, child.body):
                        yield Mutation(kind, function, self._line(start), start, end, text.encode())
            elif not names:
                yield from self._visit(child, names)

    def _changes(self, top: ast.stmt, body: list[ast.stmt]) -> Iterator[tuple[str, int, int, str]]:
        for node in [top, *ast.walk(top)][1:]:
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                yield from self._operator(
                    "op_change", node.left, node.comparators[0], _COMPARISONS.get(type(node.ops[0]))
                )
            elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
                both = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                yield from self._operator("bool_swap", node.values[0], node.values[1], both)
            elif isinstance(node, ast.BinOp) and not _is_text(node.left) and not _is_text(node.right):
                yield from self._operator("arith_swap", node.left, node.right, _ARITHMETIC.get(type(node.op)))
            elif isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= _LARGEST:
                yield "const_off_by_one", *self._span(node), str(node.value + 1)
            elif isinstance(node, ast.Call):
                yield from self._arguments(node)
            if isinstance(node, ast.If | ast.IfExp | ast.While):
                yield from self._condition(node.test)
            if isinstance(node, ast.stmt):
                yield from self._removal(node, body)

    def _operator(
        self, kind: str, left: ast.expr, right: ast.expr, swap: tuple[str, str] | None
    ) -> Iterator[tuple[str, int, int, str]]:
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._source[start:end].decode("utf-8", "replace")
        if swap is None:
            return
        old = re.escape(swap[0]).replace(r"\ ", r"\s+")
        match = re.fullmatch(rf"([\s)]*)({old})([\s(]*)", between)
        if match:
            yield kind, start + match.start(2), start + match.end(2), swap[1]

    def _condition(self, test: ast.expr) -> Iterator[tuple[str, int, int, str]]:
        start, end = self._span(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield "cond_negated", start, end, self._text(test.operand)
        elif not isinstance(test, ast.Compare):
            yield "cond_negated", start, end, f"not ({self._text(test)})"

    def _arguments(self, call: ast.Call) -> Iterator[tuple[str, int, int, str]]:
        if len(call.args) < 2 or any(isinstance(argument, ast.Starred) for argument in call.args[:2]):
            return
        first, second = call.args[:2]
        if self._text(first) != self._text(second):
            start, end = self._span(first)[0], self._span(second)[1]
            between = self._source[self._span(first)[1] : self._span(second)[0]].decode("utf-8", "replace")
            yield "args_swapped", start, end, f"{self._text(second)}{between}{self._text(first)}"

    def _removal(self, node: ast.stmt, body: list[ast.stmt]) -> Iterator[tuple[str, int, int, str]]:
        if len(body) < 2 or (node is body[0] and _is_docstring(node)):
            return
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        is_store = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
        if is_call or is_store or isinstance(node, ast.AugAssign):
            yield "stmt_removed", *self._span(node), "pass"

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode("utf-8", "replace")

    def _line(self, offset: int) -> int:
        return self._source.count(b"\n", 0, offset) + 1


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def function_source(source: bytes, function: str) -> str:
    """Return the source of a function given as `Class.method`."""
    node: ast.AST = ast.parse(source)
    for name in function.split("."):
        node = next(
            child
            for child in ast.walk(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name
        )
    assert isinstance(node, ast.stmt)
    lines = source.decode("utf-8", "replace").splitlines()
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])
