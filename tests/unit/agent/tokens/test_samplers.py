"""Samplers: their requests, and answers that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hermes_agent.errors import ModelError
from hermes_agent.tokens import Sample, SGLangSampler, VLLMSampler, VLLMTokensSampler
from hermes_agent.tokens.samplers import HTTPSampler
from hermes_exec.errors import ErrorCause
from tests.unit.agent.tokens.server import SHAPES, Answer, Logged, serving

PROMPT = [1, 2, 3]
SAID = Logged(PROMPT, [4, 5], [-0.5, -0.25])
FULL = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["x"],
    "stop_token_ids": [9],
    "min_tokens": 2,
    "presence_penalty": None,
}


async def asked(shape: str, **sampling: Any) -> dict[str, Any]:
    """The body that the sampler of a shape sends."""
    bodies: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> Answer:
        assert path == SHAPES[shape].path
        bodies.append(body)
        return Answer(200, json.dumps(SHAPES[shape].writes(SHAPES[shape].reads(body), SAID, "stop")).encode())

    with serving(answer) as url:
        sampler = SHAPES[shape].sampler(f"{url}/v1/")
        sampled = await sampler.sample(PROMPT, max_tokens=8, **sampling)
        await sampler.aclose()
    assert sampled == Sample((4, 5), (-0.5, -0.25), "stop")
    return bodies[0]


async def test_requests_are_in_each_servers_words() -> None:
    given = {name: value for name, value in FULL.items() if value is not None}
    assert await asked("vllm", **FULL) == {
        "prompt": {"prompt_token_ids": PROMPT},
        **given,
        "max_tokens": 8,
        "logprobs": 0,
        "n": 1,
    }
    assert await asked("vllm_tokens", **FULL) == {
        "token_ids": PROMPT,
        "sampling_params": {**given, "max_tokens": 8, "logprobs": 0, "n": 1},
    }
    assert await asked("completions", **FULL, guided_regex="a+") == {
        "model": "lab",
        "prompt": PROMPT,
        **given,
        "guided_regex": "a+",
        "max_tokens": 8,
        "logprobs": 1,
        "return_token_ids": True,
    }
    renamed = {name: value for name, value in given.items() if name not in {"seed", "min_tokens"}}
    assert await asked("sglang", **FULL) == {
        "input_ids": PROMPT,
        "sampling_params": {**renamed, "sampling_seed": 7, "min_new_tokens": 2, "max_new_tokens": 8, "n": 1},
        "return_logprob": True,
        "return_text_in_logprobs": False,
    }
    tinker = await asked("tinker", temperature=0.7, stop_token_ids=[9])
    assert tinker["sampling_params"] == {"temperature": 0.7, "stop": [9], "max_new_tokens": 8, "n": 1}
    own = await asked("tinker", stop="end", stop_token_ids=[9])
    assert own["sampling_params"]["stop"] == ["end"]


@pytest.mark.parametrize(
    ("shape", "unknown"), [("vllm", "best_of"), ("vllm_tokens", "n"), ("sglang", "bad_words"), ("tinker", "top_p")]
)
async def test_a_parameter_that_the_server_does_not_have_is_refused(shape: str, unknown: str) -> None:
    sampler = SHAPES[shape].sampler("http://127.0.0.1:1")
    with pytest.raises(ModelError, match=f"has no sampling parameter {unknown} \\(there are: .*temperature") as raised:
        await sampler.sample(PROMPT, max_tokens=8, **{unknown: 1})
    assert raised.value.cause is ErrorCause.CONFIG


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda answer: {key: value for key, value in answer.items() if key != name}


def changed(*path: str | int, to: object) -> Callable[[dict[str, Any]], object]:
    def change(answer: dict[str, Any]) -> object:
        place: Any = answer
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to
        return answer

    return change


BAD: dict[str, list[Callable[[dict[str, Any]], object]]] = {
    "vllm": [
        without("logprobs"),
        without("finish_reasons"),
        changed("finish_reasons", 0, to="abort"),
        changed("finish_reasons", 0, to={"type": "stop"}),
        changed("finish_reasons", to=[]),
        changed("logprobs", to=[]),
        changed("logprobs", 0, to=[]),
        changed("logprobs", 0, to=None),
        changed("logprobs", 0, 1, to=[]),
        changed("logprobs", 0, 1, 0, to=[1, 2, 3]),
        changed("logprobs", 0, 1, 0, to={"4": -1.0, "5": -2.0}),
        changed("logprobs", 0, 1, 0, to={"x": -1.0}),
        changed("logprobs", 0, 1, 0, to={"-1": -1.0}),
        changed("logprobs", 0, 1, 0, to={"9" * 5000: -1.0}),
        changed("logprobs", 0, 1, 0, "5", to=None),
        changed("logprobs", 0, 1, 0, "5", to=float("nan")),
        changed("logprobs", 0, 1, 0, "5", to=float("-inf")),
        changed("logprobs", 0, 1, 0, "5", to=0.5),
        changed("logprobs", 0, 1, 0, "5", to=-(10**400)),
        changed("logprobs", 0, 1, 0, "5", to=False),
        changed("token_ids", 0, to=[4, 6]),
        changed("prompt_token_ids", to=[1, 2]),
    ],
    "vllm_tokens": [
        without("choices"),
        changed("choices", to=[]),
        changed("choices", 0, to=None),
        changed("choices", 0, "token_ids", to=None),
        changed("choices", 0, "token_ids", to=[4, 5, 6]),
        changed("choices", 0, "token_ids", to=[]),
        changed("choices", 0, "token_ids", to=[4, 5.0]),
        changed("choices", 0, "token_ids", to=[4, True]),
        changed("choices", 0, "token_ids", to=[4, -5]),
        changed("choices", 0, "token_ids", to=[4, 2**40]),
        changed("choices", 0, "token_ids", to={"4": 5}),
        changed("choices", 0, "logprobs", to=None),
        changed("choices", 0, "logprobs", "content", to=None),
        changed("choices", 0, "logprobs", "content", 0, to=7),
        changed("choices", 0, "finish_reason", to=None),
    ],
    "completions": [
        without("choices"),
        changed("choices", 0, "token_ids", to=None),
        changed("choices", 0, "logprobs", to=None),
        changed("choices", 0, "logprobs", "token_logprobs", to=[-1.0]),
        changed("choices", 0, "logprobs", "token_logprobs", to=[None, -1.0]),
        changed("choices", 0, "prompt_token_ids", to=[0, 1, 2, 3]),
    ],
    "sglang": [
        without("meta_info"),
        lambda answer: [answer, answer],
        lambda _answer: [],
        changed("meta_info", to=None),
        changed("meta_info", "output_token_logprobs", to=[]),
        changed("meta_info", "output_token_logprobs", 1, to=[-1.0]),
        changed("meta_info", "output_token_logprobs", 1, to=None),
        changed("meta_info", "output_token_logprobs", 1, 0, to=None),
        changed("meta_info", "output_token_logprobs", 1, 1, to="5"),
        changed("meta_info", "completion_tokens", to=3),
        changed("meta_info", "finish_reason", to={"type": "abort", "message": "…"}),
        changed("meta_info", "finish_reason", to=None),
        changed("meta_info", to={"finish_reason": "stop", "output_token_logprobs": []}),
        changed("meta_info", to={"finish_reason": "stop", "output_token_logprobs": [[-1.0, 4, None]] * 9}),
    ],
}


@pytest.mark.parametrize(("shape", "number"), [(shape, number) for shape in BAD for number in range(len(BAD[shape]))])
async def test_an_answer_that_cannot_be_used_is_an_error(shape: str, number: int) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        good = SHAPES[shape].writes(SHAPES[shape].reads(body), SAID, "stop")
        return Answer(200, json.dumps(BAD[shape][number](good)).encode())

    with serving(answer) as url:
        sampler = SHAPES[shape].sampler(url, retries=0)
        with pytest.raises(ModelError) as raised:
            await sampler.sample(PROMPT, max_tokens=8, stop_token_ids=[9])
        await sampler.aclose()
    assert raised.value.cause is ErrorCause.PROVIDER


async def test_a_server_without_token_ids_is_named() -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        said = SHAPES["completions"].writes(SHAPES["completions"].reads(body), SAID, "stop")
        del said["choices"][0]["token_ids"]
        return Answer(200, json.dumps(said).encode())

    with serving(answer) as url:
        sampler = SHAPES["completions"].sampler(url, retries=0)
        with pytest.raises(ModelError, match="does not know return_token_ids"):
            await sampler.sample(PROMPT, max_tokens=8, stop_token_ids=[])
        await sampler.aclose()


@pytest.mark.parametrize(
    ("sampler", "sampling", "exact"),
    [
        (VLLMSampler, {"temperature": 1.0, "top_p": None, "top_k": -1, "seed": 3, "stop": ["x"]}, True),
        (VLLMSampler, {}, True),
        (VLLMSampler, {"temperature": 0.7}, False),
        (VLLMSampler, {"top_p": 0.9}, False),
        (VLLMSampler, {"bad_words": ["x"]}, False),
        (SGLangSampler, {"temperature": 0.7}, True),
        (SGLangSampler, {"temperature": 0.7, "top_k": 20}, False),
    ],
)
def test_whether_log_probabilities_are_those_of_the_samples(
    sampler: Callable[..., HTTPSampler], sampling: dict[str, object], exact: bool
) -> None:
    assert sampler("http://127.0.0.1:1").exact_at(sampling) is exact
    assert sampler("http://127.0.0.1:1", logprobs="processed").exact_at(sampling)


async def test_adapters_are_named() -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        assert body["model"] == "adapter"
        shape = SHAPES["vllm_tokens"]
        return Answer(200, json.dumps(shape.writes(shape.reads(body), SAID, "stop")).encode())

    with serving(answer) as url:
        sampler = VLLMTokensSampler(url, model="adapter")
        assert (await sampler.sample(PROMPT, max_tokens=8, stop_token_ids=[9])).ids == (4, 5)
        await sampler.aclose()
