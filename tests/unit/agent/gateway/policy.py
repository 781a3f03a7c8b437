"""A policy on token ids in this process: each of its answers has a number in its text, and its log is the evidence."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from hermes_agent.errors import ModelError
from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.request import Answer, ChatRequest
from hermes_agent.gateway.tree import CapturedSequence
from hermes_agent.messages import Message, assistant_message
from hermes_agent.tokens import Sample, TokenModel
from tests.unit.agent.tokens.families import Family
from tests.unit.agent.tokens.server import Logged

TOOL = {"type": "function", "function": {"name": "do", "description": "Do it", "parameters": {"type": "object"}}}
_NUMBER = re.compile(r"#(\d+)#")


class Policy:
    """A sampler. `write` returns the text of an answer, without its end; `failures` are raised before anything else.

    A sample waits for `gate`, then takes up to `most_steps` steps of the event loop.
    """

    def __init__(self, family: Family, write: Callable[[int], str], *, seed: int = 0, most_steps: int = 0) -> None:
        self.family, self.tokenizer = family, family.tokenizer()
        self.log: list[Logged] = []
        self.sampling: list[dict[str, Any]] = []
        self.failures: list[Exception] = []
        self.gate = anyio.Event()
        self.gate.set()
        self.calls = 0
        self._write, self._chance, self._most_steps = write, random.Random(seed), most_steps

    async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
        self.calls += 1
        self.sampling.append({"max_tokens": max_tokens, **sampling})
        await self.gate.wait()
        for _ in range(self._chance.randint(0, self._most_steps)):
            await checkpoint()
        if self.failures:
            raise self.failures.pop(0)
        text = self._write(len(self.log))
        ends = self.family.call_end if '"do"' in text or "<tool_call>do" in text else self.family.answer_end
        sampled = [*self.tokenizer.sampled(text, self._chance), self.tokenizer.id_of(ends)]
        finish = "stop" if len(sampled) <= max_tokens else "length"
        sampled = sampled[:max_tokens]
        logprobs = [-self._chance.expovariate(1.0) for _ in sampled]
        self.log.append(Logged(list(ids), sampled, logprobs))
        return Sample(tuple(sampled), tuple(logprobs), "stop" if finish == "stop" else "length")

    def number_of(self, answer: Answer) -> int:
        """The place of an answer in the log. Its text must be the answer's, unless it was cut before the number."""
        tokens = answer.completion.tokens
        assert tokens is not None
        (number,) = (place for place, logged in enumerate(self.log) if tuple(logged.logprobs) == tokens.logprobs)
        found = _NUMBER.search(answer.completion.raw or "")
        assert number == int(found.group(1)) if found else answer.completion.finish_reason == "length"
        return number

    def model(self, **settings: Any) -> TokenModel:
        settings = {"context_tokens": 100_000, **settings}
        return TokenModel(self, self.family.chat_template(self.tokenizer), parser=self.family.parser, **settings)


def answers_of(family: Family, calls: Callable[[int], int] = lambda _: 0) -> Callable[[int], str]:
    """A `write` of numbered answers with this number of calls each."""

    def write(number: int) -> str:
        most = min(calls(number), family.most_calls)
        return family.says(f"#{number}# said", [f"file #{number}# {place}" for place in range(most)])

    return write


def request(messages: Sequence[Message], **settings: Any) -> ChatRequest:
    return ChatRequest(**{"model": "policy", "messages": list(messages), "tools": [TOOL], **settings})


async def ask(capture: Capture, messages: Sequence[Message], **settings: Any) -> Answer:
    """Send a request and get its answer."""
    answer = await capture.answer(request(messages, **settings))
    capture.note_delivered(answer)
    return answer


def go_on(messages: Sequence[Message], answer: Answer, text: str = "and?") -> list[Message]:
    """The messages after an answer: results of its calls, or a text of the user."""
    calls = answer.completion.tool_calls
    results = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text} for call in calls]
    more: list[Message] = results or [{"role": "user", "content": text}]
    return [*messages, assistant_message(answer.completion), *more]


def trained_turns(sequences: Sequence[CapturedSequence]) -> list[Logged]:
    """The unmasked runs of sequences, each with all ids before it, in order. All else is masked."""
    turns = []
    for each in sequences:
        assert each.logprobs is not None
        start = 0
        while start < len(each.ids):
            end = start
            while end < len(each.ids) and each.mask[end] != -100:
                end += 1
            if end == start:
                assert each.logprobs[start] == 1.0
                start += 1
                continue
            assert each.mask[start:end] == each.ids[start:end]
            turns.append(Logged(each.ids[:start], each.ids[start:end], each.logprobs[start:end]))
            start = end
    return turns


def fails() -> ModelError:
    return ModelError("away: https://secret.example/v1")
