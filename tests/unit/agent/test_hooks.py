"""Hooks and contexts: what they see, what they change, and what becomes of an episode when they raise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from hermes_agent import AgentLoop, Completion, Hooks, Message, ScriptedModel, ShortenOldResults, ToolCall
from hermes_agent.context import characters
from hermes_agent.hooks import Turn
from hermes_agent.models.scripted import call
from hermes_exec.errors import ConfigError, ErrorCause, SandboxDied
from hermes_exec.tools import Notice, ToolResult
from tests.unit.agent.toolboxes import FunctionTools, echo

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


def work(*xs: int) -> Completion:
    return Completion("", tuple(call("do", {"x": x}, call_id=f"c{x}") for x in xs))


async def test_a_blocked_call_is_not_made_and_the_model_hears_why() -> None:
    async def before(made: ToolCall) -> str | None:
        return "not on a Sunday" if '"x": 2' in made.arguments else None

    tools = FunctionTools(echo)
    loop = AgentLoop(ScriptedModel([work(1, 2), "ok"]), tools, hooks=Hooks(before_call=before))
    episode = await loop.run("x")
    assert [json.loads(arguments)["x"] for _, arguments, _ in tools.calls] == [1]
    assert json.loads(episode.messages[-2]["content"]) == {"error": "not on a Sunday", "error_kind": "blocked"}
    assert [(c.state, c.error_kind) for c in episode.tool_calls] == [("ended", None), ("not_begun", "blocked")]
    assert (episode.finish, episode.trainable) == ("answered", True)


async def test_after_call_may_change_a_result_and_what_it_took_out_stays_out() -> None:
    fitted: list[ToolResult] = []

    class Fitting(FunctionTools):
        async def fit_turn(self, results: Sequence[ToolResult]) -> Sequence[ToolResult]:
            fitted.extend(results)
            return results

    def after(made: ToolCall, result: ToolResult) -> ToolResult | None:
        return replace(result, content=result.content.replace("secret", "***")) if "secret" in result.content else None

    async def tool(arguments: dict[str, Any]) -> str:
        return "a secret" if arguments["x"] == 1 else "none"

    loop = AgentLoop(ScriptedModel([work(1, 2), "ok"]), Fitting(tool), hooks=Hooks(after_call=after))
    episode = await loop.run("x")
    assert [c.content for c in episode.tool_calls] == ['{"output": "a ***"}', '{"output": "none"}']
    assert "secret" not in str(fitted)


async def test_on_turn_sees_each_turn_with_its_results() -> None:
    turns: list[Turn] = []
    loop = AgentLoop(ScriptedModel([work(1, 2), "ok"]), FunctionTools(echo), hooks=Hooks(on_turn=turns.append))
    await loop.run("x")
    assert [(turn.number, [c.call_id for c in turn.calls]) for turn in turns] == [(1, ["c1", "c2"]), (2, [])]
    assert turns[1].completion.content == "ok"


@pytest.mark.parametrize("name", ["before_call", "after_call", "on_turn", "context"])
async def test_hook_whose_sandbox_died_is_no_mistake_of_the_hook(name: str) -> None:
    async def hook(*_: object) -> None:
        raise SandboxDied("gone")

    given: dict[str, Any] = {"context": hook} if name == "context" else {"hooks": Hooks(**{name: hook})}
    episode = await AgentLoop(ScriptedModel([work(1), "ok"]), FunctionTools(echo), **given).run("x")
    assert (episode.finish, episode.cause, episode.trainable) == ("infra", ErrorCause.INFRA, False)
    assert episode.failure is not None
    assert (episode.failure.kind, episode.failure.message) == ("SandboxDied", "gone")


@pytest.mark.parametrize("name", ["before_call", "after_call", "on_turn", "context"])
async def test_a_hook_that_raises_ends_its_episode_unscored(name: str) -> None:
    def broken(*given: object) -> None:
        raise ValueError("a bug")

    options: dict[str, Any] = {"context": broken} if name == "context" else {"hooks": Hooks(**{name: broken})}
    episode = await AgentLoop(ScriptedModel([work(1), "ok"]), FunctionTools(echo), **options).run("x")
    assert (episode.finish, episode.cause, episode.trainable) == ("infra", ErrorCause.CONFIG, False)
    assert f"the hook {name} raised ValueError: a bug" in episode.errors[0].message
    assert episode.messages[0] == {"role": "user", "content": "x"}


@pytest.mark.parametrize("name", ["before_call", "after_call", "on_turn", "context"])
async def test_hook_that_awaits_what_was_cancelled_ends_its_episode_unscored(name: str) -> None:
    async def hook(*_: object) -> None:
        raise asyncio.CancelledError

    options: dict[str, Any] = {"context": hook} if name == "context" else {"hooks": Hooks(**{name: hook})}
    episode = await AgentLoop(ScriptedModel([work(1), "ok"]), FunctionTools(echo), **options).run("x")
    assert (episode.finish, episode.cause, episode.trainable) == ("infra", ErrorCause.CONFIG, False)
    assert f"the hook {name} raised RuntimeError: it raised CancelledError" in episode.errors[0].message


@pytest.mark.parametrize(("name", "state"), [("before_call", "not_begun"), ("after_call", "ended")])
async def test_call_whose_hook_raised_is_recorded_as_far_as_it_came(name: str, state: str) -> None:
    def broken(*given: object) -> None:
        raise ValueError("a bug")

    tools = FunctionTools(echo)
    loop = AgentLoop(ScriptedModel([work(6172839), "ok"]), tools, hooks=Hooks(**{name: broken}))
    episode = await loop.run("x")
    (record,) = episode.tool_calls
    assert (record.state, record.ok, len(tools.calls)) == (state, False, 1 if state == "ended" else 0)
    assert "6172839" not in record.content
    assert "6172839" not in episode.messages[-1]["content"]


async def test_result_that_after_call_has_not_passed_is_not_shown() -> None:
    async def forever(made: ToolCall, given: ToolResult) -> None:
        await anyio.sleep_forever()

    loop = AgentLoop(
        ScriptedModel([work(6172839), "ok"]),
        FunctionTools(echo),
        max_tool_seconds=0.1,
        hooks=Hooks(after_call=forever),
    )
    episode = await loop.run("x")
    (record,) = episode.tool_calls
    assert (episode.finish, episode.trainable, record.state, record.ok) == ("budget", True, "ended", False)
    assert "6172839" not in record.content
    assert "6172839" not in episode.messages[-1]["content"]


async def test_a_hook_may_wait_and_is_cancelled_with_its_episode() -> None:
    async def forever(made: ToolCall) -> str | None:
        await anyio.sleep_forever()
        return None

    loop = AgentLoop(
        ScriptedModel([work(1), "ok"]), FunctionTools(echo), deadline_s=0.1, hooks=Hooks(before_call=forever)
    )
    with anyio.fail_after(10):
        assert (await loop.run("x")).finish == "deadline"


async def test_a_context_that_sends_everything_changes_nothing() -> None:
    tools = FunctionTools(echo)
    episode = await AgentLoop(ScriptedModel([work(1), "ok"]), tools, context=list).run("x")
    assert (episode.compacted, tools.forgotten) == (False, 0)


async def test_compaction_is_told_and_the_history_stays_whole() -> None:
    tools = FunctionTools(echo)
    model = ScriptedModel([*[work(n) for n in range(4)], "ok"])
    episode = await AgentLoop(model, tools, context=lambda history: [history[0], *history[1:][-2:]]).run("x")
    assert episode.compacted
    assert tools.forgotten == 3
    assert len(model.requests[4].messages) == 3
    assert len(episode.messages) == 10


def conversation(turns: int, size: int) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]
    for turn in range(turns):
        made = {"id": f"c{turn}", "type": "function", "function": {"name": "do", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": "x" * size},
        ]
    return messages


def test_old_results_are_shortened_first() -> None:
    history = conversation(10, 1000)
    sent = ShortenOldResults(8000)(history)
    assert len(sent) == len(history)
    assert sent[:2] == history[:2]
    assert list(sent[-6:]) == history[-6:]
    assert sent[3]["content"].startswith("x" * 100 + " … 850 characters")
    assert sum(map(characters, sent)) <= 8000
    assert history[3]["content"] == "x" * 1000


@pytest.mark.parametrize("limit", [300, 2000, 4000, 9000])
@pytest.mark.parametrize("turns", range(1, 12))
def test_no_result_is_without_its_call(limit: int, turns: int) -> None:
    sent = ShortenOldResults(limit, last=3)(conversation(turns, 1000))
    asked: set[str] = set()
    for message in sent:
        asked |= {made["id"] for made in message.get("tool_calls", ())}
        assert message["role"] != "tool" or message["tool_call_id"] in asked


def test_what_fits_is_the_same_list() -> None:
    history = conversation(3, 10)
    assert ShortenOldResults(10_000)(history) is history


@pytest.mark.parametrize("bounds", [{"max_chars": 0}, {"max_chars": 9, "first": 0}, {"max_chars": 9, "last": 0}])
def test_bounds_of_a_context_are_checked(bounds: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least"):
        ShortenOldResults(**bounds)


@pytest.mark.parametrize(
    ("name", "gives", "told"),
    [
        ("before_call", True, "the hook before_call returned bool, not str or None"),
        ("after_call", "x", "the hook after_call returned str, not ToolResult or None"),
        ("context", 3, "the hook context returned int, not Sequence or None"),
    ],
)
async def test_a_hook_that_gives_something_else_is_named(name: str, gives: object, told: str) -> None:
    def wrong(*given: object) -> object:
        return gives

    options: dict[str, Any] = {"context": wrong} if name == "context" else {"hooks": Hooks(**{name: wrong})}  # type: ignore[arg-type]
    episode = await AgentLoop(ScriptedModel([work(1), "ok"]), FunctionTools(echo), **options).run("x")
    assert (episode.finish, episode.cause) == ("infra", ErrorCause.CONFIG)
    assert told in episode.errors[0].message


@pytest.mark.parametrize("part", [{"context": 3}, {"hooks": Hooks(on_turn=3)}, {"sampling": {"messages": []}}])  # type: ignore[arg-type]
async def test_what_is_no_function_is_refused_at_once(part: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"is a function|sampling has messages"):
        AgentLoop(ScriptedModel([]), FunctionTools(echo), **part)


async def test_notices_may_be_changed_before_the_model_hears_them() -> None:
    class Noticing(FunctionTools):
        async def notices(self) -> list[Notice]:
            return [Notice("proc_1", "completed", "it printed hunter2", {})]

    hooks = Hooks(on_notice=lambda text: text.replace("hunter2", "***"))
    episode = await AgentLoop(ScriptedModel([work(1), "ok"]), Noticing(echo), hooks=hooks).run("x")
    assert json.loads(episode.messages[2]["content"])["notices"] == ["it printed ***"]


def test_the_latest_results_are_shortened_last() -> None:
    sent = ShortenOldResults(2_000)(conversation(3, 50_000))
    assert sum(map(characters, sent)) <= 2_000
    assert len(ShortenOldResults(2_000)(conversation(1, 50_000))) == 4
