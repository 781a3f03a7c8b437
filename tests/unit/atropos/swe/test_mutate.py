"""Bugs for source files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hermes_atropos.envs.swe_smith_oracle.mutations import find_mutations, function_source

SOURCE = b'''"""Module \xc3\xa9."""
LIMIT = 3
def one(a, b):
    """Doc."""
    log("\xc3\xa9", a)
    if a < b and not b:
        a += 1
    return (a) + len(b, a)
class C:
    def two(self):
        while self.x is not None: return f"{1}" + "s"
'''


def changed() -> set[tuple[str, str, str]]:
    """What each mutation makes of the lines that it is on."""
    found = set()
    for mutation in find_mutations(SOURCE):
        old, new = SOURCE.decode().splitlines(), mutation.apply(SOURCE).decode().splitlines()
        lines = [line.strip() for line in new if line not in old]
        found.add((mutation.kind, mutation.function, lines[0]))
    return found


def test_each_kind_of_change_is_made() -> None:
    assert changed() >= {
        ("op_change", "one", "if a <= b and not b:"),
        ("bool_swap", "one", "if a < b or not b:"),
        ("cond_negated", "one", "if not (a < b and not b):"),
        ("stmt_removed", "one", "pass"),
        ("const_off_by_one", "one", "a += 2"),
        ("arith_swap", "one", "return (a) - len(b, a)"),
        ("args_swapped", "one", "return (a) + len(a, b)"),
        ("args_swapped", "one", 'log(a, "é")'),
        ("op_change", "C.two", 'while self.x is None: return f"{1}" + "s"'),
    }


def test_nothing_outside_of_functions_and_no_text_is_changed() -> None:
    kinds = {(kind, line) for kind, function, line in changed()}
    assert not [line for _, line in kinds if line.startswith(("LIMIT", '"""', 'f"'))]
    assert not [line for kind, line in kinds if kind == "arith_swap" and '"s"' in line]


@pytest.mark.parametrize("path", ["hermes_exec/results.py", "hermes_agent/loop.py", "tests/conftest.py"])
def test_every_change_of_real_source_compiles_and_is_one_place(path: str) -> None:
    source = (Path(__file__).parents[4] / path).read_bytes()
    found = find_mutations(source)
    assert len(found) > 20
    for mutation in found:
        new = mutation.apply(source)
        ast.parse(new)
        assert new != source
        assert (new[: mutation.start], new[len(new) - len(source) + mutation.end :]) == (
            source[: mutation.start],
            source[mutation.end :],
        )


def test_files_that_cannot_be_changed_by_place_are_left_out() -> None:
    assert find_mutations(b"\xef\xbb\xbfdef f(a):\n    return a + 1\n") == []
    with pytest.raises(SyntaxError):
        find_mutations(b"def (")


def test_the_source_of_a_function() -> None:
    assert function_source(SOURCE, "C.two").startswith("    def two(self):\n        while")
