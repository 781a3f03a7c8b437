"""A server on loopback that speaks the wire shapes of token ids, and keeps a log of what it was sent and sampled."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from hermes_agent.tokens import CompletionsSampler, SGLangSampler, TinkerSampler, VLLMSampler, VLLMTokensSampler
from hermes_agent.tokens.samplers import HTTPSampler
from tests.unit.agent.tokens.byte_tokenizer import ByteTokenizer


class Logged(NamedTuple):
    """One sample."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]


class Answer(NamedTuple):
    """What is sent in place of a sample."""

    status: int
    body: bytes


class _Request(NamedTuple):
    prompt: list[int]
    max_tokens: int
    stop_ids: set[int]


@dataclass
class Script:
    """`says` are texts that are sampled one after the other, each with the token that ends it (None: it just ends);
    `faults` are sent first, one for each entry, before the sample of that number (from 0).
    """

    tokenizer: ByteTokenizer
    says: list[tuple[str, str | None]]
    seed: int = 0
    faults: dict[int, list[Answer]] = field(default_factory=dict)
    log: list[Logged] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, path: str, body: dict[str, Any], shape: Shape) -> Answer:
        assert path == shape.path
        request = shape.reads(body)
        self.bodies.append(body)
        self.asked.append(request.prompt)
        waiting = self.faults.get(len(self.log))
        if waiting:
            return waiting.pop(0)
        said, finish = self._sampled(request)
        return Answer(200, json.dumps(shape.writes(request, said, finish)).encode())

    def _sampled(self, request: _Request) -> tuple[Logged, str]:
        chance = random.Random(f"{self.seed} {len(self.log)}")
        text, end = self.says[len(self.log)]
        ids = self.tokenizer.sampled(text, chance)
        if end is not None:
            assert self.tokenizer.id_of(end) in request.stop_ids
            ids.append(self.tokenizer.id_of(end))
        finish = "stop" if len(ids) <= request.max_tokens else "length"
        ids = ids[: request.max_tokens]
        said = Logged(request.prompt, ids, [-chance.expovariate(1.0) for _ in ids])
        self.log.append(said)
        return said, finish


@dataclass(frozen=True)
class Shape:
    """A wire shape: where it is asked, how a request is read and an answer written, and the sampler that speaks it."""

    path: str
    reads: Callable[[dict[str, Any]], _Request]
    writes: Callable[[_Request, Logged, str], Any]
    sampler: Callable[..., HTTPSampler]


def _vllm_reads(body: dict[str, Any]) -> _Request:
    assert body["logprobs"] == 0
    return _Request(body["prompt"]["prompt_token_ids"], body["max_tokens"], set(body["stop_token_ids"]))


def _vllm_writes(request: _Request, said: Logged, finish: str) -> dict[str, Any]:
    steps = [[{str(number): logprob}] for number, logprob in zip(said.ids, said.logprobs, strict=True)]
    return {
        "text": ["…"],
        "prompt": "…",
        "finish_reasons": [finish],
        "logprobs": [steps],
        "prompt_token_ids": request.prompt,
        "token_ids": [said.ids],
    }


def _tokens_reads(body: dict[str, Any]) -> _Request:
    sampling = body["sampling_params"]
    return _Request(body["token_ids"], sampling["max_tokens"], set(sampling["stop_token_ids"]))


def _tokens_writes(request: _Request, said: Logged, finish: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{number}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for number, logprob in zip(said.ids, said.logprobs, strict=True)
    ]
    choice = {"index": 0, "logprobs": {"content": content}, "finish_reason": finish, "token_ids": said.ids}
    return {"request_id": "r", "choices": [choice], "prompt_logprobs": None, "kv_transfer_params": None}


def _completions_reads(body: dict[str, Any]) -> _Request:
    assert body["return_token_ids"] is True
    assert body["model"] == "lab"
    return _Request(body["prompt"], body["max_tokens"], set(body["stop_token_ids"]))


def _completions_writes(request: _Request, said: Logged, finish: str) -> dict[str, Any]:
    logprobs = {
        "text_offset": [0] * len(said.ids),
        "token_logprobs": said.logprobs,
        "tokens": ["…"] * len(said.ids),
        "top_logprobs": [{"…": logprob} for logprob in said.logprobs],
    }
    choice = {
        "index": 0,
        "text": "…",
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": said.ids,
        "prompt_token_ids": request.prompt,
    }
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "lab", "choices": [choice]}


def _sglang_reads(body: dict[str, Any]) -> _Request:
    assert body["return_logprob"] is True
    sampling = body["sampling_params"]
    return _Request(body["input_ids"], sampling["max_new_tokens"], set(sampling["stop_token_ids"]))


def _sglang_writes(request: _Request, said: Logged, finish: str) -> dict[str, Any]:
    reason = {"type": finish, **({"length": len(said.ids)} if finish == "length" else {"matched": said.ids[-1]})}
    steps = [[logprob, number, None] for number, logprob in zip(said.ids, said.logprobs, strict=True)]
    info = {
        "id": "r",
        "finish_reason": reason,
        "prompt_tokens": len(request.prompt),
        "completion_tokens": len(said.ids),
        "output_token_logprobs": steps,
    }
    return {"text": "…", "meta_info": info}


def _tinker_reads(body: dict[str, Any]) -> _Request:
    sampling = body["sampling_params"]
    assert set(sampling) <= {"temperature", "max_new_tokens", "stop", "n"}
    return _Request(body["input_ids"], sampling["max_new_tokens"], set(sampling["stop"]))


def _tinker_writes(request: _Request, said: Logged, finish: str) -> dict[str, Any]:
    answer = _sglang_writes(request, said, finish)
    steps = [[logprob, number, "…"] for logprob, number, _ in answer["meta_info"]["output_token_logprobs"]]
    answer["meta_info"].update(finish_reason="stop", output_token_logprobs=steps)
    return answer


def _completions(base_url: str, **settings: Any) -> HTTPSampler:
    return CompletionsSampler(base_url, model="lab", **settings)


SHAPES = {
    "vllm": Shape("/generate", _vllm_reads, _vllm_writes, VLLMSampler),
    "vllm_tokens": Shape("/inference/v1/generate", _tokens_reads, _tokens_writes, VLLMTokensSampler),
    "completions": Shape("/v1/completions", _completions_reads, _completions_writes, _completions),
    "sglang": Shape("/generate", _sglang_reads, _sglang_writes, SGLangSampler),
    "tinker": Shape("/generate", _tinker_reads, _tinker_writes, TinkerSampler),
}


@contextmanager
def serving(answer: Callable[[str, dict[str, Any]], Answer], port: int = 0) -> Iterator[str]:
    """Serve these answers to POST on loopback, and give the URL; what `answer` raises is a 422."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(Answer(200 if self.path == "/health" else 404, b"{}"))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                self._send(answer(self.path, body))
            except Exception as error:  # noqa: BLE001 - told to the client
                self._send(Answer(422, f"{type(error).__name__}: {error}".encode()))

        def _send(self, given: Answer) -> None:
            self.send_response(given.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(given.body)))
            self.end_headers()
            self.wfile.write(given.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 512
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Nothing: clients that are called off go."""

    with Server(("127.0.0.1", port), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


@contextmanager
def served(script: Script, shape: Shape) -> Iterator[str]:
    """Serve what a script says, in this wire shape."""
    with serving(lambda path, body: script.answer(path, body, shape)) as url:
        yield url


def joined(log: Sequence[Logged]) -> tuple[list[int], list[int], list[float]]:
    """Ids, mask and log-probabilities of what a server sampled, from its own log alone."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for said in log:
        assert said.prompt[: len(ids)] == ids, "the prompt does not begin with all that was there before"
        added = said.prompt[len(ids) :]
        ids += [*added, *said.ids]
        mask += [*[-100] * len(added), *said.ids]
        logprobs += [*[1.0] * len(added), *said.logprobs]
    return ids, mask, logprobs
