"""Sandboxes of Modal, by its real client against a server on loopback: lives, images, faults, and what bad input is
told.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from anyio import to_thread

from hermes_exec import (
    AcquireTimeout,
    BackendUnavailable,
    ConfigError,
    LaunchError,
    LaunchTimeout,
    Limits,
    QuotaExceeded,
    SandboxDied,
    SandboxPool,
)
from hermes_exec.backends.base import Labels, LaunchSpec, ReapFilter, Sandbox, SandboxInfo
from hermes_exec.backends.modal.backend import ModalBackend
from hermes_exec.backends.modal.client import ModalClient
from hermes_exec.backends.modal.config import ModalConfig
from hermes_exec.backends.owner import own_labels
from hermes_exec.backends.registry import make_backend
from tests.e2e.backends.sandboxes import until_state
from tests.engines.modal_server import Server
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.modal]
Image = Callable[[str], str]


@pytest.fixture
def options(docker_image: Image, modal_server: Server) -> dict[str, Any]:
    usual = {"failures": {}, "slow_start_s": 0, "slow_create_s": 0, "token_s": 900, "gpus": ["T4"]}
    modal_server.switch("faults", usual)
    return {"image": docker_image("debian"), "creates_per_s": None}


@asynccontextmanager
async def other_driver() -> AsyncIterator[Any]:
    """The backend as another driver has it."""
    backend = make_backend("modal", {})
    try:
        yield backend
    finally:
        await backend.aclose()


async def found() -> list[SandboxInfo]:
    """The sandboxes that there are, as another driver sees them."""
    async with other_driver() as backend:
        listed: list[SandboxInfo] = await backend.sandboxes()
        return listed


@pytest.mark.loops
async def test_everything_is_gone_afterwards(options: dict[str, Any], modal_server: Server) -> None:
    async with SandboxPool("modal", **options) as pool, pool.slot() as slot, pool.slot() as other:
        assert (await slot.run("cat", stdin="there and back")).stdout == "there and back"
        assert slot.sandbox == other.sandbox
        await slot.run("echo mine >/etc/mine", user="root")
        assert (await other.run("cat /etc/mine", user="root")).exit_code == 1
        (info,) = [info for info in await found() if info.labels.run_id == pool.run_id]
        assert (info.sandbox, info.owner, info.state, info.ended) == (slot.sandbox, "alive", "running", False)
    assert slot.sandbox not in modal_server.running()
    assert modal_server.switch("state")["faults"]["unknown"] == []


async def test_tags_have_user_and_note(options: dict[str, Any], modal_server: Server) -> None:
    notes = {"": "", "nightly <run> 3, für alle": "nightly__run__3__f_r_alle", "x" * 200: "x" * 63}
    for note, shown in notes.items():
        async with SandboxPool("modal", **options, note=note) as pool, pool.slot():
            (info,) = [info for info in await found() if info.labels.run_id == pool.run_id]
        assert info.labels == replace(own_labels(pool.run_id), note=shown)


@pytest.mark.parametrize("slot_root", ["shared", "own"])
async def test_profile_workdir_workspace_is_the_slots_own(
    slot_root: Literal["shared", "own"], options: dict[str, Any], tmp_path: Path
) -> None:
    profiles = tmp_path / "modal_profiles.yaml"
    profiles.write_text("profiles: {default: {workdir: /workspace, slots_per_sandbox: 2}}")
    options |= {"profiles_file": str(profiles), "slot_root": slot_root}
    async with SandboxPool("modal", **options) as pool, pool.slots(2) as (one, two):
        assert one.workdir == one.workspace
        assert (await one.run("pwd; echo one >mine")).stdout == f"{one.workspace}\n"
        assert not await two.files.exists("mine")


async def test_logs_have_no_secrets(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with SandboxPool("modal", **options, secrets={"KEY": "value-of-the-key"}) as pool, pool.slot() as slot:
        assert (await slot.run("echo $KEY | wc -c")).stdout == "17\n"
    assert caplog.text
    for secret in (os.environ["MODAL_TOKEN_SECRET"], "Bearer", "x-modal-auth-token", "value-of-the-key"):
        assert secret not in caplog.text


def test_the_blocking_form(options: dict[str, Any]) -> None:
    with SandboxPool("modal", **options) as pool, pool.slot() as slot:
        assert slot.run(["echo", "blocking"]).stdout == "blocking\n"


async def test_what_a_sandbox_is_asked_for(options: dict[str, Any], modal_server: Server, tmp_path: Path) -> None:
    modal_server.switch("secrets", {"of-tests": {"SECRET_OF_MODAL": "s3cret"}})
    modal_server.switch("volumes", {"data": str(tmp_path)})
    more: dict[str, Any] = {
        "modal_secrets": ["of-tests"],
        "env": {"POOLS": "1"},
        "shared_volumes": ["data:/data"],
        "limits": {"memory_mb": 512, "cpus": 1.5},
        "max_lifetime_s": 1000,
        "network": False,
        "region": ["eu", "us-east"],
        "cloud": "aws",
        "runtime": "vm",
    }
    async with SandboxPool("modal", **options, **more) as pool, pool.slot() as slot:
        variables = (await slot.run("env")).stdout.splitlines()
        assert {"SECRET_OF_MODAL=s3cret", "POOLS=1"} <= set(variables)
        assert not [line for line in variables if line.startswith("MODAL_")]
        assert (await slot.run("echo kept >/data/file", user="root")).ok
        limits = slot.isolation.limits
        assert limits["memory_mb"] == limits["cpus"] == "limit of the sandbox on Modal"
        asked = modal_server.switch("state")["sandboxes"][slot.sandbox]
        assert (asked["timeout"], asked["idle_timeout"]) == (4600, 300)
        assert (asked["regions"], asked["cloud"], asked["runtime"]) == (["eu", "us-east"], "aws", "vm")
        assert (await slot.run("cat /proc/net/dev")).stdout.count(":") == 1
    async with SandboxPool("modal", **options, volumes=["data:/data:ro"]) as pool, pool.slot() as slot:
        assert (await slot.run("cat /data/file")).stdout == "kept\n"


async def test_a_cut_stream_loses_nothing(options: dict[str, Any], modal_server: Server) -> None:
    async with SandboxPool("modal", **options, lease_s=30) as pool, pool.slot() as slot:
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                command = "for i in $(seq 40); do echo $i; sleep 0.1; done"
                seen.append((await slot.run(command, timeout_s=60)).stdout)

            tasks.start_soon(run)
            for _ in range(3):
                await anyio.sleep(1)
                await until(lambda: modal_server.switch("cut") > 0)
        assert seen == ["".join(f"{i}\n" for i in range(1, 41))]
        data = os.urandom(20 << 20)
        await slot.files.write_bytes("big", data)
        assert await slot.files.read_bytes("big") == data


async def test_an_expired_token_is_renewed(options: dict[str, Any], modal_server: Server) -> None:
    modal_server.switch("faults", {"token_s": 2})
    asked = modal_server.switch("state")["faults"]["calls"].get("SandboxGetCommandRouterAccess", 0)
    async with SandboxPool("modal", **options) as pool, pool.slot() as slot:
        assert (await slot.run("for i in 1 2 3 4 5 6; do sleep 1; echo $i; done")).stdout == "1\n2\n3\n4\n5\n6\n"
        await to_thread.run_sync(modal_server.switch, "cut")
        assert (await slot.run("echo goes on")).stdout == "goes on\n"
    assert modal_server.switch("state")["faults"]["calls"]["SandboxGetCommandRouterAccess"] > asked


async def test_a_moment_without_modal(options: dict[str, Any], modal_server: Server) -> None:
    modal_server.fail("SandboxCreateV2", "UNAVAILABLE", "try again", times=2)
    async with SandboxPool("modal", **options) as pool, pool.slot() as slot:
        modal_server.fail("TaskExecStdinWrite", "UNAVAILABLE", "try again", times=3)
        assert (await slot.run("echo goes on")).stdout == "goes on\n"


async def test_modal_that_refuses_us_later_holds_up_no_slot(options: dict[str, Any], modal_server: Server) -> None:
    async with SandboxPool("modal", **options, max_sandboxes=2, slots_per_sandbox=1) as pool, pool.slot() as slot:
        modal_server.fail("SandboxCreateV2", "UNAUTHENTICATED", "Token was revoked", times=None)
        with pytest.raises(AcquireTimeout, match=r"Token was revoked.*modal token new"):
            await pool.acquire(timeout_s=8)
        modal_server.switch("faults", {"failures": {}})
        assert (await slot.run("echo goes on")).stdout == "goes on\n"


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        ("RESOURCE_EXHAUSTED", QuotaExceeded, "workspace limit of 3 sandboxes"),
        ("PERMISSION_DENIED", BackendUnavailable, "workspace limit of 3 sandboxes"),
        ("INTERNAL", LaunchError, "workspace limit of 3 sandboxes"),
    ],
)
async def test_a_sandbox_that_is_refused(
    options: dict[str, Any], modal_server: Server, status: str, error: type[Exception], told: str
) -> None:
    before = modal_server.running()
    modal_server.fail("SandboxCreateV2", status, "workspace limit of 3 sandboxes", times=None)
    begun = time.monotonic()
    with pytest.raises(error, match=told):
        async with SandboxPool("modal", **options, acquire_timeout_s=10) as pool, pool.slot():
            pass
    assert time.monotonic() - begun < 60
    assert modal_server.running() == before


@pytest.mark.whole
async def test_a_slow_start_is_given_up_in_time(options: dict[str, Any], modal_server: Server) -> None:
    before = modal_server.running()
    for slow in ("slow_start_s", "slow_create_s"):
        modal_server.switch("faults", {"slow_start_s": 0, "slow_create_s": 0, slow: 300})
        begun = time.monotonic()
        with pytest.raises(LaunchTimeout):
            async with SandboxPool("modal", **options, launch_timeout_s=2) as pool, pool.slot():
                pass
        assert time.monotonic() - begun < 60
        assert modal_server.running() == before


@pytest.mark.whole
async def test_a_sandbox_may_wait_longer_than_an_answer(
    options: dict[str, Any], modal_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ModalBackend.launch

    async def launch(self: ModalBackend, spec: LaunchSpec, labels: Labels) -> Sandbox:
        with monkeypatch.context() as patch:
            patch.setattr(ModalClient.call, "__defaults__", (2.0,))
            return await usual(self, spec, labels)

    monkeypatch.setattr(ModalBackend, "launch", launch)
    async with SandboxPool("modal", **options, max_sandboxes=2, slots_per_sandbox=1) as pool, pool.slot():
        modal_server.switch("faults", {"slow_start_s": 4})
        async with pool.slot() as slot:
            assert (await slot.run("echo at last")).stdout == "at last\n"


@pytest.mark.whole
async def test_gpus(options: dict[str, Any], modal_server: Server) -> None:
    before = modal_server.running()
    with pytest.raises(ConfigError, match="Invalid GPU type: ABACUS"):
        async with SandboxPool("modal", **options, gpus="abacus") as pool, pool.slot():
            pass
    with pytest.raises(LaunchTimeout, match="looks for a place with gpus='H100'"):
        async with SandboxPool("modal", **options, gpus="H100", launch_timeout_s=5) as pool, pool.slot():
            pass
    assert modal_server.running() == before
    async with SandboxPool("modal", **options, gpus="T4") as pool, pool.slot() as slot:
        assert (await slot.run("echo beside it")).stdout == "beside it\n"
        (info,) = [info for info in await found() if info.labels.run_id == pool.run_id]
        assert info.sandbox == slot.sandbox
    assert modal_server.running() == before


async def test_a_sandbox_that_ends_while_it_starts(options: dict[str, Any], modal_server: Server) -> None:
    before = modal_server.running()
    with pytest.raises(LaunchError, match=r"ended while it started: exit code .*limits\.memory_mb"):
        async with SandboxPool("modal", **options, limits=Limits(memory_mb=1)) as pool, pool.slot():
            pass
    assert modal_server.running() == before


async def test_names_that_are_not_there(options: dict[str, Any]) -> None:
    for more, told in (
        ({"modal_secrets": ["nothing"]}, "Secret 'nothing' not found"),
        ({"volumes": ["nothing:/data"]}, "Volume 'nothing' not found"),
        ({"environment": "nothing"}, "Environment 'nothing' not found"),
        ({"limits": {"disk_mb": 10}}, r"no bound for limits\.disk_mb"),
        ({"image": None}, "needs an image"),
    ):
        with pytest.raises(ConfigError, match=told):
            async with SandboxPool("modal", **{**options, **more}) as pool, pool.slot():
                pass


async def test_a_preempted_sandbox_is_told_and_replaced(options: dict[str, Any], modal_server: Server) -> None:
    async with SandboxPool("modal", **options) as pool:
        async with pool.slot() as slot:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, modal_server.switch, "preempt", slot.sandbox)
                with pytest.raises(SandboxDied) as died:
                    await slot.run("sleep 100", timeout_s=200)
            mortem = died.value.post_mortem
            assert mortem is not None
            assert (mortem.suspect, mortem.exit_code) == ("outside", 137)
            assert "preempted" in mortem.reason
        async with pool.slot() as slot:
            assert (await slot.run("echo replaced")).stdout == "replaced\n"


SIGNAL_EACH_RUNNER = """
for process in /proc/[0-9]*; do
  case $(cat $process/comm 2>/dev/null) in exe|runner) kill -{name} ${{process#/proc/}} && echo sent;; esac
done
"""


@pytest.mark.whole
async def test_runner_ignores_signals_from_inside(options: dict[str, Any], modal_server: Server) -> None:
    async with SandboxPool("modal", **options, slots_per_sandbox=1) as pool, pool.slot() as slot:
        assert slot.isolation.level == "exclusive"
        for name in ("TERM", "INT", "HUP", "QUIT"):
            sent = await slot.run(SIGNAL_EACH_RUNNER.format(name=name), user="root")
            assert "sent" in sent.stdout
        assert (await slot.run("echo goes on")).stdout == "goes on\n"


async def test_a_runner_that_is_killed_inside_is_told(options: dict[str, Any], modal_server: Server) -> None:
    async with SandboxPool("modal", **options, slots_per_sandbox=1) as pool, pool.slot() as slot:
        assert slot.isolation.level == "exclusive"
        with pytest.raises(SandboxDied) as died:
            await slot.run("kill -9 -1; sleep 100", user="root", timeout_s=200)
        mortem = died.value.post_mortem
        assert mortem is not None
        assert mortem.suspect == "tenant", mortem


@pytest.mark.whole
async def test_a_lifetime_that_is_over(options: dict[str, Any]) -> None:
    async with SandboxPool("modal", **options, lifetime_s=65) as pool, pool.slot() as slot:
        with pytest.raises(SandboxDied, match="lifetime"):
            await slot.run("sleep 100", timeout_s=200)


@pytest.mark.whole
async def test_a_sandbox_without_a_stream_ends_when_it_is_idle(options: dict[str, Any]) -> None:
    async with SandboxPool(ModalConfig(idle_timeout_s=10), image=options["image"]) as pool, pool.slot() as slot:
        backend = make_backend("modal", {"idle_timeout_s": 10})
        try:
            nobody = await backend.launch(LaunchSpec(image=options["image"], lease_s=600), own_labels("idle"))
            assert (await slot.run("sleep 15; echo in use")).stdout == "in use\n"
            status = await until_state(nobody, "dead")
            assert "idle" in str(status.post_mortem and status.post_mortem.reason)
        finally:
            await backend.aclose()


async def test_ps_and_reap_beside_a_living_pool(options: dict[str, Any], modal_server: Server) -> None:
    async with SandboxPool("modal", **options) as mine, mine.slot() as slot:
        async with SandboxPool("modal", **options) as second, second.slot() as other:
            async with other_driver() as backend:
                assert await backend.reap(ReapFilter(orphans=True)) == []
                (ended,) = await backend.reap(ReapFilter(run_id=second.run_id))
                assert ended.sandbox == other.sandbox
            assert other.sandbox not in modal_server.running()
        assert (await slot.run("echo untouched")).stdout == "untouched\n"


@pytest.mark.whole
async def test_a_killed_driver_leaves_nothing(options: dict[str, Any], modal_server: Server) -> None:
    async def start_and_kill(lease_s: float) -> str:
        program = [sys.executable, "-m", "tests.e2e.backends.owner_process"]
        words = ["modal", json.dumps({}), "killed", options["image"], str(lease_s)]
        async with await anyio.open_process([*program, *words], stderr=None) as driver:
            assert driver.stdout is not None
            sandbox = (await driver.stdout.receive()).decode().strip()
            assert sandbox in modal_server.running()
            driver.send_signal(signal.SIGKILL)
        return sandbox

    before = modal_server.running()
    orphan = await start_and_kill(600)
    assert orphan in modal_server.running()
    async with SandboxPool("modal", **options):
        await until(lambda: orphan not in modal_server.running())
    forgotten = await start_and_kill(5)
    await until(lambda: forgotten not in modal_server.running())
    assert modal_server.running() == before


DOCTOR = [sys.executable, "-m", "hermes_exec.cli.main", "run", "-b", "modal", "--image", "x", "--", "true"]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"MODAL_TOKEN_ID": None, "MODAL_TOKEN_SECRET": None}, "Token missing"),
        ({"MODAL_TOKEN_SECRET": "as-wrong"}, "Token ID is malformed or unknown"),
        ({"MODAL_TOKEN_SECRET": "as-hush\n"}, "the token_secret of Modal has a line break"),
        ({"MODAL_CONFIG_PATH": "/etc/hostname"}, "the client of Modal does not take its settings"),
    ],
)
async def test_credentials(modal_server: Server, variables: dict[str, str | None], told: str) -> None:
    env = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    done = await anyio.run_process(DOCTOR, env=env, check=False, stderr=subprocess.STDOUT)
    said = " ".join(done.stdout.decode().split())
    assert done.returncode in {2, 3}, said
    assert told in said
    assert "modal token new" in said
    assert "hush" not in said
    assert "Traceback" not in said


@pytest.mark.whole
async def test_nobody_answers(modal_server: Server) -> None:
    begun = time.monotonic()
    env = {**os.environ, "MODAL_SERVER_URL": "http://127.0.0.1:9"}
    done = await anyio.run_process(DOCTOR, env=env, check=False, stderr=subprocess.STDOUT)
    assert done.returncode == 3, done.stdout
    assert b"Modal did not answer" in done.stdout
    assert time.monotonic() - begun < 60


async def test_limits_that_modal_has(options: dict[str, Any]) -> None:
    limits = Limits(memory_mb=256)
    async with SandboxPool("modal", **options, limits=limits, slots_per_sandbox=1) as pool, pool.slot() as slot:
        result = await slot.run("head -c 400000000 /dev/zero | tail | wc -c", timeout_s=60)
        assert result.oom_killed or not result.ok or result.stdout.strip() != "400000000"
