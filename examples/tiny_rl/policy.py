"""A newly created policy, its tokenizer, and the server that samples from it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BYTES, WIDTH = 256, 64
END = "<|im_end|>"
# Only names the tools, because the schemas would take thousands of bytes.
TEMPLATE = """
{%- for tool in tools or [] %}{{- tool.function.name + ' ' }}{%- endfor %}
{%- for message in messages %}{{- message.role + ':' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}{{- call.function.arguments | string }}{%- endfor %}{{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant:' }}{%- endif %}
"""


def make_tokenizer(directory: Path) -> Path:
    """Create a tokenizer of bytes and one token that ends turns, in the format of `transformers`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast  # untyped
    whole = fast(tokenizer_object=tokenizer, eos_token=END)
    whole.chat_template = TEMPLATE
    whole.save_pretrained(str(directory))
    return directory


class Policy(nn.Module):  # type: ignore[misc]
    """A model of the next byte. It reads the token that ends a turn, but never samples it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(BYTES + 1, WIDTH)
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, BYTES)
        # By default all bytes would be about equally likely, and a shifted log-probability would go unnoticed.
        nn.init.normal_(self.head.weight, std=0.5)

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the byte after each of these ids, and the state after the last id."""
        hidden, state = self.memory(self.embedding(ids), state)
        return torch.log_softmax(self.head(hidden).float(), -1), state


class PolicyServer:
    """A server that answers `/generate` like atropos's example server (`example_trainer/vllm_api_server.py`)."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.lock = threading.Lock()
        self.sampled = 0

    def generate(self, body: dict[str, object]) -> dict[str, object]:
        """Sample at temperature 1."""
        prompt = body["prompt"]
        assert isinstance(prompt, dict)
        steps = []
        with self.lock, torch.no_grad():
            logprobs, state = self.policy(torch.tensor([prompt["prompt_token_ids"]]))
            for _ in range(int(str(body["max_tokens"]))):
                chosen = torch.multinomial(logprobs[0, -1].exp(), 1)
                steps.append([{str(int(chosen)): float(logprobs[0, -1, chosen])}])
                logprobs, state = self.policy(chosen.view(1, 1), state)
            self.sampled += len(steps)
        return {"logprobs": [steps], "finish_reasons": ["length"]}

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve on loopback and yield the URL."""
        generate = self.generate

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = json.dumps(generate(body)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

        with Server(("127.0.0.1", 0), Handler) as http:
            thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield f"http://127.0.0.1:{http.server_port}/v1"
            finally:
                http.shutdown()
                thread.join()
