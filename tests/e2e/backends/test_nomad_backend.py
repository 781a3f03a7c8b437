"""Boxes that are jobs of a real Nomad agent: its exec's traps, restarts, two nodes, and what bad input is told."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import docker
import pytest
from anyio import to_thread
from docker import DockerClient
from docker.models.containers import Container

from hermes_exec import (
    BackendUnavailable,
    ConfigError,
    ErrorCause,
    ExecError,
    ImageError,
    IsolationError,
    LaunchError,
    LaunchTimeout,
    Limits,
    QuotaExceeded,
    SandboxDied,
    SandboxPool,
    Slot,
)
from hermes_exec.backends.base import ReapFilter, Sandbox, SandboxInfo
from hermes_exec.backends.nomad.cluster import TASK
from hermes_exec.backends.registry import make_backend
from hermes_exec.backends.runner_binary import find_runner
from hermes_exec.testing.conformance.boxes import break_sockets, open_sockets
from tests.conftest import require_engine
from tests.e2e.backends.boxes import until
from tests.e2e.pool.outside import marked
from tests.nomad_agent import POLICY, Agent, agent

pytestmark = [pytest.mark.anyio, pytest.mark.nomad]
Image = Callable[[str], str]


@pytest.fixture
def options(nomad_agent: Agent, docker_image: Image) -> Iterator[dict[str, Any]]:
    """Of pools whose slots share the root of their box; no job is left by a test."""
    yield nomad_agent.options(image=docker_image("busybox"), slot_root="shared")
    left = nomad_agent.jobs()
    for job in left:
        nomad_agent.ask("DELETE", f"job/{job}?purge=true")
    assert left == []


@pytest.fixture
def engine() -> Iterator[DockerClient]:
    with contextlib.closing(docker.from_env()) as client:
        yield client


def config_of(options: dict[str, Any]) -> dict[str, Any]:
    """What of a pool's options is the backend's."""
    return {name: value for name, value in options.items() if name != "slot_root"}


async def found(options: dict[str, Any]) -> list[SandboxInfo]:
    """The boxes that there are, as another driver sees them."""
    return await make_backend("nomad", config_of(options)).sandboxes()


def container(engine: DockerClient, nomad: Agent, job: str) -> Container:
    """The container of a job."""
    (allocation,) = nomad.ask("GET", f"job/{job}/allocations")
    return engine.containers.get(f"{TASK}-{allocation['ID']}")


def box_of(slot: Slot) -> str:
    assert slot.sandbox is not None
    return slot.sandbox


async def test_everything_is_gone_afterwards(options: dict[str, Any], nomad_agent: Agent, engine: DockerClient) -> None:
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        assert (await slot.run("cat", stdin="there and back")).stdout == "there and back"
        (info,) = await found(options)
        assert (info.sandbox, info.owner, info.ended, info.image) == (box_of(slot), "alive", False, options["image"])
        made = container(engine, nomad_agent, box_of(slot))
        assert made.top()["Processes"]
        assert "NOMAD_" not in (await slot.run("env")).stdout
    assert nomad_agent.jobs() == []
    await until(lambda: not engine.containers.list(all=True, filters={"id": str(made.id)}))


async def test_eight_slots_share_a_box(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with SandboxPool("nomad", **options) as pool, pool.slots(9) as slots:
        assert len({box_of(slot) for slot in slots}) == 2
        assert len(nomad_agent.jobs()) == 2
        told = await together(*(slot.run("echo $0", timeout_s=20) for slot in slots))
        assert all(result.ok for result in told)


async def together(*calls: Any) -> list[Any]:
    """The results of calls that are made at the same time."""
    results: list[Any] = [None] * len(calls)

    async def one(index: int) -> None:
        results[index] = await calls[index]

    async with anyio.create_task_group() as tasks:
        for index in range(len(calls)):
            tasks.start_soon(one, index)
    return results


async def test_output_is_whole_where_nomads_own_exec_loses_it(options: dict[str, Any]) -> None:
    size = 3_000_000
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        for _ in range(8):
            command = f"head -c {size} /dev/zero; exit 7"
            result = await slot.run(command, timeout_s=60, output_limit_bytes=2 * size)
            assert (len(result.stdout_bytes), result.exit_code) == (size, 7)


async def test_streams_that_break_lose_nothing_and_leave_nothing(
    options: dict[str, Any], nomad_agent: Agent, engine: DockerClient
) -> None:
    before = open_sockets()
    async with SandboxPool("nomad", **options, max_sandboxes=1) as pool, pool.slot() as slot:
        made = container(engine, nomad_agent, box_of(slot))

        async def count() -> None:
            result = await slot.run("for i in $(seq 60); do echo $i; sleep 0.1; done", timeout_s=60)
            assert result.stdout == "".join(f"{i}\n" for i in range(1, 61))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            for _ in range(6):
                await anyio.sleep(0.7)
                assert break_sockets(open_sockets() - before)

        def attached() -> list[str]:
            return [line[-1] for line in made.top()["Processes"] if " attach " in line[-1]]

        # Nobody tells a program that its stream is gone: the runner lets go of each that was replaced.
        await until(lambda: len(attached()) == 1, 20)


async def test_many_streams_at_once(options: dict[str, Any]) -> None:
    """In one of a hundred cases Nomad says at once that a program has ended which is about to run."""
    backend = make_backend("nomad", config_of(options))
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        assert pool._fleet is not None
        (box,) = pool._fleet.boxes.values()
        assert await backend.sandboxes()
        for _ in range(4):
            await together(*(opened_and_closed(box.sandbox) for _ in range(16)))
        assert (await slot.run("echo alive")).stdout == "alive\n"


async def opened_and_closed(sandbox: Sandbox) -> None:
    stream = await sandbox.open(["attach"])
    await stream.aclose()


async def count_slowly(slot: Slot, seen: list[str]) -> None:
    command = "for i in $(seq 60); do echo $i; sleep 0.1; done"
    seen.append((await slot.run(command, timeout_s=120)).stdout)


async def test_a_restarted_agent_loses_nothing(options: dict[str, Any], nomad_agent: Agent) -> None:
    async def wait_for_a_box(pool: SandboxPool) -> None:
        async with pool.slot() as slot:
            assert (await slot.run("echo later")).stdout == "later\n"

    pool = SandboxPool("nomad", **options, lease_s=60, slots_per_sandbox=1, max_sandboxes=2)
    async with pool, pool.slot() as slot:
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_slowly, slot, seen)
            await anyio.sleep(1)
            await to_thread.run_sync(nomad_agent.stop)
            tasks.start_soon(wait_for_a_box, pool)
            await anyio.sleep(1)
            await to_thread.run_sync(nomad_agent.start)
        assert seen == ["".join(f"{i}\n" for i in range(1, 61))]
        assert (await slot.run("echo again")).stdout == "again\n"


@pytest.fixture
def second_node(nomad_agent: Agent) -> Iterator[Agent]:
    """A node of its own, which is reached by way of the server."""
    with agent(nomad_agent.server) as node:
        yield node


def only_on(node: Agent) -> dict[str, Any]:
    return {"constraints": [{"attribute": "${node.unique.name}", "value": node.name}]}


@pytest.mark.slow
async def test_two_nodes(options: dict[str, Any], nomad_agent: Agent, second_node: Agent) -> None:
    profiles = {node.name: {"backend_options": only_on(node)} for node in (nomad_agent, second_node)}
    pool = SandboxPool("nomad", **options, profiles=profiles, lease_s=60)
    async with pool, pool.slot(nomad_agent.name) as here, pool.slot(second_node.name) as there:
        for slot, node in ((here, nomad_agent), (there, second_node)):
            (allocation,) = nomad_agent.ask("GET", f"job/{box_of(slot)}/allocations")
            assert allocation["NodeName"] == node.name
            assert (await slot.run("echo in")).stdout == "in\n"
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_slowly, there, seen)
            await anyio.sleep(1)
            await to_thread.run_sync(second_node.stop)
            assert (await here.run("echo on")).stdout == "on\n"
            await to_thread.run_sync(second_node.start)
        assert seen == ["".join(f"{i}\n" for i in range(1, 61))]


@pytest.mark.slow
async def test_a_node_that_stays_away_is_told(options: dict[str, Any], second_node: Agent) -> None:
    async with SandboxPool("nomad", **options, **only_on(second_node), lease_s=5) as pool, pool.slot() as slot:
        second_node.stop()
        with pytest.raises(ExecError) as told, anyio.fail_after(120):
            await slot.run("sleep 100", timeout_s=110)
        assert told.value.cause == ErrorCause.INFRA
        second_node.start()


async def test_a_killed_container_is_told(options: dict[str, Any], nomad_agent: Agent, engine: DockerClient) -> None:
    async with SandboxPool("nomad", **options) as pool:
        async with pool.slot() as slot:
            container(engine, nomad_agent, box_of(slot)).kill()
            with pytest.raises(SandboxDied) as died, anyio.fail_after(20):
                await slot.run("sleep 100", timeout_s=100)
            assert died.value.post_mortem is not None
            assert (died.value.post_mortem.suspect, died.value.post_mortem.exit_code) == ("outside", 137)
        async with pool.slot() as slot:
            assert (await slot.run("echo replaced")).stdout == "replaced\n"


async def test_a_removed_job_is_told(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        nomad_agent.ask("DELETE", f"job/{box_of(slot)}?purge=true")
        with pytest.raises(SandboxDied, match="removed"), anyio.fail_after(20):
            await slot.run("sleep 100", timeout_s=100)


DRIVER = """
import sys, time
from hermes_exec import SandboxPool
with SandboxPool("nomad", lease_s=4, **eval(sys.argv[1])) as pool, pool.slot() as slot:
    slot.spawn("sleep 1000")
    print(slot.sandbox, flush=True)
    sys.stdin.read()
    print(slot.run("echo fine").stdout, flush=True)
"""


@contextlib.asynccontextmanager
async def other_driver(options: dict[str, Any]) -> AsyncIterator[tuple[anyio.abc.Process, str]]:
    """Another process with a box, and the name of that."""
    async with await anyio.open_process([sys.executable, "-c", DRIVER, repr(options)], stderr=None) as driver:
        try:
            assert driver.stdout is not None
            yield driver, (await driver.stdout.receive()).decode().strip()
        finally:
            if driver.returncode is None:
                driver.kill()


async def test_a_killed_driver_leaves_nothing(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with other_driver(options) as (driver, box):
        driver.kill()
        await driver.wait()
        await until(lambda: nomad_agent.ask("GET", f"job/{box}")["Status"] == "dead", 30)
    async with SandboxPool("nomad", **options):
        await until(lambda: nomad_agent.jobs() == [], 20)


async def test_two_drivers_do_not_disturb_each_other(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with other_driver(options) as (driver, box):
        for purge in (True, False):
            async with SandboxPool("nomad", **options, purge_on_start=purge) as pool, pool.slot() as slot:
                assert (await slot.run("echo mine")).stdout == "mine\n"
                assert {info.sandbox for info in await found(options)} == {box_of(slot), box}
                assert await make_backend("nomad", config_of(options)).reap(ReapFilter(orphans=True)) == []
        assert nomad_agent.jobs() == [box]
        assert driver.stdin is not None
        assert driver.stdout is not None
        await driver.stdin.aclose()
        assert (await driver.stdout.receive()).strip() == b"fine"
        await driver.wait()


async def test_what_a_run_has_left_is_purged_when_asked(options: dict[str, Any], nomad_agent: Agent) -> None:
    drivers = [other_driver({**options, "run_id": run}) for run in ("left", "other")]
    pool = SandboxPool("nomad", **options, run_id="left", purge_on_start=True)
    async with drivers[0] as (_, left), drivers[1] as (_, other), pool, pool.slot() as slot:
        assert left not in nomad_agent.jobs()
        assert sorted(nomad_agent.jobs()) == sorted([other, box_of(slot)])
    await make_backend("nomad", config_of(options)).reap(ReapFilter(all=True))


async def test_jobs_may_be_kept_for_inspection(options: dict[str, Any], nomad_agent: Agent) -> None:
    async with SandboxPool("nomad", **options, run_id="kept", purge_on_shutdown=False) as pool, pool.slot() as slot:
        box = box_of(slot)
    assert nomad_agent.jobs() == [box]
    await until(lambda: nomad_agent.ask("GET", f"job/{box}")["Status"] == "dead", 20)
    (reaped,) = await make_backend("nomad", config_of(options)).reap(ReapFilter(run_id="kept"))
    assert reaped.sandbox == box


def cli(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hermes_exec.cli.main", *words]
    env = {**os.environ, **(environ or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, env=env)


async def test_commands_on_boxes(options: dict[str, Any]) -> None:
    environ = {"NOMAD_ADDR": options["address"], "NOMAD_TOKEN": options["token"]}
    async with SandboxPool("nomad", **options, run_id="seen") as pool, pool.slot() as slot:
        run = functools.partial(
            to_thread.run_sync, functools.partial(cli, "ps", "-b", "nomad", "--json", environ=environ)
        )
        shown = json.loads((await run()).stdout)
        assert [(box["sandbox"], box["owner"]) for box in shown] == [(box_of(slot), "alive")]
        reap = functools.partial(cli, "reap", "-b", "nomad", "--orphans", "--json", environ=environ)
        assert json.loads((await to_thread.run_sync(reap)).stdout) == []
        assert (await slot.run("echo untouched")).stdout == "untouched\n"


async def refused(kind: type[ExecError], told: str, within_s: float = 15.0, **options: Any) -> ExecError:
    """A pool with these options is told so, soon."""
    with pytest.raises(kind, match=told) as raised, anyio.fail_after(within_s):
        async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
            await slot.run("true")
    return raised.value


async def test_tokens_without_rights(options: dict[str, Any], nomad_agent: Agent) -> None:
    await refused(BackendUnavailable, "NOMAD_TOKEN", **{**options, "token": "73bb1f64-7ad6-4c0b-8b0f-2b1c3b5b8f60"})
    for less in ("submit-job", "alloc-exec"):
        rules = POLICY.replace(f'"{less}", ', "").replace(f', "{less}"', "")
        token = await to_thread.run_sync(nomad_agent.token_with, rules)
        await refused(BackendUnavailable, "Permission denied", **{**options, "token": token})
        assert nomad_agent.jobs() == []
    assert options["token"] not in repr(make_backend("nomad", config_of(options)).__dict__)


async def test_no_room_is_told_at_once_with_the_schedulers_reasons(options: dict[str, Any]) -> None:
    await refused(LaunchError, "no node .*nowhere|nodes by datacenter", **options, datacenters=["nowhere"])
    constraints = [{"attribute": "${node.class}", "value": "none-such"}]
    error = await refused(LaunchError, r"filtered by .*node.class", **options, constraints=constraints)
    assert not error.retryable
    await refused(QuotaExceeded, "no memory left", **options, limits=Limits(memory_mb=4_000_000), acquire_timeout_s=9)
    await refused(LaunchError, "missing devices", **options, gpus=2)


async def test_nobody_answers(options: dict[str, Any]) -> None:
    await refused(BackendUnavailable, "NOMAD_ADDR", **{**options, "address": "http://127.0.0.1:1"})
    await refused(BackendUnavailable, "TLS", **{**options, "address": options["address"].replace("http:", "https:")})


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"image": None}, "needs an image"),
        ({"address": "127.0.0.1:4646"}, "http://"),
        ({"driver": "exec"}, "driver"),
        ({"docker": {"image": "x"}}, "set by this library"),
        ({"docker": {"no_such_option": 1}}, "no_such_option"),
        ({"docker": {"network_mode": "host"}, "network": False}, "exclude"),
        ({"limits": Limits(disk_mb=100)}, "disk_mb"),
        ({"runner_delivery": "artifact"}, "runner_source"),
        ({"client_cert": "/x"}, "client_key"),
        ({"gpus": "nvidia"}, "gpus"),
        ({"priorty": 1}, "did you mean 'priority'"),
        ({"volumes": ["/no/such/place:/x:nonsense"]}, "nonsense"),
    ],
)
async def test_bad_options_are_told(more: dict[str, Any], told: str, options: dict[str, Any]) -> None:
    await refused(ConfigError, told, **{**options, **more})


async def test_an_image_that_is_not_there(options: dict[str, Any]) -> None:
    await refused(ImageError, "no-such-image", 60, **{**options, "image": "127.0.0.1:1/no-such-image:1"})


async def test_launches_that_are_given_up_leave_no_job(options: dict[str, Any], nomad_agent: Agent) -> None:
    for after_s in (0.05, 0.15, 0.3, 0.6):
        with anyio.move_on_after(after_s):
            async with SandboxPool("nomad", **options) as pool, pool.slot():
                await anyio.sleep_forever()
        assert nomad_agent.jobs() == []
    # Nothing in this image can start what brings the runner.
    sleeps = {**options, "docker": {"readonly_rootfs": True}, "user": "nobody-here"}
    await refused(LaunchError, "nobody-here", **sleeps)


async def test_a_launch_that_takes_too_long(options: dict[str, Any], nomad_agent: Agent) -> None:
    with pytest.raises(LaunchTimeout), anyio.fail_after(60):
        async with SandboxPool("nomad", **options, launch_timeout_s=0.01) as pool, pool.slot():
            raise AssertionError("there was a box")
    assert nomad_agent.jobs() == []


@pytest.fixture
def open_agent() -> Iterator[Agent]:
    require_engine("nomad")
    with agent(acl=False) as made:
        yield made


async def test_a_cluster_without_acls(open_agent: Agent, docker_image: Image) -> None:
    options = open_agent.options(image=docker_image("busybox"), slot_root="shared")
    await refused(IsolationError, "no ACLs", **options, min_isolation="uid")
    ways: tuple[dict[str, Any], ...] = ({"min_isolation": "uid", "allow_open_api": True}, {})
    for more in ways:
        async with SandboxPool("nomad", **options, **more) as pool, pool.slot() as slot:
            assert (await slot.run("echo in")).stdout == "in\n"
    words = ["doctor", "-b", "nomad", "-i", options["image"], "-o", f"address={open_agent.address}"]
    done = await to_thread.run_sync(cli, *words)
    assert (done.returncode, "no ACLs" in done.stdout) == (0, True), done.stdout + done.stderr


async def test_a_cluster_with_acls_has_no_remarks(options: dict[str, Any]) -> None:
    backend = make_backend("nomad", config_of(options))
    assert await backend.remarks() == []  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate authority, and what it has signed for this host and for a client."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}.global.nomad")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return folder


async def test_tls_with_a_client_certificate(authority: Path, docker_image: Image) -> None:
    require_engine("nomad")
    block = f"""tls {{
      http = true
      verify_https_client = true
      ca_file = "{authority}/ca.pem"
      cert_file = "{authority}/server.pem"
      key_file = "{authority}/server.key"
    }}"""
    client = (f"{authority}/client.pem", f"{authority}/client.key")
    secure = {"verify": f"{authority}/ca.pem", "cert": client}
    with agent(more=block, scheme="https", secure=secure) as made:
        tls: dict[str, Any] = {"ca_cert": f"{authority}/ca.pem", "client_cert": client[0], "client_key": client[1]}
        options = made.options(image=docker_image("busybox"), slot_root="shared")
        size = 20_000_000
        async with SandboxPool("nomad", **options, **tls) as pool, pool.slot() as slot:
            data = os.urandom(size)
            await slot.files.write_bytes("big", data)
            assert await slot.files.read_bytes("big", limit_bytes=size) == data
            told = await together(*(slot.run(f"echo {n}") for n in range(32)))
            assert [result.stdout for result in told] == [f"{n}\n" for n in range(32)]
        await refused(BackendUnavailable, "certificate", **options, ca_cert=tls["ca_cert"])
        await refused(BackendUnavailable, "certificate", **options)
        assert made.jobs() == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL of a folder."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return None

    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_other_ways_of_the_runner(
    options: dict[str, Any], served: str, tmp_path: Path, docker_image: Image
) -> None:
    runner = find_runner("linux").path
    (tmp_path / "runner").write_bytes(runner.read_bytes())
    artifact: dict[str, Any] = {"runner_delivery": "artifact", "runner_source": f"{served}/runner"}
    ways: tuple[dict[str, Any], ...] = ({"runner_delivery": "bind"}, artifact)
    for more in ways:
        async with SandboxPool("nomad", **options, **more) as pool, pool.slot() as slot:
            assert (await slot.run("echo brought")).stdout == "brought\n"
    bare = {**options, "image": docker_image("distroless"), "runner_delivery": "bind"}
    async with SandboxPool("nomad", **bare) as pool, pool.slot() as slot:
        assert (await slot.run(["/probe", "echo", "x"])).exit_code != 127
    (tmp_path / "runner").write_bytes(b"another")
    await refused(LaunchError, "hecksum", **options, **artifact)
    other = tmp_path / "true"
    shutil.copy("/bin/true", other)
    await refused(LaunchError, "exit", 30, **options, runner_delivery="bind", runner_source=str(other))


async def test_what_the_image_and_the_options_say(
    options: dict[str, Any], engine: DockerClient, tmp_path: Path
) -> None:
    base = engine.containers.create(options["image"])
    tag = f"hermes-exec-test/nomad:{base.id[:12]}"  # type: ignore[index]
    try:
        base.commit(*tag.split(":"), changes="WORKDIR /var/lib/here\nENV MINE=image")
    finally:
        base.remove()
    (tmp_path / "file").write_text("of the node")
    os.chmod(tmp_path, 0o755)
    more = {"image": tag, "env": {"FURTHER": "1"}, "volumes": [f"{tmp_path}:/data:ro"], "network": False}
    try:
        async with SandboxPool("nomad", **{**options, **more, "workdir": "image"}) as pool, pool.slot() as slot:
            told = await slot.run("pwd; echo $MINE $FURTHER; cat /data/file; ls /sys/class/net")
            assert told.stdout == "/var/lib/here\nimage 1\nof the nodelo\n"
    finally:
        engine.images.remove(tag, force=True)


@pytest.fixture
def apptainer(nomad_agent: Agent, singularity_image: Image) -> Iterator[dict[str, Any]]:
    """Options of pools whose boxes are started by raw_exec."""
    yield nomad_agent.options(driver="singularity", image=singularity_image("debian"))
    assert nomad_agent.jobs() == []


@pytest.mark.singularity
async def test_apptainer_by_raw_exec(apptainer: dict[str, Any], nomad_agent: Agent, tmp_path: Path) -> None:
    mark = f"{os.getpid()}.31"
    more: dict[str, Any] = {"env": {"FURTHER": "1"}, "volumes": [f"{tmp_path}:/data"]}
    async with SandboxPool("nomad", **apptainer, **more) as pool, pool.slots(2) as (one, two):
        assert one.sandbox == two.sandbox
        assert one.isolation.level == "namespaces"
        await one.files.write_text("/etc/mine", "one")
        assert not await two.files.exists("/etc/mine")
        assert (await one.run("echo $FURTHER; env | grep -c NOMAD_; ls -d /data")).stdout == "1\n0\n/data\n"
        await one.spawn(f"sleep {mark}")
        await until(lambda: marked(mark))
    await until(lambda: not marked(mark), 10)


@pytest.mark.singularity
async def test_what_apptainer_says_is_told(apptainer: dict[str, Any]) -> None:
    await refused(ImageError, "no-such-image", **{**apptainer, "image": "/no-such-image.sif"})
    await refused(LaunchError, "no-such-engine", **apptainer, binary="no-such-engine")


async def test_limits(options: dict[str, Any], nomad_agent: Agent, engine: DockerClient) -> None:
    limits = Limits(cpus=0.5, memory_mb=256, pids=100)
    async with SandboxPool("nomad", **options, slots_per_sandbox=1, limits=limits) as pool, pool.slot() as slot:
        host = container(engine, nomad_agent, box_of(slot)).attrs["HostConfig"]
        assert host["Memory"] == 256 << 20
        assert host["CpuQuota"] / host["CpuPeriod"] == pytest.approx(0.5, rel=0.02)
        assert set(slot.isolation.limits) >= {"cpus", "memory_mb", "pids"}
        result = await slot.run("head -c 400000000 /dev/zero | tail", timeout_s=60)
        assert result.oom_killed
        assert (await slot.run("echo on")).stdout == "on\n"


async def test_the_name_of_a_container(options: dict[str, Any], nomad_agent: Agent, engine: DockerClient) -> None:
    """Boxes of this backend are nothing that the docker backend on the same engine would take for its own."""
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        labels = container(engine, nomad_agent, box_of(slot)).labels
        assert not [name for name in labels if re.match("hermes-exec", name)]
        theirs = make_backend("docker", {"image": options["image"]})
        try:
            assert box_of(slot) not in {info.sandbox for info in await theirs.sandboxes()}
        finally:
            await theirs.aclose()
