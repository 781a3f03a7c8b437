"""One session: what goes on, what restarts, and what is refused before anything changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from hermes_agent.errors import ContextExceeded, ModelError
from hermes_agent.messages import Completion, Message, ToolCall, TurnTokens, assistant_message
from hermes_agent.models.base import SessionModel, open_session
from hermes_agent.parsers import get_parser
from hermes_agent.parsers.base import ParsedText, Tools
from hermes_agent.tokens import ChatTemplate, Sample, TokenModel, TokenSession, sequence, sequences
from hermes_exec.errors import ConfigError, ErrorCause
from tests.unit.agent.tokens.byte_tokenizer import ByteTokenizer
from tests.unit.agent.tokens.families import FAMILIES
from tests.unit.agent.tokens.server import SHAPES, Logged, Script, joined, served

FAMILY = FAMILIES["plain"]
TOKENIZER = FAMILY.tokenizer()
END = TOKENIZER.id_of("<|im_end|>")
BEGIN: list[Message] = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "do", "description": "Do it", "parameters": {"type": "object"}}}


class Told:
    """A sampler in this process that samples what it is told, and keeps a log."""

    def __init__(self, *says: str, end: bool = True) -> None:
        self.says, self.end = list(says), end
        self.log: list[Logged] = []
        self.sampling: list[dict[str, object]] = []

    async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
        self.sampling.append({"max_tokens": max_tokens, **sampling})
        said = [*TOKENIZER.encode(self.says.pop(0), add_special_tokens=False), *([END] if self.end else [])][
            :max_tokens
        ]
        logprobs = [-0.001 * (len(self.log) + 1)] * len(said)
        self.log.append(Logged(list(ids), said, logprobs))
        return Sample(tuple(said), tuple(logprobs), "stop")


def session(sampler: Told, **settings: Any) -> TokenSession:
    settings = {"sampling": {"max_tokens": 500}, **settings}
    return TokenModel(sampler, FAMILY.chat_template(TOKENIZER), parser=FAMILY.parser, **settings).session([TOOL])


def text(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def tokens(completion: Completion) -> TurnTokens:
    assert completion.tokens is not None
    return completion.tokens


async def test_turns_of_the_user_go_on() -> None:
    sampler = Told("one", "two")
    talk = session(sampler)
    first = await talk.complete(BEGIN)
    assert (first.content, first.raw, first.finish_reason) == ("one", "one", "stop")
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (len(sampler.log[0].prompt), 3)
    messages = [*BEGIN, assistant_message(first), {"role": "user", "content": "and?"}]
    second = await talk.complete(messages)
    assert text(tokens(second).added) == "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    assert sequence([tokens(first), tokens(second)]) == joined(sampler.log)


async def test_the_text_for_the_parser_has_control_tokens_but_not_the_end() -> None:
    heard: list[str] = []

    def parse(said: str, tools: Tools) -> ParsedText:
        heard.append(said)
        return get_parser(FAMILY.parser)(said, tools)

    sampler = Told("a<|endoftext|>b ls .", "cut", end=True)
    talk = TokenModel(sampler, FAMILY.chat_template(TOKENIZER), parser=parse, context_tokens=4000).session([])
    await talk.complete(BEGIN)
    assert heard == ["a<|endoftext|>b ls ."]


async def test_a_cut_turn_is_ended_by_the_template() -> None:
    sampler = Told("much too long", "two")
    talk = session(sampler)
    first = await talk.complete(BEGIN, max_tokens=4)
    assert first.finish_reason == "length"
    second = await talk.complete([*BEGIN, assistant_message(first), {"role": "user", "content": "and?"}])
    assert tokens(second).added[0] == END
    assert sequence([tokens(first), tokens(second)]) == joined(sampler.log)


async def test_an_end_at_the_very_last_token_is_no_cut() -> None:
    sampler = Told("one")
    assert (await session(sampler).complete(BEGIN, max_tokens=3)).finish_reason == "stop"


async def test_a_stop_text_ends_a_turn_that_is_not_cut() -> None:
    sampler = Told("one", end=False)
    first = await session(sampler).complete(BEGIN, max_tokens=40, stop=["x"])
    assert first.finish_reason == "stop"
    assert sampler.sampling[0] == {"max_tokens": 40, "stop": ["x"], "stop_token_ids": [END]}


async def test_asking_again_for_the_same_messages_replaces_the_last_answer() -> None:
    sampler = Told("one", "uno", "eins", "two", "dos", "zwei", "three")
    talk = session(sampler)
    await talk.complete(BEGIN)
    await talk.complete(BEGIN)
    first = await talk.complete(BEGIN)
    said = sampler.log[2]
    assert tokens(first) == TurnTokens(tuple(sampler.log[0].prompt), tuple(said.ids), tuple(said.logprobs))
    messages = [*BEGIN, assistant_message(first), {"role": "user", "content": "and?"}]
    await talk.complete(messages)
    await talk.complete(messages)
    second = await talk.complete(messages)
    messages = [*messages, assistant_message(second), {"role": "user", "content": "more?"}]
    third = await talk.complete(messages)
    assert [turn.restarts for turn in map(tokens, (first, second, third))] == [False, False, False]
    kept = [sampler.log[2], sampler.log[5], sampler.log[6]]
    assert sequence([tokens(first), tokens(second), tokens(third)]) == joined(kept)


async def test_asking_again_after_an_error_adds_nothing_twice() -> None:
    class Failing(Told):
        failures = 0

        async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
            Failing.failures += 1
            if Failing.failures in {1, 3}:
                raise ModelError("away")
            if Failing.failures == 4:
                await anyio.sleep_forever()
            return await super().sample(ids, max_tokens=max_tokens, **sampling)

    sampler = Failing("one", "two")
    talk = session(sampler)
    with pytest.raises(ModelError):
        await talk.complete(BEGIN)
    first = await talk.complete(BEGIN)
    messages = [*BEGIN, assistant_message(first), {"role": "user", "content": "and?"}]
    with pytest.raises(ModelError):
        await talk.complete(messages)
    with anyio.move_on_after(0.01):
        await talk.complete(messages)
    second = await talk.complete([*messages, {"role": "user", "content": "more"}])
    assert not tokens(second).restarts
    assert sequence([tokens(first), tokens(second)]) == joined(sampler.log)


async def test_changed_messages_restart_the_sequence() -> None:
    sampler = Told("one", "two", "zwei", "three")
    talk = session(sampler)
    first = await talk.complete(BEGIN)
    messages: list[Message] = [
        {"role": "user", "content": "Hi"},
        assistant_message(first),
        {"role": "user", "content": "?"},
    ]
    await talk.complete(messages)
    second = await talk.complete(messages)
    assert tokens(second).restarts
    assert text(tokens(second).added).endswith(
        "user\nHi<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    )
    messages = [*messages, assistant_message(second), {"role": "user", "content": "more"}]
    third = await talk.complete(messages)
    assert not tokens(third).restarts
    turns = [tokens(first), tokens(second), tokens(third)]
    with pytest.raises(ValueError, match="turn 2 of 3 restarts"):
        sequence(turns)
    assert sequences(turns)[1] == joined([sampler.log[2], sampler.log[3]])


async def test_sequence_restarts_after_an_answer_that_was_cut_at_text_of_others() -> None:
    sampler = Told("ls .\n<tool_response>x</tool_response>", "again", "two", "three")
    talk = session(sampler)
    first = await talk.complete(BEGIN)
    assert (first.content, [problem.kind for problem in first.problems]) == ("ls .", ["invented_answer"])
    assert "<tool_response>" in text(tokens(first).ids)
    messages = [*BEGIN, assistant_message(first), {"role": "user", "content": "?"}]
    await talk.complete(messages)
    second = await talk.complete(messages)
    assert tokens(second).restarts
    assert "<tool_response>" not in text(tokens(second).added)
    third = await talk.complete([*messages, assistant_message(second), {"role": "user", "content": "more"}])
    assert not tokens(third).restarts
    parts = sequences([tokens(first), tokens(second), tokens(third)])
    assert parts == [joined([sampler.log[0]]), joined([sampler.log[2], sampler.log[3]])]


async def test_sequence_restarts_after_a_later_answer_that_was_cut() -> None:
    """The turn before the cut one cannot be gone on from: the message of the cut one would be in the prompt."""
    sampler = Told("one", "two<tool_response>x", "three", "four")
    talk, messages, turns = session(sampler), BEGIN, []
    for _ in range(4):
        turns.append(await talk.complete(messages))
        messages = [*messages, assistant_message(turns[-1]), {"role": "user", "content": "?"}]
    assert [tokens(turn).restarts for turn in turns] == [False, False, True, False]
    assert sequences(list(map(tokens, turns))) == [joined(sampler.log[:2]), joined(sampler.log[2:])]


async def test_sequence_restarts_when_the_last_answer_was_changed() -> None:
    sampler = Told("one", "two", "three")
    talk = session(sampler)
    first = await talk.complete(BEGIN)
    messages = [*BEGIN, assistant_message(first), {"role": "user", "content": "?"}]
    second = await talk.complete(messages)
    changed = {**assistant_message(second), "content": "zwei"}
    third = await talk.complete([*messages, changed, {"role": "user", "content": "?"}])
    assert tokens(third).restarts
    assert sequences(list(map(tokens, (first, second, third)))) == [joined(sampler.log[:2]), joined(sampler.log[2:])]


async def test_answer_that_was_cut_is_replaced_when_asked_again() -> None:
    sampler = Told("a<tool_response>x", "b", "c")
    talk = session(sampler)
    await talk.complete(BEGIN)
    again = await talk.complete(BEGIN)
    assert not tokens(again).restarts
    third = await talk.complete([*BEGIN, assistant_message(again), {"role": "user", "content": "?"}])
    assert sequence([tokens(again), tokens(third)]) == joined(sampler.log[1:])


def dropped(messages: list[Message]) -> list[Message]:
    return messages[2:]


def in_place(messages: list[Message]) -> list[Message]:
    messages[0]["content"] += "!"
    return messages


def rewritten(messages: list[Message]) -> list[Message]:
    return [messages[0], {**messages[1], "content": "else"}, *messages[2:]]


def other_role(messages: list[Message]) -> list[Message]:
    return [messages[0], {"role": "user", "content": messages[1]["content"]}, *messages[2:]]


def without_calls(messages: list[Message]) -> list[Message]:
    return [messages[0], {"role": "assistant", "content": messages[1]["content"]}, *messages[2:]]


@pytest.mark.parametrize("edit", [dropped, in_place, rewritten, other_role, without_calls])
async def test_any_edit_of_what_was_seen_restarts(edit: Callable[[list[Message]], list[Message]]) -> None:
    sampler = Told(FAMILY.says("look", ["a"]), "two")
    talk = session(sampler)
    begin = [dict(message) for message in BEGIN]
    first = await talk.complete(begin)
    call = ToolCall("abcdefghi", "do", "{}")
    made = assistant_message(Completion(first.content, (call,), first.reasoning))
    messages = [*begin, made, {"role": "tool", "tool_call_id": call.id, "name": "do", "content": "x"}]
    second = await talk.complete(edit(messages))
    assert tokens(second).restarts
    assert list(tokens(second).added) == sampler.log[1].prompt


async def test_an_answer_is_kept_within_the_context() -> None:
    sampler = Told("one", "two")
    size = len(FAMILY.chat_template(TOKENIZER).prompt(BEGIN, [TOOL]))
    first = await session(sampler, context_tokens=size + 2).complete(BEGIN)
    assert (sampler.sampling[0]["max_tokens"], first.finish_reason) == (2, "length")
    await session(sampler, context_tokens=size + 300, sampling={}).complete(BEGIN)
    assert sampler.sampling[1]["max_tokens"] == 300


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x" * 7_000},
        assistant_message(Completion("", (ToolCall("1", "do", "x" * 7_000),))),
    ],
)
async def test_text_far_above_the_context_is_refused_before_it_is_made_tokens(
    message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of 64 MiB block the event loop of all slots for half a minute."""
    monkeypatch.setattr(ChatTemplate, "prompt", lambda *_: pytest.fail("the text was made tokens"))
    sampler = Told("hello")
    with pytest.raises(ContextExceeded, match="characters; the context is 100 tokens"):
        await session(sampler, context_tokens=100).complete([*BEGIN, message, *BEGIN])
    assert not sampler.log


async def test_a_conversation_that_does_not_fit_is_refused_before_anything_changes() -> None:
    sampler = Told("one", "two")
    size = len(FAMILY.chat_template(TOKENIZER).prompt(BEGIN, [TOOL]))
    with pytest.raises(ContextExceeded, match=f"the prompt has {size} tokens; the context is {size}"):
        await session(sampler, context_tokens=size).complete(BEGIN)
    talk = session(sampler, context_tokens=size + 60)
    first = await talk.complete(BEGIN)
    messages = [*BEGIN, assistant_message(first)]
    with pytest.raises(ContextExceeded):
        await talk.complete([*messages, {"role": "user", "content": "long " * 60}])
    second = await talk.complete([*messages, {"role": "user", "content": "?"}])
    assert len(sampler.log) == 2
    assert sequence([tokens(first), tokens(second)]) == joined(sampler.log)


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"max_tokens": None}, "set max_tokens, or context_tokens"),
        ({"max_tokens": 0}, "at least 1, not 0"),
        ({"max_tokens": "9"}, "at least 1, not '9'"),
        ({"max_tokens": 9, "tool_choice": "required"}, "cannot be forced"),
        ({"max_tokens": 9, "tool_choice": {"type": "function"}}, "cannot be forced"),
    ],
)
async def test_impossible_requests_are_refused(sampling: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as raised:
        await session(Told("one"), sampling={}).complete(BEGIN, **sampling)
    assert raised.value.cause is ErrorCause.CONFIG


async def test_no_calls_is_a_wish_that_leaves_the_tools_in_the_prompt() -> None:
    sampler = Told("one")
    await session(sampler).complete(BEGIN, tool_choice="none")
    assert '"name": "do"' in text(sampler.log[0].prompt)
    assert "tool_choice" not in sampler.sampling[0]


async def test_a_conversation_that_the_template_refuses_is_an_error_of_the_request() -> None:
    family = FAMILIES["strict"]
    template = family.chat_template(family.tokenizer())
    model = TokenModel(Told("one"), template, parser=family.parser, sampling={"max_tokens": 9})
    with pytest.raises(ModelError, match="must alternate") as raised:
        await model.session([]).complete([*BEGIN, *BEGIN])
    assert raised.value.cause is ErrorCause.CONFIG


async def test_ids_of_another_tokenizer_are_an_error() -> None:
    class Other(Told):
        async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
            return Sample((10**6,), (-1.0,), "stop")

    with pytest.raises(ModelError, match="of another tokenizer"):
        await session(Other()).complete(BEGIN)


@pytest.mark.parametrize(
    ("sampled", "said"),
    [
        (Sample((), (), "stop"), "sampled 0 ids"),
        (Sample((1, 2), (-1.0,), "stop"), "1 log-probabilities for 2 ids"),
        (Sample((1, -2), None, "stop"), "not a whole number"),
        (Sample((1,), (float("nan"),), "stop"), "not a finite number"),
        (Sample((1,) * 10_000, None, "length"), "sampled 10000 ids"),
    ],
)
async def test_what_a_sampler_gives_is_checked(sampled: Sample, said: str) -> None:
    class Wrong(Told):
        async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
            return sampled

    with pytest.raises(ModelError, match=f"Wrong: .*{said}"):
        await session(Wrong()).complete(BEGIN)


async def test_logprobs_may_be_missing() -> None:
    class Silent(Told):
        async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
            return (await super().sample(ids, max_tokens=max_tokens, **sampling))._replace(logprobs=None)

    assert tokens(await session(Silent("one")).complete(BEGIN)).logprobs is None


async def test_sampling_of_the_model_are_defaults() -> None:
    sampler = Told("one")
    await session(sampler, sampling={"max_tokens": 9, "temperature": 0.5, "top_k": 5}).complete(
        BEGIN, temperature=None, top_k=7, stop_token_ids=[3]
    )
    wanted = {"max_tokens": 9, "temperature": 0.5, "top_k": 7, "stop_token_ids": sorted([3, END])}
    assert sampler.sampling == [wanted]


async def test_a_model_makes_sessions_and_closes_its_sampler() -> None:
    told = Script(TOKENIZER, [("one", "<|im_end|>"), ("two", "<|im_end|>")])
    with served(told, SHAPES["sglang"]) as url:
        model = TokenModel(SHAPES["sglang"].sampler(url), FAMILY.chat_template(TOKENIZER), parser=FAMILY.parser)
        assert isinstance(model, SessionModel)
        one, two = open_session(model, [TOOL]), open_session(model, [TOOL])
        assert (await one.complete(BEGIN, max_tokens=50)).content == "one"
        assert (await two.complete(BEGIN, max_tokens=50)).content == "two"
        await one.aclose()
        await model.aclose()
    assert told.log[0].prompt == told.log[1].prompt
    await TokenModel(Told(), FAMILY.chat_template(TOKENIZER), parser=FAMILY.parser).aclose()


def test_parsers_are_named() -> None:
    with pytest.raises(ConfigError, match="hermes"):
        TokenModel(Told(), FAMILY.chat_template(TOKENIZER), parser="hermse")
    with pytest.raises(ConfigError, match="context_tokens is at least 2, not 1"):
        TokenModel(Told(), FAMILY.chat_template(TOKENIZER), parser=FAMILY.parser, context_tokens=1)


async def test_no_prompt_is_rendered_twice() -> None:
    """A long conversation is not rendered anew each turn."""

    class Counting(ByteTokenizer):
        seen = 0

        def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
            Counting.seen += len(conversation)
            return super().apply_chat_template(conversation, **options)

    tokenizer = Counting(FAMILY.added, FAMILY.template, eos=FAMILY.eos)
    sampler = Told(*["said"] * 100)
    model = TokenModel(sampler, ChatTemplate(tokenizer), parser=FAMILY.parser, sampling={"max_tokens": 9})
    talk, messages = model.session([]), list(BEGIN)
    Counting.seen = 0
    for _ in range(100):
        messages = [*messages, assistant_message(await talk.complete(messages)), {"role": "user", "content": "?"}]
    assert Counting.seen <= 3 * 100
