"""Each sampled id of a delivered turn is trained once, after the ids that it continued, whatever a harness does."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.request import Answer
from hermes_agent.messages import Message
from tests.unit.agent.gateway.policy import TOOL, Policy, answers_of, go_on, request, trained_turns
from tests.unit.agent.tokens.families import FAMILIES, Family

OTHER_TOOL = {
    "type": "function",
    "function": {"name": "see", "description": "See it", "parameters": {"type": "object"}},
}


class Harness:
    """Agents that send requests as careless programs do. `delivered` are the numbers of the answers that arrived."""

    def __init__(self, capture: Capture, policy: Policy, chance: random.Random) -> None:
        self.capture, self.policy, self.chance = capture, policy, chance
        self.delivered: set[int] = set()
        self.names = 0

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(self.chance.randint(1, 3)):
                tasks.start_soon(self._converse)

    async def _converse(self) -> None:
        # Some agents begin alike.
        messages: list[Message] = [{"role": "user", "content": self.chance.choice(["Hello", "Hi", f"{self._name()}"])}]
        if self.chance.random() < 0.5:
            messages.insert(0, {"role": self.chance.choice(["system", "developer"]), "content": "Be good."})
        tools = [TOOL]
        step: Callable[[list[Message]], Awaitable[list[Message]]]
        for _ in range(self.chance.randint(1, 5)):
            answer = await self._ask(messages, tools)
            if answer is None:
                continue
            step = self.chance.choices([self._go_on, self._branch, self._compact], [6, 1, 1])[0]
            messages = await step(go_on(messages, answer, f"result {self._name()}"))
            if self.chance.random() < 0.1:
                tools = [TOOL, OTHER_TOOL]

    async def _ask(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> Answer | None:
        """Ask until an answer is used. None: the harness gives the request up."""
        settings: dict[str, Any] = {"tools": tools}
        if self.chance.random() < 0.2:
            settings["max_tokens"] = self.chance.randint(12, 40)
        if self.chance.random() < 0.2:
            settings["idempotency_key"] = self._name()
        for attempt in range(3):
            retry = attempt if self.chance.random() < 0.8 else 0
            rendered = [self._rewrite(message) for message in messages]
            answer = await self._attempt(rendered, {**settings, "retry_count": retry})
            if answer is not None:
                return answer
        return None

    async def _attempt(self, messages: list[Message], settings: dict[str, Any]) -> Answer | None:
        answer: Answer | None = None

        async def wait() -> None:
            nonlocal answer
            answer = await self.capture.answer(request(messages, **settings))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            if self.chance.random() < 0.2:  # the client disconnects, perhaps before the answer is there
                for _ in range(self.chance.randint(1, 12)):
                    await checkpoint()
                tasks.cancel_scope.cancel()
        if answer is None:
            return None
        if self.chance.random() < 0.15:  # the connection breaks before the last byte
            self.capture.note_undelivered(answer)
            return None
        self.capture.note_delivered(answer)
        self.delivered.add(self.policy.number_of(answer))
        return answer

    async def _go_on(self, messages: list[Message]) -> list[Message]:
        return messages

    async def _branch(self, messages: list[Message]) -> list[Message]:
        # Not between calls and their results.
        cuts = [place for place, message in enumerate(messages) if message["role"] != "tool" and place > 0]
        cuts = [place for place in cuts if not messages[place - 1].get("tool_calls")]
        return [*messages[: self.chance.choice([*cuts, len(messages)])], {"role": "user", "content": self._name()}]

    async def _compact(self, messages: list[Message]) -> list[Message]:
        return [messages[0], {"role": "user", "content": f"So far: {messages[-2]['content']}"}]

    def _rewrite(self, message: Message) -> Message:
        """Write a message as another program would that keeps its meaning."""
        chance, message = self.chance, dict(message)
        if message["role"] == "assistant":
            message.pop("reasoning_content", None)
            if chance.random() < 0.5:
                message["content"] = message["content"].strip() or None
        elif message["role"] == "user" and chance.random() < 0.3:
            message["content"] = [{"type": "text", "text": message["content"]}]
        if "tool_calls" in message and chance.random() < 0.5:
            message["tool_calls"] = [
                {
                    **call,
                    "function": {**call["function"], "arguments": call["function"]["arguments"].replace(" ", "  ", 1)},
                }
                if call["function"]["arguments"].startswith('{"x": ')
                else call
                for call in message["tool_calls"]
            ]
        return message

    def _name(self) -> str:
        self.names += 1
        return f"name{self.names}"


def writes(family: Family, chance: random.Random) -> Callable[[int], str]:
    plain = answers_of(family, lambda _: chance.choice([0, 0, 1, 2, 3]))

    def write(number: int) -> str:
        text = plain(number)
        if family.parser == "hermes" and chance.random() < 0.1:
            return f'#{number}# <tool_call>\n{{"name": "broken\n</tool_call>'
        if family.parser == "hermes" and chance.random() < 0.1:
            return f"#{number}# then\n<tool_response>invented</tool_response>"
        return text

    return write


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_each_delivered_turn_is_trained_once_after_its_prompt(name: str, seed: int) -> None:
    chance = random.Random(seed)
    policy = Policy(FAMILIES[name], writes(FAMILIES[name], chance), seed=seed, most_steps=10)

    async def run() -> tuple[Capture, Harness]:
        async with Capture(policy.model()) as capture:
            harness = Harness(capture, policy, chance)
            await harness.run()
        return capture, harness

    capture, harness = anyio.run(run)
    # A request that continues an answer proves that it arrived: the harness never does so with one that did not.
    expected = [policy.log[number] for number in sorted(harness.delivered)]
    assert sorted(trained_turns(capture.captured.sequences())) == sorted(expected)
    captured = capture.captured
    assert [node.number for node in captured.nodes] == sorted(node.number for node in captured.nodes)
    if harness.delivered:
        main = captured.main
        assert main[0] in captured.roots
        assert all(node.delivered for node in main)
        assert main[-1].conversation[-1]["role"] == "assistant"
