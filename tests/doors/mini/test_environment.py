"""What environments of mini-swe-agent do, in a slot of `local` and of Docker, and its own programs."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from hermes_exec import ConfigError, ImageError, SlotClosed
from hermes_exec.blocking import SandboxPool
from hermes_mini import Environment

OWN_SHELL = "ln -s /bin/sh own-shell"
LOCAL: dict[str, Any] = {"backend": "local", "min_isolation": "namespaces"}


@pytest.fixture(scope="module", params=["local", "docker"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "local":
        return LOCAL
    images: Callable[[str], str] = request.getfixturevalue("docker_image")
    return {"backend": "docker", "image": images("debian"), "slots_per_sandbox": 8}


@pytest.fixture
def environment(options: dict[str, Any]) -> Iterator[Environment]:
    environment = Environment(**options, env={"GREETING": "hello"}, timeout=20)
    yield environment
    environment.cleanup()


def run(environment: Environment, command: str, **more: Any) -> dict[str, Any]:
    return environment.execute({"command": command}, **more)


def test_output_and_return_code_are_returned(environment: Environment) -> None:
    assert run(environment, "echo out; echo err >&2; exit 3") == {
        "output": "out\nerr\n",
        "returncode": 3,
        "exception_info": "",
    }


def test_variables_are_set(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED", "from here")
    monkeypatch.setenv("BOTH", "from here")
    environment = Environment(**options, env={"BOTH": "from env"}, forward_env=["FORWARDED", "BOTH", "MISSING"])
    assert run(environment, 'echo "$FORWARDED, $BOTH, ${MISSING-unset}"')["output"] == "from here, from env, unset\n"
    environment.cleanup()


def test_commands_start_in_cwd(options: dict[str, Any]) -> None:
    environment = Environment(**options, cwd="/workspace/made")
    assert run(environment, "pwd")["output"] == "/workspace/made\n"
    assert run(environment, "pwd", cwd="/usr")["output"] == "/usr\n"
    environment.cleanup()


def test_missing_cwd_is_a_result(environment: Environment) -> None:
    answer = run(environment, "pwd", cwd="/nowhere")
    assert answer["returncode"] == -1
    assert "/nowhere" in answer["exception_info"]


def test_files_stay_and_shell_state_does_not(environment: Environment) -> None:
    run(environment, "echo kept > file; cd /; export LOST=1")
    assert run(environment, 'cat file; echo "${LOST-unset}"; echo $GREETING')["output"] == "kept\nunset\nhello\n"


def test_timeout_returns_output_and_ends_processes(environment: Environment) -> None:
    answer = run(environment, "echo before; sleep 79 & sleep 79", timeout=1)
    assert (answer["returncode"], answer["output"]) == (-1, "before\n")
    assert "timed out after 1 seconds" in answer["exception_info"]
    assert answer["extra"]["exception_type"] == "TimeoutExpired"
    assert "sleep" not in run(environment, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; true")["output"].replace(
        " cat", ""
    )


def test_interpreter_is_replaced(options: dict[str, Any]) -> None:
    environment = Environment(**options, interpreter=["sh", "-c", 'echo "got: $0"'])
    assert run(environment, "echo hi")["output"] == "got: echo hi\n"
    environment.cleanup()


def test_missing_interpreter_is_a_configuration_error(options: dict[str, Any]) -> None:
    before = SandboxPool.shared(None, **options).open().stats().slots_in_use
    with pytest.raises(ConfigError, match=r"'fish' cannot run .* not found.* such as sh with the argument -c"):
        Environment(**options, interpreter=["fish", "-c"])
    assert SandboxPool.shared(None, **options).stats().slots_in_use == before


def test_interpreter_that_the_model_removes_is_a_result(options: dict[str, Any]) -> None:
    environment = Environment(**options, interpreter=["./own-shell", "-c"], pool={"slot_setup": OWN_SHELL})
    assert run(environment, "rm own-shell; echo removed")["output"] == "removed\n"
    assert run(environment, "true")["returncode"] == 127
    environment.cleanup()


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800"])
def test_command_that_no_program_can_get_is_a_result(environment: Environment, command: str) -> None:
    answer = run(environment, command)
    assert answer["returncode"] == -1
    assert "command" in answer["exception_info"]
    assert run(environment, "echo on")["output"] == "on\n"


def test_submission_is_raised(environment: Environment) -> None:
    marker = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    with pytest.raises(Submitted) as raised:
        run(environment, f"echo {marker}; echo the patch")
    assert raised.value.messages[0]["extra"] == {"exit_status": "Submitted", "submission": "the patch\n"}
    assert run(environment, f"echo {marker}; exit 1")["returncode"] == 1
    assert run(environment, f"echo first; echo {marker}")["returncode"] == 0


def test_bytes_that_are_no_text_are_replaced(environment: Environment) -> None:
    assert run(environment, "printf 'a\\377b'")["output"] == "a\ufffdb"


def test_two_environments_share_a_pool_and_no_files(options: dict[str, Any]) -> None:
    first, second = Environment(**options), Environment(**options)
    run(first, "echo secret > file")
    assert run(second, "cat file")["returncode"] == 1
    assert first._pool == second._pool
    first.cleanup()
    second.cleanup()


def test_template_variables_describe_the_slot(environment: Environment) -> None:
    values = environment.get_template_vars(task="t")
    assert values["node"] == run(environment, "uname -n")["output"].strip()
    assert (values["system"], values["task"], values["timeout"]) == ("Linux", "t", 20)


def test_serialized_configuration_has_no_secrets() -> None:
    environment = Environment(**LOCAL, secrets={"TOKEN": "tell-nobody"})
    assert run(environment, "echo $TOKEN")["output"] == "tell-nobody\n"
    assert "tell-nobody" not in json.dumps([environment.serialize(), environment.get_template_vars()])
    assert environment.serialize()["info"]["config"]["environment_type"] == "hermes_mini.environment.MiniEnvironment"
    environment.cleanup()


@pytest.mark.parametrize("in_loop", [False, True], ids=["here", "in-the-pools-loop"])
def test_unused_environment_releases_its_slot(in_loop: bool) -> None:
    pool = SandboxPool.shared(None, **LOCAL).open()
    before = pool.stats().slots_in_use
    environment = Environment(**LOCAL)
    environment.myself = environment  # type: ignore[attr-defined]
    assert pool.stats().slots_in_use == before + 1
    del environment
    if in_loop:
        pool.portal.call(gc.collect)
    else:
        gc.collect()
    deadline = time.monotonic() + 20
    while pool.stats().slots_in_use > before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lost_slot_is_no_result() -> None:
    environment = Environment(**LOCAL)
    assert environment._slot is not None
    environment._pool.release(environment._slot)
    with pytest.raises(SlotClosed):
        run(environment, "true")
    environment.cleanup()
    with pytest.raises(ConfigError, match="create a new one"):
        run(environment, "true")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"backend": "dokcer"}, "docker"),
        ({"backend": "local", "timeot": 5}, "timeot"),
        ({"backend": "docker"}, "image"),
        ({"pool": "no-such-file.yaml"}, "no-such-file.yaml"),
        ({"backend": "local", "cwd": "relative"}, "workdir"),
        ({"backend": "local", "timeout": 0}, "environment.timeout: Input should be greater than 0, not 0"),
        ({"backend": "local", "timeout": "soon"}, "environment.timeout: .* not 'soon'"),
        ({"backend": "local", "interpreter": []}, "environment.interpreter: .* at least 1 item"),
        ({"backend": "local", "interpreter": "bash -c"}, "environment.interpreter: .* valid list"),
        ({**LOCAL, "env": {"A=B": "x"}}, "'A=B' cannot be the name of an environment variable"),
    ],
)
def test_wrong_option_is_a_configuration_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Environment(**wrong)


def test_missing_image_is_an_image_error() -> None:
    with pytest.raises(ImageError, match="no-such-image"):
        Environment(backend="docker", image="no-such-image:1", pull_policy="never")


def scripted(*commands: str) -> DeterministicModel:
    return DeterministicModel(outputs=[make_output("", [{"command": command}]) for command in commands])


def test_agent_solves_a_task(options: dict[str, Any]) -> None:
    environment = get_environment({"environment_class": "hermes_mini.Environment", **options})
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat answer"
    model = scripted("echo 42 > answer", submit)
    agent = DefaultAgent(model, environment, system_template="On {{system}}.", instance_template="{{task}}")
    assert agent.run("Compute.") == {"exit_status": "Submitted", "submission": "42\n"}


def test_program_mini_runs_in_a_slot(tmp_path: Path) -> None:
    outputs = [
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": command}], "cost": 0.0}}
        for command in ("touch here; pwd", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; ls")
    ]
    config = {
        "agent": {"system_template": "s", "instance_template": "{{task}}", "cost_limit": 0, "mode": "yolo"},
        "model": {"model_class": "deterministic", "model_name": "scripted", "outputs": outputs},
        "environment": LOCAL,
    }
    (tmp_path / "task.yaml").write_text(json.dumps(config))
    command = ["mini", "--environment-class", "hermes_mini.Environment", "-t", "List.", "--exit-immediately"]
    done = subprocess.run(
        [*command, "-c", "task.yaml", "-o", "out.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    saved = json.loads((tmp_path / "out.json").read_text())["info"]
    assert (saved["exit_status"], saved["submission"]) == ("Submitted", "here\n")
    assert not (tmp_path / "here").exists()


def test_benchmarks_take_images_of_their_instances() -> None:
    code = (
        "import runpy, sys; sys.argv = ['x']; runpy.run_module('hermes_mini', run_name='__main__')\n"
        "from minisweagent.environments import get_environment_class\n"
        "print(get_environment_class('docker'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "hermes_mini.environment.MiniEnvironment" in done.stdout, done.stderr
