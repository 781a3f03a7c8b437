"""The loop: atropos's server, the environment in `serve`, and a policy that learns from their batches.

python -m examples.tiny_rl.train --steps 40
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from example_trainer.data import pad_data_to_good_offset
from rich.console import Console
from rich.table import Table

from examples.tiny_rl.policy import Policy, PolicyServer, make_tokenizer

GROUP, BATCH = 8, 32
ROOT = Path(__file__).resolve().parents[2]


class TrainingStep(NamedTuple):
    """The figures of a batch: its mean reward, and the difference between the log-probabilities of training and
    sampling, in place and shifted by one.
    """

    number: int
    reward: float
    difference: float
    shifted: float


def run(
    *,
    steps: int = 40,
    learning_rate: float = 1e-2,
    writes: bool = True,
    harness: bool = False,
    seed: int = 0,
    backend: str = "local",
) -> list[TrainingStep]:
    """Train, print each step and return the steps. With `harness`, a program in the slot asks the model.

    Raises:
        RuntimeError: If no batch arrives for five minutes.
    """
    policy = Policy(seed)
    server = PolicyServer(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    results: list[TrainingStep] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        api = stack.enter_context(_api())
        url = stack.enter_context(server.serve())
        _ask(api, "/register", {
            "wandb_group": "g", "wandb_project": "p", "batch_size": BATCH, "max_token_len": 4096, "checkpoint_dir": "",
            "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": steps,
        })  # fmt: skip
        _ask(api, "/batch")
        flags = {"writes": writes, "harness": harness, "backend": backend, "total_steps": steps + 5}
        stack.enter_context(_environment(directory, api, url, flags))
        for number in range(1, steps + 1):
            batch = _batch(api)
            reward = sum(sum(group["scores"]) for group in batch) / BATCH
            with server.lock:
                difference, shifted = _learn(policy, optimizer, batch)
            results.append(TrainingStep(number, reward, difference, shifted))
            print(f"step {number}: reward {reward:.3f}, difference {difference:.1e}", file=sys.stderr)
    return results


def _learn(policy: Policy, optimizer: torch.optim.Optimizer, batch: list[dict[str, Any]]) -> tuple[float, float]:
    """Take one policy gradient step on a batch, like the example trainer."""
    tokens, labels, advantages, _, sampled = pad_data_to_good_offset({"batch": batch}, BATCH)
    assert sampled is not None
    (ids,), (wanted,), (advantage,), (before,) = tokens, labels, advantages, sampled
    mask = wanted != -100
    logprobs, _ = policy(ids)
    now = logprobs.gather(-1, wanted.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    ratio = torch.where(mask, now - before, torch.zeros_like(now)).exp()
    loss = -(ratio * advantage.float() * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    both = mask[:, 1:] & mask[:, :-1]
    difference = (now - before)[mask].abs().mean()
    shifted = (now[:, 1:] - before[:, :-1])[both].abs().mean()
    return float(difference), float(shifted)


@contextmanager
def _api() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                _ask(url, "/")
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _environment(directory: Path, api: str, url: str, settings: Mapping[str, object]) -> Iterator[None]:
    flags = {
        "env.tokenizer_name": make_tokenizer(directory / "tokenizer"), "env.rollout_server_url": api,
        "env.group_size": GROUP, "env.max_token_length": 4096,
        "env.max_batches_offpolicy": 1, "env.ensure_scores_are_not_same": "false", "env.slots_per_sandbox": BATCH,
        "openai.base_url": url, **{f"env.{name}": value for name, value in settings.items()},
    }  # fmt: skip
    command = [sys.executable, "-m", "examples.tiny_rl.environment", "serve", *(f"--{k}={v}" for k, v in flags.items())]
    with (directory / "environment.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            yield
        except BaseException:
            print((directory / "environment.log").read_text()[-2000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(30)


def _batch(api: str) -> list[dict[str, Any]]:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        batch: list[dict[str, Any]] | None = _ask(api, "/batch")["batch"]
        if batch is not None:
            return batch
        time.sleep(0.05)
    raise RuntimeError("no batch arrived for five minutes")


def _ask(url: str, path: str, body: object = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        content: dict[str, Any] = json.loads(answer.read())
        return content


def main() -> None:
    """Train and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="local")
    parser.add_argument("--harness", action="store_true", help="a program in the slot asks the model")
    parser.add_argument("--no-writes", action="store_true", help="nothing is written, so there is nothing to learn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    steps = run(
        steps=args.steps, learning_rate=args.learning_rate, writes=not args.no_writes, seed=args.seed,
        backend=args.backend, harness=args.harness,
    )  # fmt: skip
    table = Table("step", "reward", "log-probability: training − sampling", "shifted by one")
    for step in steps:
        if step.number == 1 or step.number % 5 == 0:
            table.add_row(str(step.number), f"{step.reward:.3f}", f"{step.difference:.1e}", f"{step.shifted:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
