"""A small tokenizer on disk, and inference servers on loopback that say what a policy has them say."""

from __future__ import annotations

import json
import random
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.unit.agent.tokens.families import PLAIN
from tests.unit.agent.tokens.server import SHAPES, Answer, Logged, joined
from tests.unit.agent.tokens.server import serving as serving_answers

END = "<|im_end|>"
_TEXTS = ["the answer is in the file", '{"name": "terminal", "arguments": {"command": "echo hello"}}', "<tool_call>"]

Policy = Callable[[str], "str | Answer"]
"""Says what follows on a prompt (as text), or what is answered in place of a sample."""


def make_tokenizer(directory: Path, template: str = PLAIN) -> Path:
    """A byte-level tokenizer of 320 ids with this chat template, as `transformers` saves them: 20 KB."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=317,
        special_tokens=["<|endoftext|>", "<|im_start|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_TEXTS * 4, trainer)
    fast: Any = PreTrainedTokenizerFast  # untyped
    whole = fast(tokenizer_object=made, eos_token=END, pad_token="<|endoftext|>")
    whole.chat_template = template
    whole.save_pretrained(str(directory))
    return directory


@cache
def load(directory: Path) -> Any:  # noqa: ANN401 - transformers is loaded late
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(directory))


def non_canonical(tokenizer: Any, text: str, chance: random.Random) -> list[int]:  # noqa: ANN401
    """Ids of a text that are not those of `encode`: it is cut at random places."""
    ids, at = [], 0
    while at < len(text):
        size = chance.randint(1, 12)
        ids += tokenizer.encode(text[at : at + size], add_special_tokens=False)
        at += size
    return ids


@dataclass
class PolicyServer:
    """Speaks a wire shape (`vllm`, `sglang`, `tinker`, or `openai`: chat completions); `log` has what was sampled,
    `bodies` what was asked.
    """

    tokenizer: Any
    policy: Policy
    shape: str = "vllm"
    url: str = ""
    seed: int = 0
    log: list[Logged] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        with self.lock:
            self.bodies.append(body)
        if self.shape == "openai":
            assert path == "/v1/chat/completions", path
            return self._chat(body)
        shape = SHAPES[self.shape]
        assert path == shape.path, path
        request = shape.reads(body)
        said = self.policy(self.text(request.prompt))
        if isinstance(said, Answer):
            return said
        with self.lock:
            chance = random.Random(f"{self.seed} {len(self.log)}")
            ids = [*non_canonical(self.tokenizer, said, chance), self.tokenizer.eos_token_id]
            finish = "stop" if len(ids) <= request.max_tokens else "length"
            logged = Logged(request.prompt, ids[: request.max_tokens], [])
            logged = logged._replace(logprobs=[-chance.expovariate(1.0) for _ in logged.ids])
            self.log.append(logged)
        return Answer(200, json.dumps(shape.writes(request, logged, finish)).encode())

    def _chat(self, body: dict[str, Any]) -> Answer:
        prompt = "".join(f"<|im_start|>{m['role']}\n{m.get('content')}<|im_end|>\n" for m in body["messages"])
        said = self.policy(prompt)
        if isinstance(said, Answer):
            return said
        from hermes_agent import get_parser

        parsed = get_parser("hermes")(said, body.get("tools") or [])
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.calls
        ]
        message = {"role": "assistant", "content": parsed.content, "tool_calls": calls or None}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "lab", "choices": [choice]}
        return Answer(200, json.dumps({**whole, "usage": usage}).encode())

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@contextmanager
def serving(server: PolicyServer, port: int = 0) -> Iterator[PolicyServer]:
    """Serve on loopback; `server.url` is where, with `/v1`."""
    with serving_answers(server.answer, port) as url:
        server.url = f"{url}/v1"
        yield server


def call(name: str, **arguments: object) -> str:
    """The text of a tool call in the Hermes format."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def solve(prompt: str) -> str:
    """Solves the tasks of terminal_test in three turns."""
    answered = max(prompt.count("<|im_start|>tool"), prompt.count("<tool_response>"))
    if answered >= 2:
        return "It is done. café 中文"
    if answered == 1:
        return "Let me look.\n" + call("terminal", command="cat *.txt */*.txt 2>/dev/null; echo é")
    if "greeting" in prompt:
        return call("terminal", command="printf 'Hello from the slot' > greeting.txt")
    if "count.txt" in prompt:
        return call("write_file", path="count.txt", content="1\n2\n3\n4\n5\n")
    if "answer.txt" in prompt:
        return call("terminal", command="echo $((6 * 7)) > answer.txt")
    return call("write_file", path="report/done.txt", content="finished")


def make_env(kind: type[Any], tokenizer: Path, *urls: str, server_type: str = "vllm", **settings: Any) -> Any:  # noqa: ANN401
    """An environment on inference servers, of groups of two. Several servers are checked."""
    from atroposlib.envs.server_handling.server_manager import APIServerConfig

    given = {"tokenizer_name": str(tokenizer), "max_token_length": 12_000, "group_size": 2, **settings}
    given = {"ensure_scores_are_not_same": False, "include_messages": True, **given}
    options = {"api_key": "x", "server_type": server_type, "health_check": len(urls) > 1, "timeout": 60}
    return kind(kind.env_config_cls(**given), [APIServerConfig(base_url=url, **options) for url in urls])


async def process(env: Any, groups: int) -> list[dict[str, Any]]:  # noqa: ANN401
    """What the command `process` does; the groups that it wrote."""
    env.process_mode, env.n_groups_to_process, env.group_size_to_process = True, groups, env.config.group_size
    await env.process_manager()
    return read_groups(env.config.data_path_to_save_groups)


def read_groups(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def sequences(groups: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Ids, mask and log-probabilities of every sequence, sorted."""
    return sorted(
        tuple(map(tuple, one))
        for group in groups
        for one in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True)
    )


def sampled(log: Sequence[Logged], turns: int) -> list[tuple[Any, ...]]:
    """The same from a server's log alone, of episodes of so many turns."""
    episodes: list[tuple[list[Logged], bytes]] = []
    for said in log:
        prompt = array("i", said.prompt).tobytes()
        goes_on = (
            n for n, (episode, before) in enumerate(episodes) if len(episode) < turns and prompt.startswith(before)
        )
        number = next(goes_on, len(episodes))
        if number == len(episodes):
            episodes.append(([], b""))
        episodes[number] = [*episodes[number][0], said], prompt + array("i", said.ids).tobytes()
    return sorted(tuple(tuple(part) for part in joined(episode)) for episode, _ in episodes)
