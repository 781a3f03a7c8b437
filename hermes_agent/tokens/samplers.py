"""Servers that continue token ids with token ids: the requests and answers of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypedDict, Unpack

from hermes_agent.errors import RequestRefused
from hermes_agent.models.endpoint import BadAnswer, Endpoint
from hermes_agent.tokens.answers import (
    Sample,
    check_prompt,
    get_field,
    get_list,
    get_single,
    read_token,
    validate_sample,
)

LogprobsMode = Literal["raw", "temperature", "processed"]
"""The distribution of a server's log-probabilities: the model's own (`raw`), the logits divided by the temperature
(`temperature`), or the distribution that was sampled from, after top-p, top-k and the like too (`processed`).
"""

# Parameters that change a distribution, each with the values at which it does not.
_CHANGING: Mapping[str, tuple[object, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    **dict.fromkeys(("min_tokens", "ignore_eos"), (0,)),
    **dict.fromkeys(("logit_bias", "bad_words", "allowed_token_ids", "structured_outputs"), ()),
    **dict.fromkeys(("regex", "json_schema", "ebnf", "structural_tag"), ()),
}
_COMMON = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    }
)
# The SamplingParams of vLLM and SGLang.
_VLLM = _COMMON | {"bad_words", "allowed_token_ids", "structured_outputs"}
_SGLANG = _COMMON | {"regex", "json_schema", "ebnf", "structural_tag"}
_SGLANG_NAMES = {"seed": "sampling_seed", "min_tokens": "min_new_tokens"}


def exact_at(logprobs: LogprobsMode, sampling: Mapping[str, object]) -> bool:
    """Return whether log-probabilities of this mode describe the distribution that these parameters sample from."""
    if logprobs == "processed":
        return True
    scaled = sampling.get("temperature") not in (None, 1) and logprobs == "raw"
    return not scaled and all(sampling.get(name) in (None, *off) for name, off in _CHANGING.items())


class SamplerSettings(TypedDict, total=False):
    """Keyword arguments of every `HTTPSampler`."""

    api_key: str
    timeout_s: float
    retries: int
    wait_outage_s: float
    logprobs: LogprobsMode | None


class Sampler(Protocol):
    """Any object that continues token ids. One object serves many sessions at the same time."""

    async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
        """Sample up to `max_tokens` ids that continue `ids`.

        `sampling` are parameters by their names in vLLM (`temperature`, `top_p`, `top_k`, `min_p`, `seed`, `stop`,
        `stop_token_ids`, …).

        Raises:
            ModelError: If the request fails.
            ContextExceeded: If `ids` are too many.
        """
        ...


class HTTPSampler(ABC):
    """Base class of the samplers in this module: one request for each sample, and the settings of its `Endpoint`.

    Args:
        base_url: The URL of the server; `/v1` at its end is left out.
        api_key: Sent as bearer token. Servers without keys accept any text.
        timeout_s: Longest time of one request.
        retries: Further tries after failures and unusable answers.
        wait_outage_s: How long to wait for a server that does not answer at all.
        logprobs: The distribution of the server's log-probabilities. The default fits a server that was started without
            options.
    """

    _path: ClassVar[str]
    _parameters: ClassVar[frozenset[str]]
    _logprobs: ClassVar[LogprobsMode] = "raw"
    _takes_more: ClassVar[bool] = False

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "none",
        timeout_s: float = 600.0,
        retries: int = 4,
        wait_outage_s: float = 1800.0,
        logprobs: LogprobsMode | None = None,
    ) -> None:
        root = base_url.rstrip("/").removesuffix("/v1")
        self._endpoint = Endpoint(
            root, api_key=api_key, timeout_s=timeout_s, retries=retries, wait_outage_s=wait_outage_s
        )
        self._url = root + self._path
        self.logprobs: LogprobsMode = logprobs or self._logprobs

    async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
        """Sample ids; see `Sampler.sample`.

        Raises:
            RequestRefused: If the server does not support a parameter: it would be ignored
                silently, or fail there.
        """
        parameters = {name: value for name, value in sampling.items() if value is not None}
        unknown = sorted(parameters.keys() - self._parameters)
        if unknown and not self._takes_more:
            names = ", ".join(sorted(self._parameters))
            raise RequestRefused(
                f"{type(self).__name__} has no sampling parameter {', '.join(unknown)} (there are: {names})"
            )
        body = self._body(list(ids), max_tokens, parameters)
        return await self._endpoint.post(self._url, body, lambda answer: self._read(answer, ids, max_tokens))

    def exact_at(self, sampling: Mapping[str, object]) -> bool:
        """Return whether log-probabilities describe the distribution that these parameters sample from, as an objective
        with importance weights needs them.
        """
        return exact_at(self.logprobs, sampling)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()

    @abstractmethod
    def _body(self, ids: list[int], max_tokens: int, sampling: dict[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    def _read(self, answer: object, prompt: Sequence[int], max_tokens: int) -> Sample: ...


class VLLMSampler(HTTPSampler):
    """vLLM behind the `/generate` of atropos and its trainer.

    Source of the format: `example_trainer/vllm_api_server.py` of NousResearch/atropos (0.4.0), which `VLLMServer` of
    atroposlib requests. Stock vLLM has no such endpoint: use `VLLMTokensSampler` or `CompletionsSampler` with it. The
    request is `SamplingParams(**body)` of vLLM, beside `prompt`.
    """

    _path = "/generate"
    _parameters = _VLLM

    def _body(self, ids: list[int], max_tokens: int, sampling: dict[str, Any]) -> dict[str, Any]:
        # 0 alternatives: the server still returns the log-probability of the sampled token.
        return {"prompt": {"prompt_token_ids": ids}, **sampling, "max_tokens": max_tokens, "logprobs": 0, "n": 1}

    def _read(self, answer: object, prompt: Sequence[int], max_tokens: int) -> Sample:
        check_prompt(get_field(answer, "prompt_token_ids", None), prompt)
        steps = get_list(get_single(get_field(answer, "logprobs"), "logprobs"), "logprobs")
        tokens = [read_token(get_single(step, "the log-probabilities of a token")) for step in steps]
        ids, logprobs = [number for number, _ in tokens], [logprob for _, logprob in tokens]
        token_ids = get_field(answer, "token_ids", None)
        if token_ids is not None and get_single(token_ids, "token_ids") != ids:
            raise BadAnswer("token_ids and logprobs are of different tokens")
        return validate_sample(
            ids, logprobs, get_single(get_field(answer, "finish_reasons"), "finish_reasons"), max_tokens
        )


class VLLMTokensSampler(HTTPSampler):
    """vLLM's own endpoint for tokens in and tokens out, `/inference/v1/generate`.

    Source of the format: `vllm/entrypoints/serve/disagg/protocol.py` and `serving.py` of vllm-project/vllm
    (`GenerateRequest`, `GenerateResponse`). `model` is needed for LoRA adapters only.
    """

    _path = "/inference/v1/generate"
    _parameters = _VLLM

    def __init__(self, base_url: str, *, model: str | None = None, **settings: Unpack[SamplerSettings]) -> None:
        super().__init__(base_url, **settings)
        self._model = {} if model is None else {"model": model}

    def _body(self, ids: list[int], max_tokens: int, sampling: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._model,
            "token_ids": ids,
            "sampling_params": {**sampling, "max_tokens": max_tokens, "logprobs": 0, "n": 1},
        }

    def _read(self, answer: object, prompt: Sequence[int], max_tokens: int) -> Sample:
        choice = get_single(get_field(answer, "choices"), "choices")
        content = get_list(get_field(get_field(choice, "logprobs"), "content"), "content")
        logprobs = [get_field(token, "logprob") for token in content]
        return validate_sample(get_field(choice, "token_ids"), logprobs, get_field(choice, "finish_reason"), max_tokens)


class CompletionsSampler(HTTPSampler):
    """`/v1/completions` with ids in and ids out, as vLLM has it since 0.10.2.

    Source of the format: `vllm/entrypoints/openai/completion/protocol.py` of vllm-project/vllm (`CompletionRequest`
    with `return_token_ids`, `CompletionResponseChoice` with `token_ids`). `model` is the name that the server serves.
    Parameters that are unknown here are sent too.
    """

    _path = "/v1/completions"
    _parameters = _VLLM
    _takes_more = True

    def __init__(self, base_url: str, *, model: str | None = None, **settings: Unpack[SamplerSettings]) -> None:
        super().__init__(base_url, **settings)
        self._model = {} if model is None else {"model": model}

    def _body(self, ids: list[int], max_tokens: int, sampling: dict[str, Any]) -> dict[str, Any]:
        options = {"max_tokens": max_tokens, "logprobs": 1, "return_token_ids": True}
        return {**self._model, "prompt": ids, **sampling, **options}

    def _read(self, answer: object, prompt: Sequence[int], max_tokens: int) -> Sample:
        choice = get_single(get_field(answer, "choices"), "choices")
        check_prompt(get_field(choice, "prompt_token_ids", None), prompt)
        ids = get_field(choice, "token_ids", None)
        if ids is None:
            raise BadAnswer(
                "the server returned no token_ids: it does not know return_token_ids (vLLM does since 0.10.2)"
            )
        logprobs = get_field(get_field(choice, "logprobs"), "token_logprobs")
        return validate_sample(ids, logprobs, get_field(choice, "finish_reason"), max_tokens)


class SGLangSampler(HTTPSampler):
    """SGLang's native `/generate`.

    Source of the format: https://docs.sglang.io/basic_usage/native_api.html, and
    `python/sglang/srt/sampling/sampling_params.py` of sgl-project/sglang. Log-probabilities describe the logits divided
    by the temperature, before top-p, top-k and min-p (`SGLANG_RETURN_ORIGINAL_LOGPROB=1` of the server: `raw`).
    """

    _path = "/generate"
    _parameters = _SGLANG
    _logprobs: ClassVar[LogprobsMode] = "temperature"

    def _body(self, ids: list[int], max_tokens: int, sampling: dict[str, Any]) -> dict[str, Any]:
        named = {_SGLANG_NAMES.get(name, name): value for name, value in sampling.items()}
        return {
            "input_ids": ids,
            "sampling_params": {**named, "max_new_tokens": max_tokens, "n": 1},
            "return_logprob": True,
            "return_text_in_logprobs": False,
        }

    def _read(self, answer: object, prompt: Sequence[int], max_tokens: int) -> Sample:
        info = get_field(get_single(answer, "the answer") if isinstance(answer, list) else answer, "meta_info")
        steps = [get_list(step, "a token") for step in get_list(get_field(info, "output_token_logprobs"), "the tokens")]
        if any(len(step) < 2 for step in steps):
            raise BadAnswer("output_token_logprobs is not a list of [logprob, id, text]")
        if get_field(info, "completion_tokens", len(steps)) != len(steps):
            raise BadAnswer("the server returned log-probabilities for some of its tokens only")
        reason = get_field(info, "finish_reason")
        finish = get_field(reason, "type") if isinstance(reason, dict) else reason
        return validate_sample([step[1] for step in steps], [step[0] for step in steps], finish, max_tokens)


def with_one_stop(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters with one list `stop` in place of `stop` and `stop_token_ids`, as tinker-atropos reads
    it.

    The caller's texts take precedence, because Tinker also ends turns by itself.
    """
    others = {name: value for name, value in sampling.items() if name not in ("stop", "stop_token_ids")}
    stop = sampling.get("stop") or sampling.get("stop_token_ids") or []
    return {**others, "stop": [stop] if isinstance(stop, str) else list(stop)}


class TinkerSampler(SGLangSampler):
    """The `/generate` of tinker-atropos: SGLang's form in front of Tinker's sampling client.

    Source of the format: `tinker_atropos/trainer.py` of NousResearch/tinker-atropos. It reads only `temperature` and
    `stop` (texts or ids), and reports "stop" even if `max_tokens` cut the answer: an answer of that length without an
    end token was cut.
    """

    _parameters = frozenset({"temperature", "stop", "stop_token_ids"})
    _logprobs: ClassVar[LogprobsMode] = "raw"

    def _body(self, ids: list[int], max_tokens: int, sampling: dict[str, Any]) -> dict[str, Any]:
        return {
            **super()._body(ids, max_tokens, {}),
            "sampling_params": {**with_one_stop(sampling), "max_new_tokens": max_tokens, "n": 1},
        }
