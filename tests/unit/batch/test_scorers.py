"""Scorers and references: what they may be and return, and the answers to mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Hooks, Verdict
from hermes_batch import BatchConfig
from hermes_batch.references import load_reference, resolve_reference
from hermes_batch.scorers import ScorerFailed, count_parameters, load_scorer, load_tools, to_verdict
from hermes_exec.errors import ConfigError
from hermes_exec.tools import tool


@tool
def shout(text: str) -> str:
    """Return the text in capitals."""
    return text.upper()


class Number:
    """A scalar as numpy has it."""

    def item(self) -> float:
        return 0.25


class Array(Number):
    """An array as numpy has it."""

    def tolist(self) -> list[object]:
        return [1, [2.5]]


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("score", "verdict"),
    [
        (True, Verdict(1.0, True)),
        (False, Verdict(0.0, False)),
        (0.5, Verdict(0.5, False)),
        (2, Verdict(2.0, True)),
        (Number(), Verdict(0.25, False)),
        ({"reward": 1}, Verdict(1.0, True, info={})),
        ({"reward": 0.2, "solved": True, "why": "é"}, Verdict(0.2, True, info={"why": "é"})),
        ({"reward": Number(), 3: (1, Number())}, Verdict(0.25, False, info={"3": [1, 0.25]})),
        (Verdict(1, solved=True, exit_code=0, info={"n": {1}}), Verdict(1.0, True, 0, info={"n": [1]})),
    ],
)
def test_score_becomes_a_verdict(score: object, verdict: Verdict) -> None:
    made = to_verdict(score)
    assert (made._replace(info={}), dict(made.info)) == (verdict._replace(info={}), dict(verdict.info))
    json.dumps(dict(made.info), allow_nan=False)


def test_values_of_a_scorer_become_json() -> None:
    info = to_verdict(
        {"reward": 0, "nan": float("nan"), "path": Path("a"), "inner": {1: [Number()]}, "v": Array(), "x": Broken()}
    ).info
    expected = {"nan": "NaN", "inner": {"1": [0.25]}, "v": [1, [2.5]]}
    assert {name: info[name] for name in expected} == expected
    json.dumps(info, allow_nan=False)


@pytest.mark.parametrize("score", [None, "1", {}, {"rewrd": 1}, {"reward": None}, {"reward": float("nan")}, [1, 2], ()])
def test_other_results_are_no_score(score: object) -> None:
    with pytest.raises(ScorerFailed, match="a scorer returns a bool, a number, a mapping with `reward`, or a Verdict"):
        to_verdict(score)


class Judge:
    def __call__(self, slot: object, episode: object, task: object, weight: float = 1.0) -> float:
        return weight


async def two(slot: object, episode: object) -> bool:
    return True


def every(*arguments: object) -> int:
    return len(arguments)


@pytest.mark.parametrize(
    ("function", "count"),
    [(two, 2), (Judge(), 3), (every, 3), (partial(Judge(), weight=2), 3), (lambda _a, _b, _c=1: 1, 3)],
)
def test_scorer_may_take_the_task(function: Callable[..., object], count: int) -> None:
    assert count_parameters(function) == count


@pytest.mark.parametrize("function", [lambda: 1, lambda _: 1, lambda _a, _b, _c, _d: 1, lambda _a, _b, *, _key: 1])
def test_scorer_with_other_parameters(function: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"takes \(slot, episode\) or \(slot, episode, task\)"):
        count_parameters(function)


def config(tmp_path: Path, **more: Any) -> BatchConfig:
    return BatchConfig.of({"dataset": tmp_path / "p.jsonl", "out": tmp_path, "model": "m", **more})


def test_references_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_score.py").write_text("VALUE = 0.5\n")
    (tmp_path / "score.py").write_text(
        "from dataclasses import dataclass\nimport beside_score\nfrom hermes_exec.tools import tool\n"
        "@dataclass\nclass Point:\n    x: int\n"
        "def score(slot, episode):\n    return beside_score.VALUE\n"
        "@tool\ndef first() -> str:\n    'First.'\n    return 'a'\n"
        "TOOLS = [first]\nNUMBER = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert resolve_reference("score.py:score") == f"{tmp_path}/score.py:score"
    scorer = load_scorer("score.py:score")
    assert (scorer(None, None), load_reference(f"{tmp_path}/score.py:score")) == (0.5, scorer)
    assert load_reference("json:dumps") is json.dumps
    assert [each.name for each in load_tools(["score.py:TOOLS", shout]) if not isinstance(each, str)] == [
        "first",
        "shout",
    ]
    made = config(tmp_path, scorer="score.py:score", tools=["score.py:TOOLS", "terminal"], hooks=Hooks())
    assert (made.scorer, made.tools) == (f"{tmp_path}/score.py:score", (f"{tmp_path}/score.py:TOOLS", "terminal"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scorer": "score"}, "file.py:name or package.module:name, not 'score'"),
        ({"scorer": "nowhere.py:score"}, r"cannot load .*nowhere.py: FileNotFoundError"),
        ({"scorer": "no_such_package.x:score"}, "cannot load no_such_package.x: ModuleNotFoundError"),
        ({"scorer": "bad.py:score"}, r"cannot load .*bad.py: ZeroDivisionError"),
        ({"scorer": "quit.py:score"}, r"cannot load .*quit.py: SystemExit: 0"),
        ({"scorer": "good.py:scor"}, r"good.py has no 'scor'; did you mean 'score'"),
        ({"scorer": "good.py:NUMBER"}, "^scorer: give a function"),
        ({"scorer": "good.py:none"}, r"none takes \(\)"),
        ({"scorer": 3}, "^scorer: give a function"),
        ({"tools": ["good.py:NUMBER"]}, "^tools: 'good.py:NUMBER' is 3, not a tool made with @tool"),
        ({"tools": ["termnal"]}, "unknown tool 'termnal'"),
        ({"tools": [print]}, "not a tool made with @tool"),
        ({"hooks": {"on_turn": print}}, "give hermes_agent.Hooks, not dict"),
    ],
)
def test_wrong_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "good.py").write_text("NUMBER = 3\ndef score(slot, episode): ...\ndef none(): ...\n")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    (tmp_path / "quit.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **settings)
