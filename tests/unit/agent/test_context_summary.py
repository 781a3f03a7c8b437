"""Conversations whose old turns the model summarises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hermes_agent import AgentLoop, Completion, Episode, Message, ModelError, SummariseOldTurns, TokenUsage
from hermes_agent.context import characters
from hermes_exec.errors import ConfigError, ErrorCause
from tests.unit.agent.toolboxes import FunctionTools, ask, echo

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
LIMIT = 4000
USAGE = TokenUsage(10, 5, 1, 0.5)


class Summarist:
    """A model whose calls have long results for some turns. Without tools it summarises."""

    def __init__(self, turns: int, summary: str | Exception = "SUMMARY", chars: int = 300) -> None:
        self.turns, self.summary, self.chars = turns, summary, chars
        self.requests: list[list[Message]] = []
        self.summaries: list[list[Message]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        if not tools:
            self.summaries.append(list(messages))
            if isinstance(self.summary, Exception):
                raise self.summary
            return Completion(f"{self.summary} {len(self.summaries)}" if self.summary else "", usage=USAGE)
        self.requests.append(list(messages))
        number = len(self.requests)
        answer = ask(f"turn{number} " + "x" * self.chars) if number <= self.turns else Completion("done")
        return replace(answer, usage=USAGE)


async def run(model: Summarist, begin: list[Message] | str = "the task", **bounds: Any) -> Episode:
    context = SummariseOldTurns(LIMIT)
    return await AgentLoop(model, FunctionTools(echo), context=context, **bounds).run(begin)


def texts(messages: Sequence[Message]) -> str:
    return "\n".join(str(message["content"]) for message in messages)


async def test_old_turns_are_replaced_by_a_summary() -> None:
    model = Summarist(12)
    episode = await run(model)
    assert (episode.finish, episode.compacted, episode.turns) == ("answered", True, 13)
    assert len(episode.messages) == 26
    assert "SUMMARY" not in texts(episode.messages)
    assert max(sum(map(characters, request)) for request in model.requests) <= LIMIT
    last = model.requests[-1]
    assert f"SUMMARY {len(model.summaries)}" in texts(last)
    assert "turn12" in texts(last)
    assert last[0]["content"] == "the task"
    assert last[1]["role"] == "assistant"


async def test_the_summary_stays_when_the_rest_is_too_long() -> None:
    model = Summarist(12, chars=1200)
    await run(model)
    assert f"SUMMARY {len(model.summaries)}" in texts(model.requests[-1])
    assert "turn11" in texts(model.requests[-1])


async def test_a_summary_has_the_earlier_one_and_only_new_turns() -> None:
    model = Summarist(12)
    await run(model)
    first, second = (texts(messages[1:]) for messages in model.summaries[:2])
    assert "turn2" in first
    assert "SUMMARY 1" in second
    assert "turn2 " not in second


async def test_a_summary_joins_the_message_of_the_user_before_it() -> None:
    model = Summarist(8)
    begin = [{"role": "system", "content": "rules"}, {"role": "user", "content": "the task"}]
    await run(model, begin)
    last = model.requests[-1]
    assert [message["role"] for message in last[:3]] == ["system", "user", "assistant"]
    assert last[1]["content"].startswith("the task\n\n[The earlier part")
    assert begin[1] == {"role": "user", "content": "the task"}


async def test_summaries_count_in_usage_and_bounds() -> None:
    model = Summarist(12)
    episode = await run(model)
    requests = len(model.requests) + len(model.summaries)
    assert (episode.usage.requests, episode.usage.cost) == (requests, requests * 0.5)
    assert len(episode.completions) == requests
    assert (await run(Summarist(12), max_cost=3)).finish == "budget"


async def test_a_blank_summary_shortens_instead() -> None:
    model = Summarist(12, summary="")
    episode = await run(model)
    assert (episode.finish, episode.compacted) == ("answered", True)
    assert max(sum(map(characters, request)) for request in model.requests) <= LIMIT


async def test_a_failed_summary_is_the_failure_of_the_model() -> None:
    error = ModelError("no summary today", cause=ErrorCause.PROVIDER)
    episode = await run(Summarist(12, summary=error))
    assert (episode.finish, episode.cause, episode.trainable) == ("model_error", ErrorCause.PROVIDER, False)
    assert "no summary today" in episode.errors[-1].message


async def test_a_short_conversation_has_no_summary() -> None:
    model = Summarist(2)
    episode = await run(model)
    assert (episode.compacted, model.summaries) == (False, [])


async def test_episodes_of_one_context_have_their_own_summaries() -> None:
    context = SummariseOldTurns(LIMIT)
    one, two = Summarist(8), Summarist(8, summary="OTHER")
    for model in (one, two):
        await AgentLoop(model, FunctionTools(echo), context=context).run("the task")
    assert "SUMMARY" not in texts(two.requests[-1])


async def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_chars is at least 1"):
        SummariseOldTurns(0)
