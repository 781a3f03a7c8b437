"""Sandboxes of Nomad as options ask for them, and what bad ones are told: tokens, room, TLS, deliveries of the
runner.
"""

import functools
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from docker import DockerClient
from docker.errors import APIError, ImageNotFound

from hermes_exec import (
    BackendUnavailable,
    ConfigError,
    ExecError,
    ImageError,
    IsolationError,
    LaunchError,
    LaunchTimeout,
    Limits,
    QuotaExceeded,
    SandboxPool,
)
from hermes_exec.backends.nomad.cluster import Cluster
from hermes_exec.backends.nomad.exec_stream import ExecStream
from hermes_exec.backends.nomad.sandbox import events_of
from hermes_exec.backends.registry import make_backend
from hermes_exec.backends.runner_binary import find_runner
from tests.conftest import require_engine
from tests.e2e.backends.nomad_sandboxes import cli, config_of, together
from tests.support.nomad_agent import POLICY, Agent, agent
from tests.support.outside import marked
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.nomad]
Image = Callable[[str], str]


@pytest.fixture
def options(nomad_options: dict[str, Any]) -> dict[str, Any]:
    return nomad_options


async def refused(kind: type[ExecError], told: str, within_s: float = 60.0, **options: Any) -> ExecError:
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
    await refused(LaunchError, "none is ready", **options, datacenters=["nowhere"])
    constraints = [{"attribute": "${node.class}", "value": "none-such"}]
    error = await refused(LaunchError, r"filtered by .*node.class", **options, constraints=constraints)
    assert not error.retryable
    error = await refused(LaunchError, "the largest has", **options, limits=Limits(memory_mb=4_000_000))
    assert not error.retryable
    await refused(LaunchError, "missing devices", **options, gpus=2)
    await refused(ConfigError, 'nonexistent node pool "none-such"', **options, node_pool="none-such")


@pytest.mark.whole
async def test_a_cluster_that_is_full_is_waited_for(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    options |= {"limits": Limits(memory_mb=300_000), "slots_per_sandbox": 1, "max_sandboxes": 3}

    async def says(pool: SandboxPool) -> None:
        async with pool.slot() as slot:
            assert (await slot.run("echo here")).stdout == "here\n"

    async with SandboxPool("nomad", **options) as other:
        async with SandboxPool("nomad", **options) as pool:
            first = await pool.acquire()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(says, pool)
                with pytest.raises(QuotaExceeded, match="no memory left"):
                    await other.acquire(timeout_s=8)
                await pool.release(first)
        await says(other)
    assert "requests keep waiting: no node" in caplog.text


@pytest.mark.whole
async def test_a_cluster_that_is_drained_for_a_while(options: dict[str, Any], nomad_agent: Agent) -> None:
    (node,) = (each["ID"] for each in nomad_agent.ask("GET", "nodes"))

    def be(eligibility: str) -> None:
        nomad_agent.ask("PUT", f"node/{node}/eligibility", json={"Eligibility": eligibility})

    be("ineligible")
    try:
        await refused(QuotaExceeded, "none is ready and eligible", **options, acquire_timeout_s=8)
        async with anyio.create_task_group() as tasks, SandboxPool("nomad", **options) as pool:

            async def come_back() -> None:
                await anyio.sleep(1)
                await to_thread.run_sync(be, "eligible")

            tasks.start_soon(come_back)
            async with pool.slot() as slot:
                assert (await slot.run("echo back")).stdout == "back\n"
    finally:
        be("eligible")


async def test_nobody_answers(options: dict[str, Any]) -> None:
    await refused(BackendUnavailable, "NOMAD_ADDR", **{**options, "address": "http://127.0.0.1:1"})
    await refused(BackendUnavailable, "TLS", **{**options, "address": options["address"].replace("http:", "https:")})


async def test_names_of_the_environment_as_files_and_shells_leave_them(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, token = options.pop("address"), options.pop("token")
    monkeypatch.setenv("NOMAD_ADDR", f"{address}/")
    monkeypatch.setenv("NOMAD_TOKEN", f"{token}\n")
    async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        assert (await slot.run("echo in")).stdout == "in\n"
    monkeypatch.setenv("NOMAD_TOKEN", f"{token}–")
    error = await refused(ConfigError, "NOMAD_TOKEN", **options)
    assert token not in str(error)
    for wrong in (address.replace("http://", "http://me:hush@"), "127.0.0.1:4646", "http://127.0.0.1:port"):
        monkeypatch.setenv("NOMAD_ADDR", wrong)
        assert "hush" not in str(await refused(ConfigError, "NOMAD_ADDR", **options))


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"<html>log in</html>", "is not Nomad"),
        (502, b"<html>" + b"x" * 9000, "502: <html>"),
        (500, b"No cluster leader", "No cluster leader"),
    ],
)
async def test_what_is_no_nomad_or_has_no_server(options: dict[str, Any], status: int, body: bytes, told: str) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            error = await refused(BackendUnavailable, told, **{**options, "address": address})
        finally:
            server.shutdown()
    assert len(str(error)) < 4000


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"image": None}, "needs an image"),
        ({"constraints": [{"attribute": "${node.class}", "operator": "~~", "value": "x"}]}, "operator|~~"),
        ({"limits": Limits(memory_mb=4)}, "minimum MemoryMB"),
        ({"user": "nobody-here"}, "nobody-here"),
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
    await refused(ImageError, "no-such-image", **{**options, "image": "127.0.0.1:1/no-such-image:1"})


async def test_launches_that_are_given_up_leave_no_job(options: dict[str, Any], nomad_agent: Agent) -> None:
    for after_s in (0.05, 0.15, 0.3, 0.6):
        with anyio.move_on_after(after_s):
            async with SandboxPool("nomad", **options) as pool, pool.slot():
                await anyio.sleep_forever()
        assert nomad_agent.jobs() == []
    # Nothing in this image can start what brings the runner.
    sleeps = {**options, "docker": {"readonly_rootfs": True}, "user": "nobody-here"}
    await refused(ConfigError, "nobody-here", **sleeps)


async def test_a_launch_that_takes_too_long(options: dict[str, Any], nomad_agent: Agent) -> None:
    with pytest.raises(LaunchTimeout), anyio.fail_after(60):
        async with SandboxPool("nomad", **options, launch_timeout_s=0.01) as pool, pool.slot():
            raise AssertionError("there was a sandbox")
    assert nomad_agent.jobs() == []


@pytest.fixture
def open_agent() -> Iterator[Agent]:
    require_engine("nomad")
    with agent(acl=False) as made:
        yield made


@pytest.mark.whole
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
    done = await to_thread.run_sync(cli, *[word for word in words if word not in {"-i", options["image"]}])
    assert done.returncode == 2
    assert "no ACLs" in done.stderr
    assert "needs an image" in done.stderr


async def test_a_cluster_with_acls_has_no_remarks(options: dict[str, Any]) -> None:
    backend = make_backend("nomad", config_of(options))
    assert await backend.remarks() == []  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate authority, and what it has signed for this host and for a client."""
    directory = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}.global.nomad")
        (directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return directory


@pytest.mark.whole
async def test_tls_with_a_client_certificate(
    authority: Path, docker_image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        for name, value in zip(("SSL_CERT_FILE", "NOMAD_CLIENT_CERT", "NOMAD_CLIENT_KEY"), tls.values(), strict=True):
            monkeypatch.setenv(name, value)
        async with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
            assert (await slot.run("echo as the environment says")).stdout == "as the environment says\n"
        assert made.jobs() == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL of a directory."""

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


@pytest.mark.whole
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
    await refused(LaunchError, "exit", **options, runner_delivery="bind", runner_source=str(other))


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
        await until(lambda: remove_image(engine, tag))


def remove_image(engine: DockerClient, tag: str) -> bool:
    """Remove an image. Return False while Nomad has a container of it: by force, only its name would go."""
    try:
        engine.images.remove(tag)
    except ImageNotFound:
        return True
    except APIError:
        return False
    return True


async def test_slots_of_a_privileged_container_have_roots_of_their_own(
    options: dict[str, Any], engine: DockerClient
) -> None:
    own = {**options, "slot_root": "own", "docker": {"privileged": True}}
    await refused(IsolationError, "privileged", **{**own, "docker": {}})
    tried = engine.containers.create(options["image"], "true", privileged=True)
    try:
        tried.start()
    except APIError:  # as in a container that has not all capabilities itself
        await refused(ConfigError, "the node refuses the sandbox", **own)
        return
    finally:
        tried.remove(force=True)
    async with SandboxPool("nomad", **own) as pool, pool.slots(2) as (one, two):
        assert (one.sandbox, one.isolation.level) == (two.sandbox, "namespaces")
        assert (await one.run("echo one >/etc/mine && id -u")).stdout == "0\n"
        assert not await two.files.exists("/etc/mine")


@pytest.fixture
def apptainer(nomad_agent: Agent, singularity_image: Image) -> Iterator[dict[str, Any]]:
    """Options of pools whose sandboxes are started by raw_exec."""
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
    await until(lambda: not marked(mark))


@pytest.mark.whole
@pytest.mark.singularity
async def test_what_apptainer_says_is_told(apptainer: dict[str, Any]) -> None:
    await refused(ImageError, "no-such-image", **{**apptainer, "image": "/no-such-image.sif"})
    await refused(LaunchError, "no-such-engine", **apptainer, binary="no-such-engine")
    # It has said nothing then: what the cluster tells stands.
    nowhere: dict[str, Any] = {"runner_delivery": "artifact", "runner_source": "http://127.0.0.1:9/runner"}
    await refused(LaunchError, "download artifact", **apptainer, **nowhere)


@pytest.mark.parametrize("driver", ["options", pytest.param("apptainer", marks=pytest.mark.singularity)])
async def test_a_node_that_overlooks_the_start_of_a_task(
    driver: str, nomad_agent: Agent, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Nomad 1.11 does now and then when it is busy: exec is refused until something else happens to the task."""
    opened, refused = Cluster.open, 0

    async def open_(self: Cluster, allocation: str, command: Sequence[str], *, frames: bool = True) -> ExecStream:
        nonlocal refused
        events = events_of(await to_thread.run_sync(nomad_agent.ask, "GET", f"allocation/{allocation}"))
        if not any(event["Type"] == "Signaling" for event in events):
            refused += 1
            raise anyio.BrokenResourceError('task "sandbox" not started yet.')
        return await opened(self, allocation, command, frames=frames)

    monkeypatch.setattr(Cluster, "open", open_)
    async with SandboxPool("nomad", **request.getfixturevalue(driver)) as pool, pool.slot(timeout_s=60) as slot:
        assert (await slot.run("echo here")).stdout == "here\n"
    assert refused
