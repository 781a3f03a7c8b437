"""Checks that the documentation shows: no cheat is paid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Rollout, Scoring, ScriptedModel
from hermes_exec import SandboxPool

pytestmark = pytest.mark.anyio
DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def documented_scoring(page: str, mention: str) -> Scoring:
    (block,) = (block for block in BLOCK.findall((DOCS / page).read_text("utf-8")) if mention in block)
    names: dict[str, Any] = {}
    exec(block.partition("async def main")[0], names)
    scoring: Scoring = names["scoring"] if "scoring" in names else names["rollout"].scoring
    return scoring


async def reward(scoring: Scoring, script: str) -> float | None:
    call = {"name": "terminal", "arguments": {"command": script}}
    rollout = Rollout(messages="Do it.", files={"names.txt": "b\na\n"}, scoring=scoring)
    async with SandboxPool("local") as pool:
        answer = f"<tool_call>{json.dumps(call)}</tool_call>"
        return (await rollout.run(pool, ScriptedModel([answer, "Done."]))).reward


@pytest.mark.parametrize("page", ["rewards.md", "agent.md"])
@pytest.mark.parametrize(
    ("script", "paid"),
    [
        ("sort names.txt > sorted.txt", 1.0),
        ("true", 0.0),
        (": > sorted.txt", 0.0),
        ("ln -s expected sorted.txt", 0.0),
        ("ln -s names.txt sorted.txt; ln -sf names.txt expected", 0.0),
        ("mkdir sorted.txt", 0.0),
        ("printf 'x\\n' | tee sorted.txt > expected; chmod 444 expected", 0.0),
        ("mkdir -p ~/bin; printf '#!/bin/sh\\n' | tee cmp > ~/bin/cmp; chmod +x cmp ~/bin/cmp; : > sorted.txt", 0.0),
        ("(while :; do cp expected sorted.txt; done) >/dev/null 2>&1 & echo a > sorted.txt", 0.0),
    ],
)
async def test_documented_comparison_pays_only_for_the_right_file(page: str, script: str, paid: float) -> None:
    assert await reward(documented_scoring(page, '"cmp sorted.txt expected"'), script) == paid


@pytest.mark.parametrize(
    ("source", "others", "paid"),
    [
        ("def square(n): return n * n", "", 1.0),
        ("import os; os._exit(0)", "", 0.0),
        ("print(9)", "", 0.0),
        ("def square(n): return type('E', (), {'__eq__': lambda a, b: True})()", "", 0.0),
        ("def square(n): return 0", "echo 'def run(*a, **k): raise SystemExit(0)' > subprocess.py", 0.0),
        ("def square(n): return 0", "echo 'raise SystemExit(0)' | tee sitecustomize.py > json.py", 0.0),
        ("def square(n): return 0", "echo 'pass' > check.py; chmod 444 check.py", 0.0),
        ("import os, signal; os.kill(os.getppid(), signal.SIGINT)", "", 0.0),
        ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "", None),
        ("open('check.py', 'w').write('')", "", 0.0),
    ],
)
async def test_documented_check_of_code_pays_only_for_the_right_function(
    source: str, others: str, paid: float | None
) -> None:
    script = f"{others or 'true'}\ncat > sol.py <<'EOF'\n{source}\nEOF"
    assert await reward(documented_scoring("agent.md", "python3 -I check.py"), script) == paid
