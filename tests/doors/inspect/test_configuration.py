"""Configurations of the sandbox: files, errors that inspect_ai shows, and cleaning up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from anyio import run_process, to_thread
from inspect_ai.util import ComposeConfig, SandboxEnvironmentSpec, SandboxUnavailableError, SandboxUserUnsupportedError
from inspect_ai.util._sandbox.limits import override_max_exec_output_size

from hermes_exec import ConfigError, SandboxPool
from hermes_inspect import HermesConfig, HermesSandboxEnvironment
from hermes_inspect.compose import read_service
from hermes_inspect.config import read_config

pytestmark = pytest.mark.whole

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def work():
    return Task(dataset=[Sample("work")], sandbox=("hermes", "{config}"))
"""


def inspect(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "inspect_ai", *arguments]
    env = os.environ | {"INSPECT_DISPLAY": "plain", "COLUMNS": "1000"} | variables
    return subprocess.run(program, capture_output=True, text=True, cwd=cwd, env=env, timeout=60, check=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("backend: local\nmax_sandbox: 2\n", "did you mean 'max_sandboxes'?"),
        ("backend: docker\n", "backend 'docker' needs an image"),
        ("backend: doker\n", "did you mean 'docker'?"),
        ("backend: docker\nimage: a\nbase_url: unix:///no/socket\n", "unix:///no/socket"),
        ("backend: local\nworkdir: image\n", "give an absolute path"),
        ("[", "pool.yaml"),
        (None, "there is no file"),
    ],
)
def test_wrong_configuration_is_shown(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "pool.yaml").write_text(content)
    (tmp_path / "task.py").write_text(TASK.format(config="pool.yaml"))
    done = inspect("eval", "task.py", "--model", "mockllm/model", cwd=tmp_path)
    assert "sandbox 'hermes': " in done.stdout
    assert message in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("content", ["services: [", "- default", "services: {default: {imag: a}}"])
def test_wrong_compose_file_is_shown(content: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"compose\.yaml is no compose file"):
        read_config(str(tmp_path / "compose.yaml"))


def test_other_version_of_inspect_is_named(tmp_path: Path) -> None:
    info = tmp_path / "old" / "inspect_ai-0.3.200.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: inspect_ai\nVersion: 0.3.200\n")
    (tmp_path / "task.py").write_text(TASK.format(config="pool.yaml"))
    path = f"{info.parent}{os.pathsep}{os.environ['PYTHONPATH']}"
    done = inspect("eval", "task.py", "--model", "mockllm/model", cwd=tmp_path, PYTHONPATH=path)
    assert "hermes_inspect needs inspect_ai>=0.3.285,<0.4, installed: 0.3.200. Run: pip install" in " ".join(
        (done.stdout + done.stderr).split()
    )


async def test_cleanup_ends_sandboxes_of_run(docker_image: Callable[[str], str], tmp_path: Path) -> None:
    async with SandboxPool("docker", image=docker_image("busybox")) as pool, pool.slot() as slot:
        done = await to_thread.run_sync(
            lambda: inspect("sandbox", "cleanup", "hermes", pool.run_id, cwd=tmp_path), abandon_on_cancel=True
        )
        assert done.returncode == 0, done.stderr
        assert pool.run_id in done.stdout
        listed = await run_process(["docker", "ps", "-q", "--no-trunc"])
        assert slot.sandbox not in listed.stdout.decode()


def test_configuration_returns_from_log() -> None:
    config = HermesConfig(backend="docker", image="a", slot_limits={"memory_mb": 512})
    spec = SandboxEnvironmentSpec("hermes", config)
    assert SandboxEnvironmentSpec.model_validate(spec.model_dump(mode="json")).config == config
    assert hash(config) == hash(HermesConfig(image="a", backend="docker", slot_limits={"memory_mb": 512}))


def service(**fields: Any) -> dict[str, Any]:
    return read_service(ComposeConfig.model_validate({"services": {"default": fields}}), Path("/task"))


def test_compose_service_becomes_options() -> None:
    assert service(
        image="a",
        command="sleep inf",
        init=True,
        network_mode="none",
        environment=["A=1", "B="],
        mem_limit="1g",
        cpus=2,
    ) == {
        "backend": "docker",
        "image": "a",
        "workdir": "image",
        "network": False,
        "env": {"A": "1", "B": ""},
        "limits": {"memory_mb": 1024, "cpus": 2.0},
    }
    assert service(build={"context": "env"}, working_dir="/app", user="app") == {
        "backend": "docker",
        "image": "dockerfile:/task/env",
        "workdir": "/app",
        "user": "app",
    }
    limits = {"resources": {"limits": {"cpus": 1, "memory": "512M"}}}
    assert service(image="a", deploy=limits)["limits"] == {"cpus": 1.0, "memory_mb": 512}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "a", "volumes": ["/data:/data"], "ports": ["80"]}, "ports, volumes, which slots cannot have"),
        ({"image": "a", "environment": ["KEY"]}, "KEY has no value"),
        ({"command": "true"}, "neither image nor build"),
        ({"build": {"dockerfile": "other"}}, "only a file with the name Dockerfile"),
        ({"image": "a", "mem_limit": "much"}, "write it as 512m"),
        ({"image": "a", "mem_limit": "1..5g"}, "write it as 512m"),
        ({"image": "a", "deploy": {"resources": {"limits": {"cpus": "many"}}}}, "cpus: 'many' is no number"),
    ],
)
def test_compose_service_that_no_slot_can_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        service(**fields)


async def test_dockerfile_beside_task_is_built(docker_image: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {docker_image('debian')}\nWORKDIR /app\nCOPY given /app/given\n")
    (tmp_path / "given").write_text("text")
    (tmp_path / "compose.yaml").write_text("services: {default: {build: ., x-default: true}}\n")
    for name in ("Dockerfile", "compose.yaml"):
        config = str(tmp_path / name)
        environments = await HermesSandboxEnvironment.sample_init("task", config, {})
        try:
            result = await environments["default"].exec(["cat", "/app/given"])
            assert (result.stdout, (await environments["default"].exec(["pwd"])).stdout) == ("text", "/app\n")
        finally:
            await HermesSandboxEnvironment.sample_cleanup("task", config, environments, False)


@pytest.fixture
async def environment(anyio_backend: str) -> AsyncIterator[HermesSandboxEnvironment]:
    config = HermesConfig(backend="local")
    environments = await HermesSandboxEnvironment.sample_init("task", config, {})
    yield environments["default"].as_type(HermesSandboxEnvironment)
    await HermesSandboxEnvironment.sample_cleanup("task", config, environments, False)


async def test_timeout_has_output_so_far(environment: HermesSandboxEnvironment) -> None:
    with pytest.raises(TimeoutError, match="after 1 seconds") as raised:
        await environment.exec(["sh", "-c", "echo begun; sleep 30"], timeout=1)
    assert raised.value.truncated_output == "begun\n"  # type: ignore[attr-defined]


async def test_errors_of_slot_are_those_of_inspect(environment: HermesSandboxEnvironment) -> None:
    with pytest.raises(SandboxUserUnsupportedError, match="root"):
        await environment.exec(["id"], user="root")
    with pytest.raises(ValueError, match="embedded null byte"):
        await environment.exec(["echo", "a\0b"])
    with pytest.raises(FileNotFoundError):
        await environment.exec(["true"], cwd="/no/such/directory")
    assert (await environment.exec(["no-such-program"])).returncode == 127
    with override_max_exec_output_size(100), pytest.raises(Exception, match="limit of 100 bytes was exceeded"):
        await environment.exec(["seq", "1000"])
    await environment._pool.release(environment._slot)
    for call in (environment.exec(["true"]), environment.read_file("a"), environment.write_file("a", "b")):
        with pytest.raises(SandboxUnavailableError):
            await call


async def test_small_sandbox_has_smaller_outputs(docker_image: Callable[[str], str]) -> None:
    config = HermesConfig(backend="docker", image=docker_image("busybox"), limits={"memory_mb": 128})
    environments = await HermesSandboxEnvironment.sample_init("task", config, {})
    try:
        assert (await environments["default"].exec(["echo", "hi"])).stdout == "hi\n"
        with pytest.raises(Exception, match="limit of 4 MiB was exceeded"):
            await environments["default"].exec(["head", "-c", "5m", "/dev/zero"])
    finally:
        await HermesSandboxEnvironment.sample_cleanup("task", config, environments, False)


async def test_empty_path_is_a_directory(environment: HermesSandboxEnvironment) -> None:
    for call in (environment.read_file(""), environment.write_file("", "text")):
        with pytest.raises(IsADirectoryError):
            await call


async def test_connection_shows_slot(environment: HermesSandboxEnvironment) -> None:
    command = (await environment.connection()).command
    assert command == f"hermes-exec shell --slot {environment._slot.id}"
    await run_process([*command.split(), "ps"])


async def test_samples_share_pool(environment: HermesSandboxEnvironment) -> None:
    assert read_config(HermesConfig(backend="local")).shared_pool() is environment._pool
    assert read_config(HermesConfig(backend="local", env={"A": "1"})).shared_pool() is environment._pool
    assert read_config(HermesConfig(backend="local", max_sandboxes=3)).shared_pool() is not environment._pool
