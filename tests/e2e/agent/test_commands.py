"""`hermes-exec agent` and `hermes-exec batch` as processes, with a model behind an endpoint on loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent.plans import Step, wire
from tests.support.interrupts import BURSTS, Burst
from tests.unit.agent.endpoint import EVENTS, chunks_of, endpoint, events, ok
from tests.unit.agent.endpoint import Answer as Wire
from tests.unit.agent.tokens.server import Answer, serving

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = ("--backend", "docker", "--image", "x", "--option", "base_url=unix:///nonexistent.sock")
"""A sandbox cannot be had there, which would be told first."""


@contextmanager
def plan_endpoint(plans: dict[str, list[Step]], on_turn: Callable[[str, int], None] | None = None) -> Iterator[str]:
    """An endpoint that answers the n-th turn of a conversation with the n-th step of the plan of its prompt."""

    def answer(_: str, body: dict[str, Any]) -> Answer:
        prompt = next(m["content"] for m in body["messages"] if m["role"] == "user")
        turn = sum(m["role"] == "assistant" for m in body["messages"])
        if on_turn is not None:
            on_turn(prompt, turn)
        said = ok(wire(plans[prompt][turn]))
        return Answer(said.status, said.body)

    with serving(answer) as url:
        yield f"{url}/v1"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hermes_exec.cli.main", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=120)


def model(url: str) -> tuple[str, ...]:
    return ("--model", "plan", "--base-url", url, "--api-key", "x")


def prompts(directory: Path, *names: str) -> Path:
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": name, "check": "[ -e made ]"}) + "\n" for name in names))
    return path


def test_agent_answers(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("seven\n")
    with plan_endpoint({"read it": [["cat note.txt"], "It says seven."]}) as url:
        done = run("agent", "read it", "--put", str(tmp_path / "note.txt"), *model(url))
        as_json = run("agent", "read it", "--put", str(tmp_path / "note.txt"), "--json", *model(url))
    assert (done.returncode, done.stdout) == (0, "It says seven.\n")
    assert "cat note.txt" in done.stderr
    assert "seven" in done.stderr
    facts = json.loads(as_json.stdout)
    assert (facts["finish"], facts["trainable"], facts["answer"], facts["turns"]) == (
        "answered",
        True,
        "It says seven.",
        2,
    )
    assert facts["tool_calls"][0]["name"] == "terminal"


@pytest.mark.whole
def test_a_backend_is_taken_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "several.yaml"
    file.write_text(
        "backends:\n  here: {type: local, env: {WHO: here}}\n  away: {type: docker, image: x, base_url: 'unix:///none'}\n"
    )
    here, away = ("--config", str(file), "--backend", "here"), ("--config", str(file), "--backend", "away")
    with plan_endpoint({"a": [["touch made; echo $WHO"], "Done."]}) as url:
        done = run("agent", "a", *model(url), *here)
        batch = ("batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"), *model(url))
        assert run(*batch, *away).returncode == 3
        batched = run(*batch, *here, "--overwrite")
    assert (done.returncode, done.stdout, '"here\\n"' in done.stderr) == (0, "Done.\n", True), done.stderr
    assert batched.returncode == 0, batched.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["backend"] == "local"


def test_agent_says_which_tools_it_does_without() -> None:
    with endpoint(ok({"content": "hello"})) as server:
        url = ("--model", "m", "--base-url", server.base_url)
        done = run("agent", "x", *url, "-t", "terminal", "-t", "web")
        refused = run("agent", "x", *url, "-t", "terminal", "-t", "web", "--strict")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "left out, not part of this package: web_search, web_extract" in done.stderr
    assert (refused.returncode, "'web' has no tool here" in refused.stderr) == (2, True)


def test_agent_without_an_endpoint_ends_with_infra() -> None:
    url = "http://127.0.0.1:9/v1"
    done = run("agent", "x", "--model", "m", "--base-url", url, "--api-key", "x", "--wait-outage", "2")
    assert done.returncode == 3
    assert f"WARNING hermes_agent.models.gate: {url} completes no request: no connection" in done.stderr
    assert f"{url} completed no request for 2 s, the last time: no connection" in done.stderr


@pytest.mark.whole
def test_answer_that_comes_slowly_costs_one_request(tmp_path: Path) -> None:
    body = events(chunks_of(json.loads(ok({"content": "It is done."}).body)))
    drips: list[bytes | float] = []
    for at in range(0, len(body), len(body) // 8):
        drips += [body[at : at + len(body) // 8], 0.5]
    slow = Wire(200, b"", EVENTS, drips=drips)
    late = Wire(200, b"", {"content-type": "application/json"}, drips=[4.0, ok({"content": "late"}).body])
    with endpoint(slow, slow, late) as server:
        url = ("--model", "m", "--base-url", server.base_url, "--request-timeout", "2", "--max-retries", "0")
        agent = run("agent", "x", *url)
        batch = run("batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"), *url, "--json")
        whole = run("agent", "x", *url, "--no-stream")
        asked = [stream for stream, _ in server.streams]
    assert (agent.returncode, agent.stdout) == (0, "It is done.\n"), agent.stderr
    assert batch.returncode == 0, batch.stderr
    assert (whole.returncode, "no piece of an answer within 2 s" in whole.stderr) == (3, True)
    assert asked == [True, True, None]


@pytest.mark.whole
def test_forgotten_parser_is_told_and_ends_with_usage(tmp_path: Path) -> None:
    said = ok({"content": '<tool_call>{"name": "terminal", "arguments": {"command": "ls"}}</tool_call>'})
    with endpoint(said, said, said) as server:
        url = ("--model", "m", "--base-url", server.base_url)
        agent = run("agent", "x", *url, "--json")
        batch = run("batch", "run", str(prompts(tmp_path, "a", "b")), "--out", str(tmp_path / "out"), *url)
    warning = "WARNING hermes_agent.parsers.unread_calls: m writes calls as text, in the format 'hermes'"
    assert warning in agent.stderr
    assert json.loads(agent.stdout)["trainable"] is False
    assert (agent.returncode, "name their format with --parser" in agent.stderr) == (2, True)
    assert warning in batch.stderr
    assert batch.returncode == 2
    assert "ConfigError: the run was stopped after 2 answers with calls that no parser reads" in batch.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--model", "m", "--base-url", "localhost:8000/v1"), "'localhost:8000/v1' is not the URL of an endpoint"),
        (("--model", "m", "--api-key", "x", "--parser", "herms"), "did you mean 'hermes'?"),
        (("--model", "m"), "OpenAI's own endpoint needs an api_key"),
        (("--model", "embedded", "--parser", "herms"), "did you mean 'hermes'?"),
        (("--model", "embedded", "--tool-option", "native_image=true"), "did you mean 'native_images'?"),
        (("--model", "embedded", "--tool-option", "native_images=3"), "native_images is of type bool, not 3"),
    ],
)
def test_model_that_cannot_be_is_told_before_a_sandbox_is_started(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    batch = ("batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"))
    for work in (("agent", "x"), batch):
        done = run(*work, *options, *NOWHERE)
        assert (done.returncode, told in " ".join(done.stderr.split())) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((" ",), "the task is empty"),
        (("x", "--toolset", "terminl"), "unknown toolset 'terminl'"),
        (("x", "--put", "docs", "--put", "./docs"), "have the same name"),
        (("x", "--temperature", "inf"), "'--temperature'"),
    ],
)
def test_task_that_cannot_be_is_told_before_a_sandbox_is_started(arguments: tuple[str, ...], told: str) -> None:
    done = run("agent", *arguments, "--model", "m", *NOWHERE)
    assert (done.returncode, told in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_what_cannot_be_put_into_the_workspace_is_one_line() -> None:
    done = run("agent", "x", "--put", "/dev/null", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "neither a file nor a directory: '/dev/null'" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("-o", "slots_per_sandbox=x"), "slots_per_sandbox: "),
        (("-o", "backend=docker"), "the backend 'docker' needs one"),
        (("-o", "backend_options=3"), "backend_options must be a mapping"),
        (("--config", "POOL", "--profile", "q"), "no profile 'q'"),
        (("--config", "POOL", "--profile", "p"), "there is no backend 'dokcer'"),
    ],
)
def test_pool_of_a_batch_run_that_cannot_be(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text("profiles: {p: {backend: dokcer}}\n")
    given = [str(pool) if option == "POOL" else option for option in options]
    model = ("--model", "m", "--api-key", "x")
    done = run("batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"), *model, *given)
    assert (done.returncode, told in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_pool_of_a_batch_run_comes_from_a_configuration_file(tmp_path: Path) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text("slots_per_sandbox: 2\nprofiles: {p: {env: {WHO: profile}}}\n")
    with plan_endpoint({"a": [['[ "$WHO" = profile ] && touch made'], "done"]}) as url:
        given = ("--config", str(pool), "--profile", "p", *model(url))
        done = run("batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"), *given)
    assert "1 of 1 solved" in done.stdout, done.stderr


def test_batch_run_show_and_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plans: dict[str, list[Step]] = {"a": [["touch made"], "done"], "b": ["no"]}
    with plan_endpoint(plans) as url:
        started = ("batch", "run", str(prompts(tmp_path, "a", "b")), "--out", str(out))
        done = run(*started, *model(url))
        refused = run(*started, *model(url))
    assert done.returncode == 0, done.stderr
    assert "1 of 2 solved" in done.stdout
    assert "[2/2]" in done.stderr
    assert (refused.returncode, "has results of an earlier run" in refused.stderr) == (2, True)
    shown = run("batch", "show", str(out), "--json")
    assert [record["solved"] for record in json.loads(shown.stdout)] == ["solved", "unsolved"]
    (out / "report.html").unlink()
    assert json.loads(run("batch", "report", str(out), "--json").stdout) == {"report": str(out / "report.html")}
    assert (out / "report.html").stat().st_size > 5000


@pytest.mark.parametrize("burst", [Burst(0, (signal.SIGINT,)), Burst(0, (signal.SIGTERM,)), *BURSTS[1::3]], ids=str)
def test_signals_end_with_all_sandboxes_gone_and_partial_results(tmp_path: Path, burst: Burst) -> None:
    out = tmp_path / "out"
    slow = threading.Event()
    plans: dict[str, list[Step]] = {"quick": [["touch made"], "done"], "slow": [["sleep 300"], "done"]}

    def on_turn(prompt: str, turn: int) -> None:
        if prompt == "slow":
            slow.set()

    with plan_endpoint(plans, on_turn) as url:
        arguments = ("batch", "run", str(prompts(tmp_path, "quick", "slow")), "--out", str(out), "--workers", "1")
        with subprocess.Popen(
            command(*arguments, *model(url), "--option", f"run_id={tmp_path.name}"),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                assert slow.wait(60)
                burst.send(process)
                _, errors = process.communicate(timeout=45)
            finally:
                process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert f"continue the run: hermes-exec batch resume {out}\n" in errors
    records = [json.loads(line) for line in (out / "trajectories.jsonl").read_text().splitlines()]
    assert [record["solved"] for record in records] == ["solved"]
    assert (out / "report.html").exists()
    sandboxes: list[dict[str, Any]] = json.loads(run("ps", "--json").stdout)
    assert [sandbox for sandbox in sandboxes if sandbox["labels"]["run_id"] == tmp_path.name] == []


@pytest.mark.parametrize("burst", BURSTS[::3], ids=str)
def test_signals_end_an_agent_with_all_sandboxes_gone(tmp_path: Path, burst: Burst) -> None:
    asked = threading.Event()
    with (
        plan_endpoint({"slow": [["sleep 300"], "done"]}, lambda *_: asked.set()) as url,
        subprocess.Popen(
            command("agent", "slow", *model(url), "--option", f"run_id={tmp_path.name}"),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert asked.wait(60)
            burst.send(process)
            out, errors = process.communicate(timeout=45)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, ""), errors
    assert "Traceback" not in errors
    sandboxes: list[dict[str, Any]] = json.loads(run("ps", "--json").stdout)
    assert [sandbox for sandbox in sandboxes if sandbox["labels"]["run_id"] == tmp_path.name] == []


@pytest.mark.parametrize(
    "arguments",
    [
        "batch run nowhere.jsonl --out o --model m",
        "batch show nowhere",
        "batch run prompts.jsonl --out o --model embedded --parallel-calls nowhere",
        "agent go --model m --base-url http://localhost/v1 --parallel-calls nowhere",
    ],
)
def test_wrong_usage(arguments: str) -> None:
    done = run(*arguments.split())
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_every_command_has_help_with_an_example() -> None:
    for arguments in (("agent",), ("batch", "run"), ("batch", "resume"), ("batch", "show"), ("batch", "report")):
        done = run(*arguments, "--help")
        assert done.returncode == 0
        assert "Example: hermes-exec" in " ".join(done.stdout.split())


@pytest.mark.parametrize("command", ["run", "agent", "batch run"])
def test_help_names_the_exit_codes(command: str) -> None:
    told = " ".join(run(*command.split(), "--help").stdout.split())
    assert "Exit codes: " in told
    assert "130 interrupted" in told
