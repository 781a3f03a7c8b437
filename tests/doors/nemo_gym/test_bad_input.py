"""Wrong options, missing images and lost sandboxes: the error of NeMo Gym has our message, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxCreateError, SandboxSpec, SandboxStatus, create_provider

import hermes_nemo_gym
from hermes_exec import ConfigError
from tests.doors.nemo_gym.conftest import Block
from tests.doors.nemo_gym.test_sandbox import held


@pytest.mark.whole
@pytest.mark.parametrize(
    ("options", "spec", "message"),
    [
        ({"backend": "dokcer"}, {}, "did you mean 'docker'"),
        ({"backend": "local", "netwrok": False}, {}, "did you mean 'network'"),
        ({"pool": "no-such-file.yaml"}, {}, "no-such-file.yaml"),
        ({"backend": "docker"}, {}, "needs an image"),
        ({"backend": "local"}, {"image": "debian"}, "image"),
        ({"backend": "local"}, {"workdir": "relative"}, "workdir"),
        ({"backend": "local"}, {"entrypoint": ["sh"]}, "start the program by `exec`"),
        ({"backend": "local"}, {"provider_options": {"platform": {"os": "linux"}}}, "no option 'platform'"),
        ({"backend": "local"}, {"resources": {"cpu": -1}}, "cpus"),
        ({"backend": "local"}, {"provider_options": {"expose": 8000}}, "expose must be a list of ports"),
        ({"backend": "local"}, {"provider_options": {"network": False, "expose": ["a"]}}, "port must be an integer"),
        ({"backend": "local"}, {"provider_options": {"network": True, "expose": [8000]}}, "network=False"),
        ({"backend": "local"}, {"provider_options": {"env": "A=1"}}, "env: input should be a valid dictionary"),
        (
            {"backend": "local"},
            {"resources": {"gpu": 1}, "provider_options": {"backend_options": 7}},
            "backend_options",
        ),
        ({"backend": "docker", "image": "x"}, {"resources": {"gpu": 1, "gpu_type": "H100"}}, "leave gpu_type"),
        ({"backend": "local"}, {"ttl_s": 0}, "ttl_s must be above 0"),
        ({"backend": "local"}, {"ready_timeout_s": 0}, "timeout_s"),
        ({"backend": "docker", "docker_host": "tcp://127.0.0.1:9", "image": "x"}, {}, "docker"),
    ],
)
async def test_wrong_option_is_a_create_error(options: dict[str, Any], spec: dict[str, Any], message: str) -> None:
    async with AsyncSandbox({"hermes": options}, SandboxSpec(**spec)) as sandbox:
        with pytest.raises(SandboxCreateError, match=message):
            await sandbox.start()


@pytest.mark.whole
def test_missing_image_is_a_create_error(docker: Block) -> None:
    with (
        Sandbox(docker, SandboxSpec(image="no-such-image:1")) as sandbox,
        pytest.raises(SandboxCreateError, match="no-such-image:1"),
    ):
        sandbox.start()
    with Sandbox(docker, SandboxSpec()) as other:
        assert other.start().exec("echo goes on").stdout == "goes on\n"


@pytest.mark.whole
async def test_wrong_file_of_spec_leaves_no_slot(local: Block) -> None:
    async with AsyncSandbox(local, SandboxSpec()) as good:
        await good.start()
        pool = held(good).pool
        before = pool.wrapped.stats().slots_in_use
        bad = AsyncSandbox(local, SandboxSpec(files={"/proc/nowhere": "x"}))
        with pytest.raises(OSError, match="nowhere"):
            await bad.start()
        assert pool.wrapped.stats().slots_in_use == before


@pytest.mark.whole
async def test_lost_sandbox_is_an_error_and_no_return_code(docker: Block, tmp_path: Path) -> None:
    async with AsyncSandbox(docker, SandboxSpec()) as lost, AsyncSandbox(docker, SandboxSpec()) as other:
        await lost.start()
        await other.start()
        await asyncio.to_thread(subprocess.run, ["docker", "kill", held(lost).slot.sandbox], check=True, stdout=DEVNULL)
        for _ in range(2):
            result = await lost.exec("true")
            assert (result.stdout, result.return_code, result.error_type) == (None, -1, "sandbox_error")
            assert result.stderr
        assert await lost.status() is SandboxStatus.ERROR
        with pytest.raises(Exception, match="sandbox"):
            await lost.download("/etc/passwd", tmp_path / "passwd")
        assert (await other.exec("echo goes on")).stdout == "goes on\n"
    assert await lost.status() is SandboxStatus.STOPPED


@pytest.mark.whole
async def test_lost_sandbox_during_a_command_is_an_error(docker: Block) -> None:
    async with AsyncSandbox(docker, SandboxSpec()) as sandbox:
        await sandbox.start()
        result = await sandbox.exec("kill -9 1; kill -9 -1; sleep 60")
        assert (result.return_code, result.error_type) == (-1, "sandbox_error")


UNSTOPPED = """
import asyncio, json, sys
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxSpec

block = json.loads(sys.argv[1])


async def run():
    sandbox = await AsyncSandbox(block, SandboxSpec()).start()
    assert (await sandbox.exec("sleep 100 & echo on")).stdout == "on\\n"
    return sandbox


first = Sandbox(block, SandboxSpec()).start()
assert first.exec("sleep 100 & echo on").stdout == "on\\n"
del first  # at the end of the interpreter NeMo Gym 0.4.0 would wait for an hour, whatever the provider
second = asyncio.run(run())
print("ended")
"""


@pytest.mark.whole
def test_nothing_stays_behind_after_the_process(block: Block) -> None:
    run_id = f"nemo-gym-{secrets.token_hex(6)}"
    argument = json.dumps({"hermes": {**block["hermes"], "run_id": run_id}})
    code = [sys.executable, "-W", "ignore", "-c", UNSTOPPED, argument]
    done = subprocess.run(code, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr
    listed = subprocess.run(["hermes-exec", "ps", "--json"], capture_output=True, text=True, timeout=100, check=False)
    assert listed.returncode == 0, listed.stderr
    assert run_id not in listed.stdout


@pytest.mark.whole
def test_entry_point_is_the_provider() -> None:
    (point,) = entry_points(group="nemo_gym.sandbox_providers", name="hermes")
    assert point.load() is hermes_nemo_gym.HermesProvider
    assert create_provider({"hermes": None}).name == "hermes"


@pytest.mark.whole
def test_unsupported_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"nemo-gym": "0.3.1"}.__getitem__)
    monkeypatch.delattr(hermes_nemo_gym, "HermesProvider", raising=False)  # loaded once
    with pytest.raises(ConfigError, match=r"installed: 0.3.1. Run: pip install 'nemo-gym>=0.4,<0.8'"):
        _ = hermes_nemo_gym.HermesProvider
