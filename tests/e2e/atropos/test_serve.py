"""Environments before a trainer: the real server of atropos, signals, back-pressure, what does not fit."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.atropos.inference_server import (
    PolicyServer,
    call,
    load,
    make_tokenizer,
    read_groups,
    sampled,
    sequences,
    serving,
    solve,
)
from tests.e2e.atropos.trainer import environment, flags, run, run_api
from tests.support.interrupts import BURSTS, Burst
from tests.unit.agent.tokens.families import PLAIN

SLEEPS = call("terminal", command="sleep 60")


def test_three_batches_of_whole_groups(tokenizer: Path) -> None:
    scores = itertools.count()

    def policy(prompt: str) -> str:
        # Every other rollout does nothing, so that the scores of a group differ.
        if "<|im_start|>tool" in prompt:
            return solve(prompt)
        return solve(prompt) if next(scores) % 2 else "I do nothing."

    with run_api() as api, serving(PolicyServer(load(tokenizer), policy)) as server:
        api.register(batch_size=8, num_steps=3)
        more = ("--env.rollout_server_url", api.url, "--env.total_steps", "2", "--env.max_batches_offpolicy", "1")
        with environment("serve", *flags(tokenizer, server.url, *more, group_size=4)) as env:
            batches = [api.batch(60) for _ in range(3)]
            said, _ = env.communicate(timeout=30)
        assert env.returncode == 0, said
        assert "Traceback" not in said
        assert api.ask("/status")["current_step"] >= 3
    assert [[len(group["tokens"]) for group in batch] for batch in batches] == [[4, 4]] * 3
    known = set(sampled(server.log, 3))
    for group in itertools.chain(*batches):
        assert group["generation_params"]["temperature"] == 1.0
        assert group["messages"] is None
        assert set(sequences([group])) <= known | set(sampled(server.log, 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_give_every_slot_back_and_tell_the_server(number: signal.Signals, tokenizer: Path) -> None:
    with run_api() as api, serving(PolicyServer(load(tokenizer), lambda _: SLEEPS)) as server:
        api.register(batch_size=4)
        more = ("--env.rollout_server_url", api.url)
        with environment("serve", *flags(tokenizer, server.url, *more)) as env:
            until_asked(server, 4)
            time.sleep(0.5)
            begun = time.monotonic()
            env.send_signal(number)
            said, _ = env.communicate(timeout=90)
        assert env.returncode == 130, said
        assert time.monotonic() - begun < 40  # the tool calls take 60
        assert "Traceback" not in said
        # An environment that comes after it has the whole weight.
        registered = {"max_token_length": 1, "desired_name": "n", "weight": 1.0, "group_size": 2}
        made = api.ask("/register-env", registered)
        assert api_status(api.url, made["env_id"])["env_weight"] == 1.0


@pytest.mark.parametrize("burst", BURSTS, ids=str)
def test_several_signals_end_as_one_does(burst: Burst, tokenizer: Path) -> None:
    """With 32 slots in use: all of them come back, and the server is told."""
    with run_api() as api, serving(PolicyServer(load(tokenizer), lambda _: SLEEPS)) as server:
        api.register(batch_size=64)
        more = ("--env.rollout_server_url", api.url, "--env.max_num_workers", "8", "--env.max_batches_offpolicy", "4")
        with environment("serve", *flags(tokenizer, server.url, *more, group_size=4)) as env:
            until_asked(server, 32)
            begun = time.monotonic()
            burst.send(env)
            said, _ = env.communicate(timeout=60)
        assert time.monotonic() - begun < 20  # 1 s on a quiet machine; the tool calls take 60
        assert env.returncode == 130, said
        assert said in burst.messages
        registered = {"max_token_length": 1, "desired_name": "n", "weight": 1.0, "group_size": 2}
        made = api.ask("/register-env", registered)
        assert api_status(api.url, made["env_id"])["env_weight"] == 1.0


def api_status(url: str, env_id: int) -> dict[str, float]:
    import urllib.request

    request = urllib.request.Request(
        f"{url}/status-env", json.dumps({"env_id": env_id}).encode(), {"content-type": "application/json"}, method="GET"
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        given: dict[str, float] = json.loads(answer.read())
        return given


def test_a_trainer_whose_batches_no_groups_fill_is_refused(tokenizer: Path) -> None:
    with run_api() as api:
        api.register(batch_size=7)
        more = ("--env.rollout_server_url", api.url, "--openai.base_url", "http://127.0.0.1:9/v1")
        code, said = run("serve", *flags(tokenizer, "http://127.0.0.1:9/v1", *more))
    assert code == 2, said
    assert "the trainer's batch size 7 is not a multiple of the group size 2" in said


@pytest.mark.whole
def test_a_limit_of_the_trainer_is_kept(tokenizer: Path) -> None:
    """A sequence as long as the limit is dropped by atroposlib: groups stay below it, cut answers and all."""
    with run_api() as api, serving(PolicyServer(load(tokenizer), lambda p: solve(p) + "x" * 3000)) as server:
        api.register(batch_size=2, max_token_len=7000)
        more = (
            "--env.rollout_server_url", api.url, "--env.ensure_scores_are_not_same", "false",
            "--env.max_batches_offpolicy", "1",
        )  # fmt: skip
        with environment("serve", *flags(tokenizer, server.url, *more)):
            (group,) = api.batch(60)
    assert all(len(ids) < 7000 for ids in group["tokens"])


def test_workers_that_are_called_off_lose_nothing(tokenizer: Path) -> None:
    """A worker that takes too long is cancelled by atroposlib: its slots come back, and the run goes on."""
    slow = threading.Event()

    def policy(prompt: str) -> str:
        return solve(prompt) if slow.is_set() else SLEEPS

    with run_api() as api, serving(PolicyServer(load(tokenizer), policy)) as server:
        api.register(batch_size=4)
        more = (
            "--env.rollout_server_url", api.url, "--env.worker_timeout", "2", "--env.slots_per_sandbox", "4",
            "--env.ensure_scores_are_not_same", "false", "--env.max_batches_offpolicy", "2",
        )  # fmt: skip
        with environment("serve", *flags(tokenizer, server.url, *more)):
            # Three rounds of four rollouts, each begun in a slot that the round before has given back.
            until_asked(server, 12)
            slow.set()
            batch = api.batch(60)
    assert [len(group["tokens"]) for group in batch] == [2, 2]


def test_process_writes_lines_and_a_page_and_names_a_second_file(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    more = ("--env.total_steps", "2", "--env.data_path_to_save_groups", str(path), "--env.max_num_workers", "-1")
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        code, said = run("process", *flags(tokenizer, server.url, *more), WANDB_MODE="disabled")
        assert code == 0, said
        assert len(server.bodies) == 12
        assert "group 2/2: rewards 1 1; 4 tool calls" in said
        code, said = run("process", *flags(tokenizer, server.url, *more))
        assert code == 0, said
    assert len(read_groups(path)) == len(read_groups(tmp_path / "groups_1.jsonl")) == 2
    assert (tmp_path / "groups.html").stat().st_size > 1000
    assert "Hello from the slot" in path.read_text()


def test_process_ends_with_an_error_when_nothing_can_be_had(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    more = ("--env.data_path_to_save_groups", str(path), "--env.server_wait_s", "0", "--env.max_failed_groups", "2",
            "--env.max_rerolls", "0", "--env.group_size=1")  # fmt: skip
    code, said = run("process", *flags(tokenizer, "http://127.0.0.1:9/v1", *more))
    assert code == 3, said
    assert "Traceback" not in said
    assert "dropped groups in a row: 2" in said
    assert "http://127.0.0.1:9/v1" in said
    assert "RetryError" not in said


@pytest.mark.parametrize(
    ("command", "more", "told"),
    [
        ("process", ["--env.tool_call_parser", "hermse"], "did you mean 'hermes'"),
        ("process", ["--env.enabled_toolsets", "terminl"], "terminl"),
        ("process", ["--openai.base_url", "localhost:9001/v1"], "not 'localhost:9001/v1'"),
        ("process", ["--env.group_size", "100"], "a group of 100 needs 100 slots"),
        ("process", ["--env.agent_temperature", "0.7"], "--env.logprobs processed"),
        ("process", ["--openai.api_key", ""], "api_key is empty"),
        ("process", ["--openai.tokenizer_name", "another"], "the same ids mean different texts"),
        ("process", ["--env.chat_template", "{{ messages[0].content }}"], "chat template"),
        ("process", ["--env.tokenizer_name", "/no/such/directory"], "tokenizer"),
        ("serve", ["--openai.server_type", "openai"], "send_without_logprobs"),
        ("serve", ["--env.sequences", "all"], "serve needs --env.sequences main"),
        ("serve", ["--env.group_size", "1"], "every group has equal scores"),
        ("serve", ["--env.max_num_workers", "99"], "64 slots are enough for 32 groups of 2"),
        ("process", ["--env.backend", "dokcer"], "dokcer"),
    ],
)
def test_start_up_refusals(command: str, more: list[str], told: str, tokenizer: Path) -> None:
    code, said = run(command, *flags(tokenizer, "http://127.0.0.1:9/v1", *more), HF_HUB_OFFLINE="1")
    assert code == 2, said
    assert "Traceback" not in said
    assert told in said


def test_a_template_that_drops_tools_is_refused_and_another_one_taken(tmp_path: Path) -> None:
    drops = make_tokenizer(tmp_path / "tokenizer", PLAIN.replace("{%- if tools %}", "{%- if false %}"))
    with serving(PolicyServer(load(drops), solve)) as server:
        more = ("--env.total_steps", "1", "--env.data_path_to_save_groups", str(tmp_path / "groups.jsonl"))
        given = flags(drops, server.url, *more)
        refused, told = run("process", *given)
        taken, said = run("process", *given, "--env.chat_template", PLAIN)
    assert (refused, taken) == (2, 0), told + said
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["groups.jsonl"]
    assert "the chat template does not render tools" in told


def test_a_wrong_field_of_a_dataset_is_named(tokenizer: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"qestion": "1+1?", "answer": "#### 2"}\n')
    given = flags(tokenizer, "http://127.0.0.1:9/v1", "--env.dataset_name", str(rows))
    code, said = run("process", *given, name="gsm8k_agent")
    assert code == 2, said
    assert "row 1" in said
    assert "the field 'question' (str) is missing; the row has answer, qestion" in said


def test_a_proxy_of_atroposlib_is_refused(tokenizer: Path) -> None:
    code, said = run("process", *flags(tokenizer, "http://127.0.0.1:9/v1"), ATROPOS_PROXY_URL="http://127.0.0.1:9")
    assert code == 2, said
    assert "ATROPOS_PROXY_URL is set" in said


def test_keys_are_neither_printed_nor_written(tokenizer: Path, tmp_path: Path) -> None:
    more = ("--openai.api_key", "sk-very-secret", "--env.data_dir_to_save_evals", str(tmp_path))
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        code, said = run("evaluate", *flags(tokenizer, server.url, *more))
    assert code == 0, said
    assert "sk-very-secret" not in said
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "sk-very-secret" not in written
    assert json.loads((tmp_path / "samples.jsonl").read_text())["solved"] is True


def test_sft_data_are_made_of_groups(tokenizer: Path, tmp_path: Path) -> None:
    """`atropos-sft-gen` is a trainer that writes the best sequences to a file."""
    out = tmp_path / "sft.jsonl"
    program = Path(sys.executable).parent / "atropos-sft-gen"
    with run_api() as api, serving(PolicyServer(load(tokenizer), solve)) as server:
        command = [
            str(program), str(out), "--api-url", api.url, "--group-size", "2", "--num-seqs-to-save", "4",
            "--tokenizer", str(tokenizer), "--max-token-len", "16000", "--tasks-per-step", "2",
        ]  # fmt: skip
        more = ("--env.rollout_server_url", api.url, "--env.ensure_scores_are_not_same", "false",
                "--env.total_steps", "4", "--env.include_messages", "true")  # fmt: skip
        with environment("serve", *flags(tokenizer, server.url, *more)):
            done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(out.read_text().splitlines()) >= 4


def test_a_server_of_atropos_that_has_forgotten_the_environment_ends_it(tokenizer: Path) -> None:
    with serving(PolicyServer(load(tokenizer), lambda _: SLEEPS)) as server, ExitStack() as stack:
        with run_api() as api:
            api.register(batch_size=4)
            given = flags(tokenizer, server.url, "--env.rollout_server_url", api.url)
            env = stack.enter_context(environment("serve", *given))
            until_asked(server, 4)
        stack.enter_context(run_api(api.port))
        said, _ = env.communicate(timeout=90)
    assert env.returncode == 3, said
    assert "Traceback" not in said
    assert "no longer knows this environment" in said


def until_asked(server: PolicyServer, times: int) -> None:
    end = time.monotonic() + 60
    while len(server.bodies) < times and time.monotonic() < end:
        time.sleep(0.05)
    assert len(server.bodies) >= times


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_slow_environment_beside_a_fast_one_gets_its_part(tokenizer: Path) -> None:
    """Called off again and again by the fast one's groups, it still has some: its finished rollouts are kept."""

    def slow(prompt: str) -> str:
        time.sleep(1.5)
        return solve(prompt).replace("It is done", "It is SLOW")

    with (
        run_api() as api,
        serving(PolicyServer(load(tokenizer), slow)) as for_slow,
        serving(PolicyServer(load(tokenizer), solve)) as for_fast,
    ):
        api.register(batch_size=8, num_steps=1000)
        more = ("--env.rollout_server_url", api.url, "--env.ensure_scores_are_not_same", "false",
                "--env.slots_per_sandbox", "8", "--env.total_steps", "1000")  # fmt: skip
        own = ("--env.min_batch_allocation", "0.5")
        with (
            environment("serve", *flags(tokenizer, for_slow.url, *more, *own)),
            environment("serve", *flags(tokenizer, for_fast.url, *more)),
        ):
            end, texts = time.monotonic() + 150, list[str]()
            while time.monotonic() < end and not any("SLOW" in text for text in texts):
                for group in api.ask("/batch")["batch"] or []:
                    assert len(group["tokens"]) == 2
                    texts += [for_fast.text(ids) for ids in group["tokens"]]
                time.sleep(0.3)
    assert any("SLOW" in text for text in texts)
    assert any("It is done" in text for text in texts)
