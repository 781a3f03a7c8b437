"""What an episode's model is told beside the results of its calls: problems of its answers, and notices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes_agent import (
    AgentLoop,
    AnswerProblem,
    Completion,
    ScriptedModel,
)
from hermes_agent.loop import FINAL_ANSWER_NOTICE
from hermes_agent.messages import FinishReason
from hermes_exec.errors import ChannelLost
from hermes_exec.tools import Notice, ToolResult
from tests.unit.agent.toolboxes import FunctionTools, ask, echo, result, results

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


SPOILED = AnswerProblem("unread", "The answer looks like calls.", "Write calls like this: …", trainable=False)


async def test_problem_with_a_notice_goes_on_as_a_message_of_the_user() -> None:
    model = ScriptedModel([Completion("hm", problems=(SPOILED,)), "ok"])
    episode = await AgentLoop(model, FunctionTools(echo)).run("x")
    assert (episode.finish, episode.answer, episode.turns, episode.trainable) == ("answered", "ok", 2, False)
    assert [m["role"] for m in episode.messages] == ["user", "assistant", "user", "assistant"]
    assert episode.messages[2]["content"] == SPOILED.notice
    assert [(e.turn, e.where, e.kind, e.message) for e in episode.errors] == [
        (1, "model", "unread", "The answer looks like calls.")
    ]


async def test_problem_with_a_notice_stands_in_the_last_result_after_calls() -> None:
    problem = AnswerProblem("cut", "Text was cut.", "Your text was cut.")
    model = ScriptedModel([Completion("", ask(1).tool_calls, problems=(problem,)), "ok"])
    episode = await AgentLoop(model, FunctionTools(echo)).run("x")
    assert (episode.finish, episode.trainable) == ("answered", True)
    assert json.loads(results(episode)[0])["notices"] == ["Your text was cut."]


async def test_notices_of_one_turn_stand_together() -> None:
    class Noticing(FunctionTools):
        async def notices(self) -> list[Notice]:
            return [Notice("proc_1", "completed", "proc_1 ended with 0", {})]

    problem = AnswerProblem("cut", "Text was cut.", "Your text was cut.")
    model = ScriptedModel([Completion("", ask(1).tool_calls, problems=(problem,)), "ok"])
    episode = await AgentLoop(model, Noticing(echo), max_turns=1, final_answer=True).run("x")
    assert json.loads(results(episode)[0])["notices"] == [
        "proc_1 ended with 0",
        "Your text was cut.",
        FINAL_ANSWER_NOTICE,
    ]


@pytest.mark.parametrize(("finish", "end"), [("length", "max_tokens"), ("content_filter", "content_filter")])
async def test_problem_does_not_prolong_an_episode_that_ends_by_its_answer(finish: FinishReason, end: str) -> None:
    model = ScriptedModel([Completion("hm", finish_reason=finish, problems=(SPOILED,)), "ok"])
    episode = await AgentLoop(model, FunctionTools(echo)).run("x")
    assert (episode.finish, episode.turns, episode.trainable, len(episode.errors)) == (end, 1, False, 1)


async def test_problem_without_a_notice_is_recorded_only() -> None:
    model = ScriptedModel([Completion("done", problems=(AnswerProblem("cut", "Text was cut."),))])
    episode = await AgentLoop(model, FunctionTools(echo)).run("x")
    assert (episode.finish, episode.trainable, [e.kind for e in episode.errors]) == ("answered", True, ["cut"])


async def test_problem_in_every_turn_ends_with_the_turns() -> None:
    model = ScriptedModel([Completion("hm", problems=(SPOILED,))] * 3 + ["so"])
    episode = await AgentLoop(model, FunctionTools(echo), max_turns=3, final_answer=True).run("x")
    assert (episode.finish, episode.turns, episode.trainable, episode.answer) == ("max_turns", 3, False, "so")
    assert FINAL_ANSWER_NOTICE in episode.messages[-2]["content"]


async def test_notices_of_background_processes_are_told_before_the_next_turn() -> None:
    class Noticing(FunctionTools):
        async def notices(self) -> list[Notice]:
            return [Notice("proc_1", "completed", "proc_1 ended with 0", {})] if len(self.calls) == 1 else []

    model = ScriptedModel([ask(1), ask(2), "ok"])
    episode = await AgentLoop(model, Noticing(echo)).run("x")
    told = {"output": "1", "notices": ["proc_1 ended with 0"]}
    assert json.loads(model.requests[1].messages[-1]["content"]) == told
    assert json.loads(model.requests[2].messages[-1]["content"]) == {"output": "2"}
    assert [message["role"] for message in episode.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]


async def test_a_notice_beside_a_result_that_is_no_json_follows_its_text() -> None:
    async def tool(arguments: dict[str, Any]) -> ToolResult:
        return result("<persisted-output>\n…\n</persisted-output>")

    model = ScriptedModel([ask(1), "ok"])
    await AgentLoop(model, FunctionTools(tool), max_turns=1, final_answer=True).run("x")
    assert model.requests[1].messages[-1]["content"].endswith(f"</persisted-output>\n\n{FINAL_ANSWER_NOTICE}")


async def test_notices_that_cannot_be_had_end_the_episode_unscored() -> None:
    class Lost(FunctionTools):
        async def notices(self) -> list[Notice]:
            raise ChannelLost("gone")

    episode = await AgentLoop(ScriptedModel([ask(1)]), Lost(echo)).run("x")
    assert (episode.finish, episode.trainable) == ("infra", False)
