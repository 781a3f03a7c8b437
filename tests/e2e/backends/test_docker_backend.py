"""The Docker backend on a real engine: kinds of containers, delivery of the runner, state, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from docker import DockerClient

from hermes_exec import SandboxPool
from hermes_exec.backends.base import LaunchSpec, ReapFilter
from hermes_exec.backends.docker import delivery
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.container import BASE_DIR, RUNNER
from hermes_exec.backends.docker.dial_socket import DialSocket
from hermes_exec.backends.docker.engine import DockerEngine
from hermes_exec.backends.docker.leftovers import remove
from hermes_exec.backends.docker.sandbox import CreatedContainer, DockerSandbox
from hermes_exec.backends.owner import own_labels
from hermes_exec.backends.runner_binary import RunnerBinary
from hermes_exec.channel import Channel, Conversation
from hermes_exec.config import Limits
from hermes_exec.errors import BackendUnavailable, ChannelLost, ConfigError, ErrorCause, SandboxDied
from tests.chaos.containers import pause
from tests.chaos.daemon import Daemon, own_daemon, possible
from tests.e2e.backends.sandboxes import backend, sandbox, until_state
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]


@pytest.fixture
def run_id() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def containers(engine: DockerClient, run_id: str) -> list[Any]:
    return engine.containers.list(all=True, filters={"label": f"hermes-exec.run-id={run_id}"}, ignore_removed=True)


@pytest.mark.loops
@pytest.mark.parametrize("image", ["busybox", "debian", "distroless"])
async def test_every_image(image: str, docker_image: Image, engine: DockerClient, run_id: str) -> None:
    probe = ("/probe", "echo", "hello") if image == "distroless" else ("/bin/echo", "hello")
    async with sandbox(backend(), LaunchSpec(image=docker_image(image), exclusive=True), run_id) as made:
        assert (await made.sandbox.status()).state == "alive"
        ran = await made.run(*probe)
        assert (ran.exit_code, ran.stdout.strip()) == (0, b"hello")
        container = engine.containers.get(made.sandbox.id)
        volumes = [m["Name"] for m in container.attrs["Mounts"] if m["Type"] == "volume"]
        assert container.attrs["HostConfig"]["AutoRemove"] is False
    assert containers(engine, run_id) == []
    assert not {v.name for v in engine.volumes.list()} & set(volumes)
    await made.sandbox.destroy()


@pytest.mark.parametrize("delivery", ["bind", "copy"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"read_only": True},
        {"user": "1000"},
        {"user": "tester"},
        {"user": "1000:1000", "read_only": True, "cap_drop": ("ALL",), "security_opt": ("no-new-privileges",)},
        {"tmpfs": {"/tmp": "size=8m", "/scratch": ""}},
    ],
    ids=["plain", "read-only", "uid", "user", "hardened", "tmpfs"],
)
async def test_every_way_in(options: dict[str, Any], delivery: str, docker_image: Image, engine: DockerClient) -> None:
    spec = LaunchSpec(image=docker_image("busybox"), exclusive=True)
    async with sandbox(backend(runner_delivery=delivery, **options), spec) as made:
        ran = await made.run("/bin/sh", "-c", "id -u; touch here && echo written")
        assert ran.stdout.split() == [b"1000" if options.get("user") else b"0", b"written"]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("there", ["a program", "a file", "nothing"])
async def test_an_engine_that_does_not_share_our_files_gets_the_runner(
    docker_image: Image, engine: DockerClient, run_id: str, monkeypatch: pytest.MonkeyPatch, there: str, read_only: bool
) -> None:
    tried: list[str] = []

    def elsewhere(runner: RunnerBinary) -> dict[str, Any]:
        """What an engine on another host makes of our path."""
        tried.append(there)
        nothing = str(runner.path.resolve()) + "-is-not-here"
        source = {"a program": "/bin/true", "a file": "/etc/passwd", "nothing": nothing}[there]
        return {"Type": "bind", "Source": source, "Target": RUNNER, "ReadOnly": True}

    monkeypatch.setattr(delivery, "_bind", elsewhere)
    made = backend(read_only=read_only)
    for _ in range(2):
        async with sandbox(made, LaunchSpec(image=docker_image("busybox"), exclusive=True), run_id) as opened:
            assert (await opened.run("/bin/sh", "-c", "echo here")).stdout == b"here\n"
            assert len(containers(engine, run_id)) == 1
    assert tried == [there]
    assert containers(engine, run_id) == []


async def test_slow_runners_say_nothing_of_where_the_engine_is(
    docker_image: Image, engine: DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = backend()

    def accept_late(_: object, pid: int, patience_s: float) -> None:
        """Give up on a runner that was begun and has not connected."""
        while not delivery._serves_here(pid):
            time.sleep(0.01)

    with monkeypatch.context() as slow:
        slow.setattr(DialSocket, "accept", accept_late)
        for _ in range(delivery.MAX_MISSES - 1):
            async with sandbox(made, LaunchSpec(image=docker_image("busybox"))) as opened:
                assert (await opened.run("/bin/sh", "-c", "echo here")).stdout == b"here\n"
    async with sandbox(made, LaunchSpec(image=docker_image("busybox"))) as opened:
        mounts = {m["Destination"] for m in engine.containers.get(opened.sandbox.id).attrs["Mounts"]}
        assert RUNNER in mounts
    assert made._delivery._called


async def test_a_directory_of_the_user_that_is_not_there_says_nothing_of_our_files(
    docker_image: Image, engine: DockerClient
) -> None:
    made = backend(volumes=("/is/not/there:/there",))
    with pytest.raises(ConfigError, match="/is/not/there"):
        await made.launch(LaunchSpec(image=docker_image("busybox")), own_labels("t"))
    assert made._delivery._binds


async def test_auto_proves_that_files_are_shared(docker_image: Image, engine: DockerClient) -> None:
    async with sandbox(backend(), LaunchSpec(image=docker_image("busybox"))) as made:
        mounts = {m["Destination"]: m for m in engine.containers.get(made.sandbox.id).attrs["Mounts"]}
        assert mounts[RUNNER]["RW"] is False


async def test_commands_run_as_the_user_of_the_image(docker_image: Image, engine: DockerClient, run_id: str) -> None:
    tag = f"hermes-exec-test/user:{run_id}"
    container = engine.containers.create(docker_image("busybox"))
    container.commit(repository="hermes-exec-test/user", tag=run_id, conf={"User": "tester"})
    container.remove()
    try:
        async with sandbox(backend(), LaunchSpec(image=tag, exclusive=True), run_id) as made:
            assert made.sandbox.user == "tester"
            assert (await made.run("/bin/id", "-u")).stdout == b"1000\n"
            assert (await made.run("/bin/id", "-u", user="root")).stdout == b"0\n"
    finally:
        engine.images.remove(tag, force=True)


async def test_network_and_limits(docker_image: Image, engine: DockerClient) -> None:
    limits = Limits(cpus=0.5, memory_mb=64, pids=20, open_files=64)
    spec = LaunchSpec(image=docker_image("busybox"), exclusive=True, network=False, limits=limits)
    async with sandbox(backend(shm_size_mb=8, ulimits={"core": 0}, labels={"who": "me"}), spec) as made:
        attributes = engine.containers.get(made.sandbox.id).attrs
        host = attributes["HostConfig"]
        assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (64 << 20, 64 << 20, 500_000_000)
        assert (host["ShmSize"], host["NetworkMode"], host["LogConfig"]["Type"]) == (8 << 20, "none", "json-file")
        assert attributes["Config"]["Labels"]["who"] == "me"
        assert set(made.sandbox.limits) == {"cpus", "memory_mb", "pids"}
        interfaces = (await made.run("/bin/ls", "/sys/class/net")).stdout.split()
        assert interfaces == [b"lo"]


async def test_paused_is_unknown_removed_is_dead(docker_image: Image, engine: DockerClient, run_id: str) -> None:
    docker_backend = backend()
    sandbox = await docker_backend.launch(LaunchSpec(image=docker_image("busybox")), own_labels(run_id))
    container = engine.containers.get(sandbox.id)
    try:
        # The first stream is there from the start; the next one is for the daemon to make.
        await (await sandbox.open(["attach"])).aclose()
        pause(container)
        status = await sandbox.status()
        assert (status.state, status.detail) == ("unknown", "the container is paused")
        with pytest.raises(ChannelLost, match="paused"):
            await sandbox.open(["attach"])
        container.unpause()
        # The daemon hears of each change a second time, from containerd: where that is late the sandbox is paused again
        # for a moment.
        await until_state(sandbox, "alive")
        container.remove(force=True, v=True)
        status = await sandbox.status()
        assert status.post_mortem is not None
        assert (status.state, status.post_mortem.suspect) == ("dead", "outside")
        with pytest.raises(SandboxDied, match="ended") as caught:
            await sandbox.open(["attach"])
        assert caught.value.post_mortem == status.post_mortem
    finally:
        await sandbox.destroy()
        await docker_backend.aclose()


async def test_what_docker_says_of_a_program_that_cannot_start_is_no_frame(
    docker_image: Image, engine: DockerClient
) -> None:
    container = engine.containers.run(docker_image("busybox"), ["sleep", "60"], detach=True, network_mode="none")
    connected = DockerEngine(DockerConfig())
    try:
        made = CreatedContainer(str(container.id), str(container.name), None, "/", {}, False, BASE_DIR, "")
        sandbox = DockerSandbox(connected, made)
        with pytest.raises(ChannelLost, match="OCI runtime"), anyio.fail_after(20):
            await Channel.open(lambda: sandbox.open(["attach"]), lease_s=10)
    finally:
        connected.close()
        container.remove(force=True)


SIGQUEUE = """
import ctypes, os, sys
info = (ctypes.c_int * 32)(int(sys.argv[1]), 0, -1)  # SI_QUEUE, with 0 as its sender
number = 129 if os.uname().machine == "x86_64" else 138
sys.exit(ctypes.CDLL(None).syscall(number, 1, int(sys.argv[1]), info))
"""


@pytest.mark.parametrize("slots", [1, 4])
async def test_signals_from_inside_do_not_end_the_runner_in_order(
    docker_image: Image, engine: DockerClient, slots: int
) -> None:
    image = docker_image("busybox")
    async with SandboxPool("docker", image=image, slots_per_sandbox=slots) as pool, pool.slot() as slot:
        for number in range(1, 65):
            await slot.run(f"kill -{number} 1")
        await slot.run("for i in $(seq 200); do kill 1; kill -INT 1; done")
        assert (await slot.run("echo goes on")).stdout == "goes on\n"


async def test_the_engine_ends_the_runner_in_order(docker_image: Image, engine: DockerClient) -> None:
    async with SandboxPool("docker", image=docker_image("busybox")) as pool, pool.slot() as slot:
        await slot.run("kill 1")
        container = engine.containers.get(slot.sandbox)
        began = time.monotonic()
        container.stop(timeout=30)
        assert time.monotonic() - began < 20
        with pytest.raises(SandboxDied) as died:
            await slot.run("true")
        mortem = died.value.post_mortem
        assert mortem is not None
        assert (mortem.exit_code, died.value.cause) == (0, ErrorCause.INFRA)


async def test_a_queued_signal_is_ignored_or_its_sender_is_suspected(docker_image: Image) -> None:
    async with SandboxPool("docker", image=docker_image("debian"), slots_per_sandbox=1) as pool, pool.slot() as slot:
        assert slot.isolation.level == "exclusive"
        sent = await slot.run(["python3", "-c", SIGQUEUE, str(int(signal.SIGTERM))])
        assert (sent.exit_code, sent.stderr) == (0, "")
        assert (await slot.run("echo goes on")).stdout == "goes on\n"
        with pytest.raises(SandboxDied) as died:
            await slot.run(["python3", "-c", SIGQUEUE, str(int(signal.SIGSEGV))])
            await slot.run("sleep 20")
        assert died.value.post_mortem is not None
        assert (died.value.post_mortem.suspect, died.value.cause) == ("tenant", ErrorCause.POLICY)


async def test_killed_container_has_a_post_mortem(docker_image: Image, engine: DockerClient, run_id: str) -> None:
    docker_backend = backend()
    sandbox = await docker_backend.launch(LaunchSpec(image=docker_image("busybox"), exclusive=True), own_labels(run_id))
    try:
        engine.containers.get(sandbox.id).kill()
        status = await until_state(sandbox, "dead")
        assert status.post_mortem is not None
        assert (status.post_mortem.exit_code, status.post_mortem.suspect) == (137, "outside")
    finally:
        await sandbox.destroy()
        await docker_backend.aclose()


@pytest.mark.parametrize(
    ("options", "spec", "said"),
    [
        ({}, LaunchSpec(), "image"),
        ({"network_mode": "host"}, LaunchSpec(image="x", network=False), "network_mode"),
        ({}, LaunchSpec(image="x", limits=Limits(disk_mb=10)), "disk_mb"),
        ({}, LaunchSpec(image="x", limits=Limits(memory_mb=7)), "memory_mb=7 .* 8 at the least"),
    ],
)
async def test_what_cannot_be_is_refused(options: dict[str, Any], spec: LaunchSpec, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await backend(**options).check(spec)


@pytest.mark.parametrize("option", ["runtime", "user", "network_mode"])
async def test_the_daemons_refusal_is_a_configuration_error(
    option: str, docker_image: Image, engine: DockerClient, run_id: str
) -> None:
    docker_backend = backend(**{option: "nosuch"})
    with pytest.raises(ConfigError, match="nosuch"):
        await docker_backend.launch(LaunchSpec(image=docker_image("busybox")), own_labels(run_id))
    assert containers(engine, run_id) == []
    await docker_backend.aclose()


async def test_a_directory_to_be_mounted_must_be_there_and_is_not_made(
    docker_image: Image, engine: DockerClient, run_id: str, tmp_path: Path
) -> None:
    spec = LaunchSpec(image=docker_image("busybox"))
    (tmp_path / "there").mkdir()
    docker_backend = backend(volumes=(f"{tmp_path}/nosuch:/x", f"{tmp_path}/there:/y:ro"))
    with pytest.raises(ConfigError, match="nosuch"):
        await docker_backend.launch(spec, own_labels(run_id))
    assert containers(engine, run_id) == []
    assert os.listdir(tmp_path) == ["there"]
    await docker_backend.aclose()


async def test_no_daemon(tmp_path: Path) -> None:
    nowhere = backend(base_url=f"unix://{tmp_path}/absent.sock")
    with pytest.raises(BackendUnavailable, match="systemctl start docker"):
        await nowhere.check(LaunchSpec(image="x"))
    with pytest.raises(BackendUnavailable, match="systemctl start docker"):
        await nowhere.launch(LaunchSpec(image="x"), own_labels("t"))


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.05, 0.1, 0.2])
async def test_cancelled_launch_leaves_nothing(
    delay_s: float, docker_image: Image, engine: DockerClient, run_id: str
) -> None:
    docker_backend, sandbox = backend(), None
    await docker_backend.check(LaunchSpec(image=docker_image("busybox")))
    with anyio.move_on_after(delay_s):
        sandbox = await docker_backend.launch(LaunchSpec(image=docker_image("busybox")), own_labels(run_id))
        await anyio.sleep_forever()
    if sandbox is not None:
        await sandbox.destroy()
    assert containers(engine, run_id) == []
    await docker_backend.aclose()


def start_owner(run_id: str, image: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.e2e.backends.owner_process", "docker", json.dumps({}), run_id, image, "3"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.alone
@pytest.mark.alone
async def test_reap_and_lease(docker_image: Image, engine: DockerClient, run_id: str) -> None:
    owner = start_owner(run_id, docker_image("busybox"))
    docker_backend = backend()
    assert owner.stdout is not None
    try:
        name = (await anyio.to_thread.run_sync(owner.stdout.readline)).strip()
        (info,) = [i for i in await docker_backend.sandboxes() if i.labels.run_id == run_id]
        assert (info.sandbox, info.owner, info.state) == (name, "alive", "running")
        assert await docker_backend.reap(ReapFilter(run_id=run_id, orphans=True)) == []
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()

    def ended() -> bool:
        return [c.status for c in containers(engine, run_id)] == ["exited"]

    await until(ended, 15)
    (reaped,) = await docker_backend.reap(ReapFilter(run_id=run_id, orphans=True))
    assert reaped.sandbox == name
    assert containers(engine, run_id) == []
    await docker_backend.aclose()


async def test_stream_carries_much_both_ways(docker_image: Image, engine: DockerClient) -> None:
    async with sandbox(backend(), LaunchSpec(image=docker_image("busybox"), exclusive=True)) as made:
        size = 8 << 20
        block = bytes(range(256)) * 256
        params = {"slot": "s1", "argv": ["/bin/cat"], "stdin": True, "timeout_s": 60, "output_limit_bytes": 16 << 20}
        async with (
            made.channel.converse("exec.run", {**params, "merge_stderr": False, "stream": False}) as conversation,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(partial(feed, conversation, block, size // len(block)))
            result, pieces = await conversation.collect()
        assert result["stdout"]["total"] == size
        assert b"".join(pieces[1]) == block * (size // len(block))


async def feed(conversation: Conversation, block: bytes, count: int) -> None:
    for _ in range(count):
        await conversation.send(block)
    await conversation.end()


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.skipif(not possible(), reason="a second Docker daemon needs root, dockerd and unshare on this machine")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_who_waits_for_a_sandbox_outlasts_a_restart_of_the_daemon(docker_image: Image) -> None:
    docker_image("busybox")
    with own_daemon() as daemon:
        async with SandboxPool("docker", image=daemon.image, base_url=daemon.url) as pool:
            await anyio.to_thread.run_sync(daemon.stop)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start_again, daemon)
                async with pool.slot() as slot:
                    assert (await slot.run("echo back")).stdout == "back\n"
        await anyio.to_thread.run_sync(daemon.stop)
        with pytest.raises(BackendUnavailable) as never_there:
            async with SandboxPool("docker", image=daemon.image, base_url=daemon.url):
                pass
        assert not never_there.value.retryable
        await anyio.to_thread.run_sync(daemon.start)


async def start_again(daemon: Daemon) -> None:
    await anyio.sleep(4)
    await anyio.to_thread.run_sync(daemon.start)


def test_container_that_another_request_removes_is_waited_for(docker_image: Image, engine: DockerClient) -> None:
    def remove_and_look(container: str) -> bool:
        remove(engine, container)
        return bool(engine.api.containers(all=True, filters={"id": container}))

    many_files = "mkdir /d; i=0; while [ $i -lt 3000 ]; do : > /d/$i; i=$((i+1)); done"  # the removal takes a moment
    for _ in range(3):
        container = engine.api.create_container(docker_image("busybox"), ["sleep", "600"])["Id"]
        engine.api.start(container)
        engine.api.exec_start(engine.api.exec_create(container, ["sh", "-c", many_files])["Id"])
        with ThreadPoolExecutor(4) as threads:
            assert not any(threads.map(remove_and_look, [container] * 4))
