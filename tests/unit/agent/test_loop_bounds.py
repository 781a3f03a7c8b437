"""How an episode ends when the model says nothing of use, and when one of its bounds is reached."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest

from hermes_agent import AgentLoop, Completion, ContextExceeded, Episode, Message, ScriptedModel, TokenUsage
from hermes_agent.loop import FINAL_ANSWER_NOTICE
from hermes_agent.messages import FinishReason, TurnTokens
from hermes_agent.models.scripted import call
from hermes_exec.errors import ConfigError, ErrorCause
from hermes_exec.tools import Notice
from tests.unit.agent.toolboxes import FunctionTools, ask, echo

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
WORK = Completion("", (call("do", {"x": 1}, call_id="c"),), usage=TokenUsage(10, 5, 1, 0.25))


@pytest.mark.parametrize("content", [None, "", " \n"])
@pytest.mark.parametrize("reasoning", [None, "hm"])
async def test_an_empty_answer_is_named_so_and_not_trainable(content: str | None, reasoning: str | None) -> None:
    episode = await AgentLoop(ScriptedModel([WORK, Completion(content, (), reasoning)]), FunctionTools(echo)).run("x")
    assert (episode.finish, episode.cause, episode.trainable) == ("empty", ErrorCause.POLICY, False)


@pytest.mark.parametrize(("reason", "finish"), [("content_filter", "content_filter"), ("length", "max_tokens")])
async def test_finish_reasons(reason: FinishReason, finish: str) -> None:
    episode = await AgentLoop(ScriptedModel([Completion("x", finish_reason=reason)]), FunctionTools(echo)).run("x")
    assert (episode.finish, episode.trainable) == (finish, finish == "max_tokens")


async def test_overflow_before_the_first_turn_is_not_trainable() -> None:
    first = await AgentLoop(ScriptedModel([ContextExceeded("long")]), FunctionTools(echo)).run("x")
    later = await AgentLoop(ScriptedModel([WORK, ContextExceeded("long")]), FunctionTools(echo)).run("x")
    assert [(e.finish, e.turns, e.trainable) for e in (first, later)] == [("context", 0, False), ("context", 1, True)]


@pytest.mark.parametrize("bound", [{"max_tokens_total": 30}, {"max_cost": 0.5}])
async def test_budgets_of_tokens_and_cost(bound: dict[str, Any]) -> None:
    episode = await AgentLoop(ScriptedModel([WORK] * 9), FunctionTools(echo), **bound).run("x")
    assert (episode.finish, episode.cause, episode.turns, episode.trainable) == ("budget", ErrorCause.BUDGET, 2, True)
    assert episode.messages[-1]["role"] == "tool"
    assert episode.usage.cost == 0.5


async def test_tool_seconds_end_a_call_and_the_episode() -> None:
    async def tool(arguments: dict[str, Any]) -> str:
        await anyio.sleep(0 if tools.calls[1:] == [] else 60)
        return ""

    tools = FunctionTools(tool)
    with anyio.fail_after(10):
        episode = await AgentLoop(ScriptedModel([WORK] * 9), tools, max_tool_seconds=0.2).run("x")
    assert (episode.finish, episode.trainable, episode.turns) == ("budget", True, 2)
    assert [record.state for record in episode.tool_calls] == ["ended", "begun"]
    assert "ended while this call ran" in episode.messages[-1]["content"]
    assert episode.tool_calls[1].duration_s > 0.1
    assert episode.counts == (2, 2, 1, 1)


async def test_tool_seconds_end_the_wait_for_notices() -> None:
    class Endless(FunctionTools):
        async def notices(self) -> Sequence[Notice]:
            await anyio.sleep_forever()
            return ()

    episode = await AgentLoop(ScriptedModel([WORK] * 9), Endless(echo), max_tool_seconds=0.2).run("x")
    assert (episode.finish, episode.trainable, episode.turns) == ("budget", True, 1)
    assert [record.state for record in episode.tool_calls] == ["ended"]


@pytest.mark.parametrize("slow", ["model", "tool"])
async def test_deadline_ends_with_what_exists(slow: str) -> None:
    class Slow:
        async def complete(
            self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
        ) -> Completion:
            if len(messages) > 1 and slow == "model":
                await anyio.sleep_forever()
            return WORK

    async def tool(arguments: dict[str, Any]) -> str:
        if slow == "tool":
            await anyio.sleep_forever()
        return "done"

    with anyio.fail_after(10):
        episode = await AgentLoop(Slow(), FunctionTools(tool), deadline_s=0.2).run("x")
    assert (episode.finish, episode.cause, episode.trainable) == ("deadline", ErrorCause.BUDGET, False)
    assert [message["role"] for message in episode.messages] == ["user", "assistant", "tool"]
    assert [record.state for record in episode.tool_calls] == ["ended" if slow == "model" else "begun"]


async def test_calls_one_after_another() -> None:
    order: list[str] = []

    async def tool(arguments: dict[str, Any]) -> str:
        order.append(f"+{arguments['x']}")
        await anyio.lowlevel.checkpoint()
        order.append(f"-{arguments['x']}")
        return ""

    calls = tuple(call("do", {"x": x}) for x in range(4))
    await AgentLoop(ScriptedModel([Completion("", calls), "ok"]), FunctionTools(tool), parallel_calls=1).run("x")
    assert order == [f"{sign}{x}" for x in range(4) for sign in "+-"]


async def test_counts_of_calls() -> None:
    broken = '<tool_call>{"name": "do", argu}</tool_call>'
    good = '<tool_call>{"name": "do", "arguments": {"x": 1}}</tool_call>'
    episode = await AgentLoop(ScriptedModel([broken + good, good, "ok"]), FunctionTools(echo), max_tool_calls=2).run(
        "x"
    )
    assert episode.counts == (3, 2, 1, 0)


class Sessions:
    """A model with a session for each episode, which repeats one call and tells its tokens."""

    def __init__(self, ids: list[str]) -> None:
        self.ids, self.closed, self.opened = ids, 0, 0

    def session(self, tools: Sequence[Mapping[str, Any]]) -> Sessions:
        self.opened += 1
        self.tools = tools
        return self

    async def complete(self, messages: Sequence[Message], **sampling: object) -> Completion:
        turn = sum(message["role"] == "assistant" for message in messages)
        tokens = TurnTokens((turn,), (turn, turn), (-1.0, -1.0))
        if turn == len(self.ids):
            return Completion("done", tokens=tokens)
        return Completion("", (call("do", {"x": turn}, call_id=self.ids[turn]),), tokens=tokens)

    async def aclose(self) -> None:
        self.closed += 1


async def episode_of(model: Sessions, tools: FunctionTools) -> Episode:
    return await AgentLoop(model, tools).run("x")


async def test_a_session_serves_one_episode_and_its_tokens_are_kept() -> None:
    model, tools = Sessions(["a", "b"]), FunctionTools(echo)
    episode = await episode_of(model, tools)
    assert (model.opened, model.closed) == (1, 1)
    assert episode.tokens == tuple(TurnTokens((n,), (n, n), (-1.0, -1.0)) for n in range(3))
    assert (await AgentLoop(ScriptedModel(["ok"]), tools).run("x")).tokens is None


async def test_sampled_ids_stay_as_sampled_and_results_have_ids_of_their_own() -> None:
    model, tools = Sessions(["same", "same"]), FunctionTools(echo)
    episode = await episode_of(model, tools)
    assert [message["tool_call_id"] for message in episode.messages if message["role"] == "tool"] == ["same", "same"]
    results = [call_id for _, _, call_id in tools.calls]
    assert results[0] == "same"
    assert len(set(results)) == 2


async def test_a_session_that_cannot_be_opened_ends_its_episode_only() -> None:
    class Closed(Sessions):
        def session(self, tools: Sequence[Mapping[str, Any]]) -> Sessions:
            raise RuntimeError("no session")

    episode = await episode_of(Closed([]), FunctionTools(echo))
    assert (episode.finish, episode.trainable, episode.turns) == ("model_error", False, 0)


async def test_a_session_that_cannot_be_closed_costs_nothing() -> None:
    class Stuck(Sessions):
        async def aclose(self) -> None:
            raise RuntimeError("stuck")

    assert (await episode_of(Stuck([]), FunctionTools(echo))).finish == "answered"


async def test_max_turns_ends_with_a_final_answer() -> None:
    model = ScriptedModel([ask(1), ask(2), Completion("as far as I got")])
    episode = await AgentLoop(model, FunctionTools(echo), max_turns=2, final_answer=True).run("go")
    assert (episode.finish, episode.turns, episode.answer) == ("max_turns", 2, "as far as I got")
    assert (episode.cause, episode.trainable) == (ErrorCause.BUDGET, True)
    assert model.requests[2].sampling["tool_choice"] == "none"
    assert model.requests[2].tools == model.requests[0].tools
    assert json.loads(model.requests[2].messages[-1]["content"]) == {"output": "2", "notices": [FINAL_ANSWER_NOTICE]}
    assert [message["role"] for message in episode.messages[-2:]] == ["tool", "assistant"]


async def test_max_turns_without_a_final_answer() -> None:
    model = ScriptedModel([ask(1)])
    episode = await AgentLoop(model, FunctionTools(echo), max_turns=1).run("go")
    assert (episode.finish, len(model.requests), episode.messages[-1]["role"]) == ("max_turns", 1, "tool")


async def test_failing_final_answer_does_not_change_the_finish() -> None:
    episode = await AgentLoop(ScriptedModel([ask(1)]), FunctionTools(echo), max_turns=1, final_answer=True).run("go")
    assert (episode.finish, episode.trainable) == ("max_turns", True)
    assert [error.where for error in episode.errors] == ["model"]
    assert episode.messages[-1]["role"] == "tool"


async def test_calls_in_the_final_answer_are_not_made() -> None:
    tools = FunctionTools(echo)
    episode = await AgentLoop(ScriptedModel([ask(1), ask(2)]), tools, max_turns=1, final_answer=True).run("go")
    assert len(tools.calls) == len(episode.tool_calls) == 1
    assert (episode.finish, episode.answer, episode.messages[-1]["role"]) == ("max_turns", None, "tool")
    assert [error.where for error in episode.errors] == ["model"]
    assert episode.usage == TokenUsage(20, 10, 2)


async def test_max_tool_calls_refuses_the_rest_and_asks_for_the_answer() -> None:
    tools = FunctionTools(echo)
    episode = await AgentLoop(
        ScriptedModel([ask(1), ask(2, 3, 4), "end"]), tools, max_tool_calls=3, final_answer=True
    ).run("go")
    assert [json.loads(arguments)["x"] for _, arguments, _ in tools.calls] == [1, 2, 3]
    assert (episode.finish, episode.cause, episode.answer) == ("max_turns", ErrorCause.BUDGET, "end")
    assert episode.tool_calls[-1].error_kind == "no_calls_left"


async def test_exactly_max_tool_calls_may_answer() -> None:
    episode = await AgentLoop(ScriptedModel([ask(1), "end"]), FunctionTools(echo), max_tool_calls=1).run("go")
    assert episode.finish == "answered"


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_turns": 0},
        {"max_tool_calls": -1},
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"deadline_s": 0},
        {"deadline_s": math.nan},
        {"max_tokens_total": 0},
        {"max_cost": -1.0},
        {"max_tool_seconds": 0.0},
    ],
)
async def test_bounds_are_checked(bounds: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bounds))):
        AgentLoop(ScriptedModel([]), FunctionTools(echo), **bounds)
