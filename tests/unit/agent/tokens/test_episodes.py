"""Episodes on token ids: what comes out is what the server sampled, on every template and in every wire shape."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from hermes_agent.episode import Episode
from hermes_agent.loop import FINAL_ANSWER_NOTICE, AgentLoop
from hermes_agent.messages import Message
from hermes_agent.tokens import ChatTemplate, TokenModel, sequence
from tests.unit.agent.tokens.byte_tokenizer import ByteTokenizer
from tests.unit.agent.tokens.families import FAMILIES, PLAIN, Family
from tests.unit.agent.tokens.server import SHAPES, Answer, Logged, Script, Shape, joined, served
from tests.unit.agent.toolboxes import FunctionTools

BEGIN: list[Message] = [{"role": "user", "content": "What do the notes say?\n"}]


async def notes(arguments: dict[str, Any]) -> str:
    return f"the notes of {arguments['x']}: 中文 é  {json.dumps(arguments)}"


def script(family: Family, tokenizer: ByteTokenizer, seed: int, turns: int = 3) -> Script:
    chance = random.Random(seed)
    says: list[tuple[str, str | None]] = []
    for turn in range(turns):
        given = [f"file {turn}{chance.randrange(100)}" for _ in range(chance.randint(1, family.most_calls))]
        says.append((family.says(f"notes of the turn {turn}", given), family.call_end))
    says.append((family.says("answer", []), family.answer_end))
    return Script(tokenizer, says, seed)


async def episode(family: Family, shape: Shape, told: Script, template: ChatTemplate, **settings: Any) -> Episode:
    with served(told, shape) as url:
        model = TokenModel(shape.sampler(f"{url}/v1"), template, parser=family.parser)
        try:
            return await AgentLoop(model, FunctionTools(notes), max_tokens=2000, **settings).run(BEGIN)
        finally:
            await model.aclose()


def assert_equals_log(done: Episode, log: list[Logged]) -> None:
    assert done.tokens is not None
    ids, mask, logprobs = joined(log)
    assert sequence(done.tokens) == (ids, mask, logprobs)


def results_of(messages: Sequence[Message], turn: int) -> tuple[list[str], list[str]]:
    """The results of a turn (from 1), and the ids of their calls."""
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    found = [message for message in messages[turns[turn - 1] : turns[turn]] if message["role"] == "tool"]
    return [message["content"] for message in found], [message["tool_call_id"] for message in found]


def text(tokenizer: ByteTokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FAMILIES)
async def test_ids_mask_and_logprobs_are_those_of_the_server(name: str, shape: str, seed: int) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    told = script(family, tokenizer, seed)
    done = await episode(family, SHAPES[shape], told, family.chat_template(tokenizer))
    assert (done.finish, done.turns, len(told.log)) == ("answered", 4, 4), done.errors
    assert all(call.ok for call in done.tool_calls)
    assert_equals_log(done, told.log)
    canonical = [tokenizer.encode(text(tokenizer, said.ids), add_special_tokens=False) for said in told.log]
    assert any(said.ids != ids for said, ids in zip(told.log, canonical, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
async def test_between_turns_stands_what_the_template_prints_for_results(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    told = script(family, tokenizer, 7)
    done = await episode(family, SHAPES["sglang"], told, family.chat_template(tokenizer))
    assert done.tokens is not None
    for number, turn in enumerate(done.tokens[1:], 1):
        results, ids = results_of(done.messages, number)
        assert text(tokenizer, list(turn.added)) == family.follows(results, ids, None)


@pytest.mark.loops
@pytest.mark.parametrize("name", FAMILIES)
async def test_closing_words_are_one_sequence_with_the_rest(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    told = script(family, tokenizer, 3, turns=2)
    settings = {"max_turns": 2, "final_answer": True}
    done = await episode(family, SHAPES["completions"], told, family.chat_template(tokenizer), **settings)
    assert (done.finish, len(told.log)) == ("max_turns", 3)
    assert_equals_log(done, told.log)
    assert json.dumps(FINAL_ANSWER_NOTICE) in text(tokenizer, told.log[-1].prompt).replace("\\", "")


@pytest.mark.parametrize(
    ("name", "shape"), [*((name, "sglang") for name in FAMILIES), *(("plain", shape) for shape in SHAPES)]
)
async def test_a_turn_that_failed_and_is_asked_again_adds_no_id_twice(name: str, shape: str) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    told = script(family, tokenizer, 11)
    told.faults = {1: [Answer(500, b"{}")], 2: [Answer(200, b"no json")], 3: [Answer(200, b"{}")]}
    done = await episode(family, SHAPES[shape], told, family.chat_template(tokenizer))
    assert (done.finish, len(told.log), len(told.asked)) == ("answered", 4, 7), done.errors
    assert [told.asked[1], told.asked[3], told.asked[5]] == [told.asked[2], told.asked[4], told.asked[6]]
    assert_equals_log(done, told.log)


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_answer_without_end_is_cut_and_the_template_ends_it(shape: str) -> None:
    family = FAMILIES["plain"]
    tokenizer = family.tokenizer()
    told = Script(tokenizer, [(family.says("x" * 900, []), family.answer_end)])
    with served(told, SHAPES[shape]) as url:
        model = TokenModel(SHAPES[shape].sampler(url), family.chat_template(tokenizer), parser=family.parser)
        done = await AgentLoop(model, FunctionTools(notes), max_tokens=40).run(BEGIN)
        assert done.finish == "max_tokens"
        assert_equals_log(done, told.log)
        assert len(told.log[0].ids) == 40
        await model.aclose()


async def test_smollm2_with_another_template_is_given_the_tools() -> None:
    family = FAMILIES["smollm2"]
    tokenizer = family.tokenizer()
    told = script(family, tokenizer, 5)
    done = await episode(family, SHAPES["vllm"], told, ChatTemplate(tokenizer, chat_template=PLAIN))
    assert_equals_log(done, told.log)
    prompt = text(tokenizer, told.log[0].prompt)
    assert '"name": "do"' in prompt
    assert prompt.startswith("<|im_start|>system\n<tools>\n")


async def test_the_whole_prompt_is_the_rendering_of_what_was_said() -> None:
    """An independent way to the same prompts, for a template that changes nothing: the texts of the assistant, as it
    wrote them, rendered with everything else.
    """
    family = FAMILIES["plain"]
    tokenizer = family.tokenizer()
    told = script(family, tokenizer, 13, turns=5)
    done = await episode(family, SHAPES["sglang"], told, family.chat_template(tokenizer))
    raw = iter([text(tokenizer, said.ids[:-1]) for said in told.log])
    said: list[Message] = [
        {"role": "assistant", "content": next(raw)} if message["role"] == "assistant" else message
        for message in done.messages
    ]
    rendered = tokenizer.apply_chat_template(
        said[:-1], tools=list(done.tools), chat_template=None, tokenize=False, add_generation_prompt=True
    )
    assert text(tokenizer, told.log[-1].prompt) == rendered
