"""Groups of a real, very small language model, whose server samples and tells ids: `make test-rl` (needs xllamacpp)."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Episode
from hermes_agent.models.embedded.smollm2 import Examples
from hermes_atropos import SandboxAgentEnv, ToolContext
from tests.e2e.atropos.inference_server import PolicyServer, call, load, make_env, process, sequences, serving
from tests.unit.agent.tokens.families import PLAIN
from tests.unit.agent.tokens.server import SHAPES, Answer, Logged

llama: Any = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: `make test-rl` does that")
gguf: Any = pytest.importorskip("gguf", reason="gguf is not installed: `make test-rl` does that")
weights: Any = pytest.importorskip("hermes_agent.models.embedded.embedded")._find_weights
GROUPS, GROUP_SIZE = 4, 4
TASKS = ("Create a directory named build.", "Create an empty file named notes.txt.", "Make a directory named src.")
KEY = "none"


def make_tokenizer(directory: Path) -> Path:
    """That of the model, from the arrays in its file, with a chat template that has tools."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields: Any = gguf.GGUFReader(str(weights(None))).fields
    texts = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(line.split(" ")) for line in fields["tokenizer.ggml.merges"].contents()]
    made = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, merges))
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    made.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    made.add_special_tokens([text for text, kind in zip(texts, kinds, strict=True) if kind == 3])
    fast: Any = PreTrainedTokenizerFast
    whole = fast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|im_end|>")
    whole.chat_template = PLAIN
    whole.save_pretrained(str(directory))
    return directory


class ModelServer(PolicyServer):
    """Speaks the shape of vLLM; llama.cpp, whose `/completion` takes and tells ids, samples."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401
        super().__init__(tokenizer, lambda _: "")
        params = llama.CommonParams()
        params.model.path = str(weights(None))
        params.n_ctx, params.n_parallel = 16_384, 4
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.verbosity, params.warmup, params.cache_ram_mib, params.fit_params = -1, False, 0, False
        params.api_keys, params.ui = [KEY], False
        self.model = llama.Server(params)

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        shape = SHAPES["vllm"]
        assert path == shape.path, path
        asked = shape.reads(body)
        limit = min(asked.max_tokens, 128)
        wanted = {
            "prompt": asked.prompt, "n_predict": limit, "n_probs": 1, "return_tokens": True, "temperature": 1.0,
            "top_k": 0, "top_p": 1.0, "min_p": 0.0, "cache_prompt": True,
        }  # fmt: skip
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        url = f"{self.model.listening_address}/completion"
        request = urllib.request.Request(url, json.dumps(wanted).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as given:
            told = json.loads(given.read())
        chosen = told["completion_probabilities"]
        logged = Logged(asked.prompt, [one["id"] for one in chosen], [one["logprob"] for one in chosen])
        with self.lock:
            self.bodies.append(body)
            self.log.append(logged)
        finish = "length" if told["stop_type"] == "limit" else "stop"
        return Answer(200, json.dumps(shape.writes(asked, logged, finish)).encode())


class ShellEnv(SandboxAgentEnv[str]):
    """Tasks for one command, after four worked examples."""

    name = "shell"
    _count = 0

    async def setup(self) -> None:
        self.examples = Examples.load(4)

    async def get_next_item(self) -> str:
        self._count += 1
        return TASKS[self._count % len(TASKS)]

    def format_prompt(self, item: str) -> list[dict[str, Any]]:
        shown = []
        for example in self.examples.near(item):
            shown += [
                {"role": "user", "content": example.task},
                {"role": "assistant", "content": call("terminal", command=example.command)},
            ]
        return [*shown, {"role": "user", "content": item}]

    async def compute_reward(self, item: str, result: Episode, ctx: ToolContext) -> float:
        name = item.removesuffix(".").rpartition(" ")[2]
        return float((await ctx.terminal(f"test -e {name}"))["exit_code"] == 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    made = ModelServer(load(make_tokenizer(tmp_path / "tokenizer")))
    with serving(made):
        yield made


@pytest.mark.anyio
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_rollout_is_one_sequence_of_what_was_sampled(server: ModelServer, tmp_path: Path) -> None:
    env = make_env(
        ShellEnv, tmp_path / "tokenizer", server.url, group_size=GROUP_SIZE, max_agent_turns=2, max_token_length=4000,
        enabled_toolsets="terminal", data_path_to_save_groups=str(tmp_path / "groups.jsonl"),
    )  # fmt: skip
    groups = await process(env, GROUPS)
    assert [len(group["tokens"]) for group in groups] == [GROUP_SIZE] * GROUPS
    said: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[float, ...]]] = {}
    for one in server.log:  # the same answer may be sampled twice, with other rounding
        said.setdefault((tuple(one.prompt), tuple(one.ids)), []).append(tuple(one.logprobs))
    turns = calls = 0
    for ids, mask, logprobs in sequences(groups):
        trained = [place for place, each in enumerate(mask) if each != -100]
        for (prompt, answer), told in said.items():
            end = len(prompt) + len(answer)
            if ids[:end] == prompt + answer:
                turns += 1
                assert mask[len(prompt) : end] == answer
                assert logprobs[len(prompt) : end] in told
                trained = [place for place in trained if not len(prompt) <= place < end]
        assert not trained
    for conversation in (each for group in groups for each in group["messages"]):
        calls += sum(message["role"] == "tool" for message in conversation)
    print(f"{turns} turns, {calls} tool calls, rewards {[group['scores'] for group in groups]}")
    assert turns >= GROUPS * GROUP_SIZE
    assert calls >= 8
