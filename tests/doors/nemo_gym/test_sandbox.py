"""What sandboxes of NeMo Gym do, in slots: both forms, on `local` and Docker."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxSpec, SandboxStatus, resolve_provider_config

from hermes_exec import blocking
from hermes_nemo_gym.provider import SandboxSlot
from tests.doors.nemo_gym.conftest import Block
from tests.support.doors import ROOT


def held(sandbox: AsyncSandbox) -> SandboxSlot:
    """Return the slot of a sandbox that was started."""
    raw: SandboxSlot = sandbox._require_handle().raw
    return raw


def test_blocking_sandbox_runs_a_command(local: Block) -> None:
    with Sandbox(local, SandboxSpec(env={"GREETING": "hello"})) as sandbox:
        sandbox.start()
        result = sandbox.exec("echo $GREETING; echo oops >&2; exit 3")
        assert (result.stdout, result.stderr, result.return_code, result.error_type) == ("hello\n", "oops\n", 3, None)
        assert sandbox.status() is SandboxStatus.RUNNING
    assert sandbox.status() is SandboxStatus.STOPPED


@pytest.mark.whole
def test_blocking_sandbox_moves_files(block: Block, tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(bytes(range(256)))
    with Sandbox(block, SandboxSpec(workdir="/workspace", files={"/workspace/a/b.txt": "text é\n"})) as sandbox:
        sandbox.start()
        sandbox.upload(tmp_path / "in.bin", "/workspace/data/in.bin")
        assert sandbox.exec("cat a/b.txt && cp data/in.bin out.bin").stdout == "text é\n"
        sandbox.download("/workspace/out.bin", tmp_path / "new" / "out.bin")
    assert (tmp_path / "new" / "out.bin").read_bytes() == bytes(range(256))


@pytest.mark.whole
async def test_exec_takes_env_cwd_and_timeout(block: Block) -> None:
    spec = SandboxSpec(workdir="/workspace/made", env={"A": "spec", "B": "spec"})
    async with AsyncSandbox(block, spec) as sandbox:
        await sandbox.start()
        assert (await sandbox.exec('pwd; echo "$A $B"', env={"B": "call"})).stdout == "/workspace/made\nspec call\n"
        assert (await sandbox.exec("pwd", cwd="/usr")).stdout == "/usr\n"
        missing = await sandbox.exec("pwd", cwd="/nowhere")
        assert (missing.return_code, missing.error_type) == (126, None)
        assert missing.stderr is not None
        assert "/nowhere" in missing.stderr
        late = await sandbox.exec("echo before; sleep 76 & sleep 76", timeout_s=1)
        assert (late.stdout, late.stderr) == ("before\n", "[the command timed out after 1 seconds]")
        assert (late.return_code, late.error_type) == (124, "timeout")
        assert not [p for p in await held(sandbox).call(held(sandbox).slot.processes) if "76" in p.argv]
        assert (await sandbox.exec("sleep 0.1; echo done", timeout_s=None)).stdout == "done\n"


@pytest.mark.whole
async def test_files_stay_and_shell_state_does_not(block: Block) -> None:
    async with AsyncSandbox(block, SandboxSpec()) as sandbox:
        await sandbox.start()
        await sandbox.exec("cd ~ && echo kept > file && export LOST=1")
        assert (await sandbox.exec('cat ~/file; echo "${LOST-unset}"')).stdout == "kept\nunset\n"


@pytest.mark.whole
async def test_user_is_root_of_container(block: Block, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    async with AsyncSandbox(block, SandboxSpec()) as sandbox:
        await sandbox.start()
        if held(sandbox).slot.backend == "local":
            with pytest.raises(ValueError, match="user"):
                await sandbox.exec("id -u", user="root")
            return
        for user in ("root", 0):
            assert (await sandbox.exec("id -u", user=user)).stdout == "0\n"
        assert (await sandbox.exec("id -un; echo $HOME", user="nobody")).stdout == "nobody\n/nonexistent\n"
        await sandbox.upload(tmp_path / "file", "/opt/new/file")
        assert (await sandbox.exec("stat -c %u /opt/new/file")).stdout == "0\n"
        assert (await sandbox.exec("touch /opt/new/file", user="nobody")).return_code == 1
        with pytest.raises(ValueError, match="no-such-user"):
            await sandbox.exec("true", user="no-such-user")


@pytest.mark.whole
async def test_transfer_of_missing_file_is_an_error(block: Block, tmp_path: Path) -> None:
    async with AsyncSandbox(block, SandboxSpec()) as sandbox:
        await sandbox.start()
        with pytest.raises(FileNotFoundError, match="nothing"):
            await sandbox.download("/tmp/nothing", tmp_path / "file")
        with pytest.raises(FileNotFoundError, match="nothing"):
            await sandbox.upload(tmp_path / "nothing", "/tmp/file")
        assert await sandbox.status() is SandboxStatus.RUNNING


@pytest.mark.whole
async def test_two_sandboxes_share_a_pool_and_no_files(block: Block) -> None:
    async with AsyncSandbox(block, SandboxSpec()) as first, AsyncSandbox(block, SandboxSpec()) as second:
        await asyncio.gather(first.start(), second.start())
        began = time.monotonic()
        slept = await asyncio.gather(*(each.exec("sleep 6; echo secret > ~/file") for each in (first, second)))
        assert [result.return_code for result in slept] == [0, 0]
        assert time.monotonic() - began < 11  # one after the other would take 12
        await first.exec("echo first > ~/file")
        assert (await second.exec("cat ~/file")).stdout == "secret\n"
        assert held(first).pool == held(second).pool
        await first.stop()
        assert (await second.exec("echo goes on")).stdout == "goes on\n"


@pytest.mark.whole
def test_sandboxes_of_both_forms_share_a_pool(shared_docker: Block) -> None:
    async def run() -> str:
        async with AsyncSandbox(shared_docker, SandboxSpec()) as sandbox:
            await sandbox.start()
            return held(sandbox).slot.sandbox

    with Sandbox(shared_docker, SandboxSpec()) as sandbox:
        sandbox.start()
        assert asyncio.run(run()) == held(sandbox._async_sandbox).slot.sandbox


@pytest.mark.whole
async def test_workdir_is_that_of_image(shared_docker: Block) -> None:
    async with AsyncSandbox(shared_docker, SandboxSpec()) as sandbox:
        await sandbox.start()
        inspect = ["docker", "image", "inspect", "-f", "{{.Config.WorkingDir}}", shared_docker["hermes"]["image"]]
        workdir = (await asyncio.to_thread(subprocess.check_output, inspect, text=True)).strip()
        assert (await sandbox.exec("pwd")).stdout == f"{workdir or '/'}\n"


@pytest.mark.whole
async def test_provider_options_are_those_of_a_profile(shared_docker: Block) -> None:
    options = {"network": False, "env": {"A": "option", "B": "option"}}
    async with AsyncSandbox(shared_docker, SandboxSpec(env={"B": "spec"}, provider_options=options)) as sandbox:
        await sandbox.start()
        assert held(sandbox).slot.network is False
        assert (await sandbox.exec('echo "$A $B"')).stdout == "option spec\n"


@pytest.mark.whole
async def test_resources_are_limits(block: Block) -> None:
    spec = SandboxSpec(resources={"cpu": 1, "memory_mib": 200, "disk_gib": 20})
    block = {"hermes": {**block["hermes"], "max_sandboxes": 4}}
    async with AsyncSandbox(block, spec) as sandbox, AsyncSandbox(block, SandboxSpec()) as other:
        await sandbox.start()
        await other.start()
        slot = held(sandbox).slot
        hungry = await sandbox.exec("head -c 400M /dev/zero | tail -c 399M | wc -c")
        assert hungry.stdout != "418381824\n"
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        assert (await other.exec("echo alive")).stdout == "alive\n"
        alone = slot.backend == "docker" and held(other).slot.sandbox != slot.sandbox
        assert alone or {"cpus", "memory_mb"} <= slot.isolation.limits.keys()


@pytest.mark.whole
async def test_cancelled_exec_ends_its_processes(block: Block) -> None:
    async with AsyncSandbox(block, SandboxSpec()) as sandbox:
        await sandbox.start()
        slot = held(sandbox)

        async def sleeping() -> bool:
            return any("78" in process.argv for process in await slot.call(slot.slot.processes))

        task = asyncio.create_task(sandbox.exec("sleep 78"))
        async with asyncio.timeout(20):
            while not await sleeping():
                pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await sleeping()
        assert (await sandbox.exec("echo on")).stdout == "on\n"


@pytest.mark.whole
async def test_cancelled_start_leaves_no_slot(local: Block) -> None:
    pool = await asyncio.to_thread(lambda: blocking.SandboxPool.shared(None, **local["hermes"]).open())
    before = await asyncio.to_thread(pool.stats)
    for delay_ms in range(15):
        sandbox = AsyncSandbox(local, SandboxSpec())
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_ms / 1000):
                await sandbox.start()
        await sandbox.stop()
        async with asyncio.timeout(20):
            while (await asyncio.to_thread(pool.stats)).slots_in_use > before.slots_in_use:
                pass


@pytest.mark.whole
async def test_ttl_ends_the_sandbox(local: Block) -> None:
    async with AsyncSandbox(local, SandboxSpec(ttl_s=0.5)) as sandbox:
        await sandbox.start()
        async with asyncio.timeout(20):
            while await sandbox.status() is not SandboxStatus.STOPPED:
                pass
        assert (await sandbox.exec("true")).error_type == "sandbox_error"


class Greeting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from outside")

    def log_message(self, *_: object) -> None:
        """Keep stderr empty."""


GREET = """python3 -c "
import os, urllib.request
print(urllib.request.urlopen(os.environ['ANTHROPIC_BASE_URL']).read())
" """


@pytest.mark.whole
async def test_exposed_port_reaches_server_of_host_without_network(block: Block) -> None:
    page = (ROOT / "docs" / "doors" / "nemo_gym.md").read_text("utf-8")
    code = page.partition("## Agents that run in the sandbox")[2].partition("```python\n")[2].partition("```")[0]
    with ThreadingHTTPServer(("127.0.0.1", 0), Greeting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        example: dict[str, Any] = {"SandboxSpec": SandboxSpec, "port": server.server_port}
        exec(code, example)
        spec = replace(example["spec"], image=None)
        try:
            for options in (spec.provider_options, {"network": False}):
                async with AsyncSandbox(block, replace(spec, provider_options=options)) as sandbox:
                    await sandbox.start()
                    result = await sandbox.exec(GREET, timeout_s=60)
                assert ("hello from outside" in (result.stdout or "")) == ("expose" in options), result.stderr
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.whole
def test_named_block_of_a_configuration_is_a_provider(local: Block) -> None:
    named = {"sandbox": {**local, "default_metadata": {"sandbox-api": "hermes-exec"}}}
    assert resolve_provider_config("sandbox", named) == local


@pytest.mark.whole
def test_example_of_page_runs(docker: Block, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "doors" / "nemo_gym.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    for theirs, ours in (("python:3.12-slim", docker["hermes"]["image"]), ("python /", "python3 /")):
        assert theirs in code
        code = code.replace(theirs, ours)
    exec(code, {"__name__": "example"})
    assert capsys.readouterr().out == "hello\n 0\n"
