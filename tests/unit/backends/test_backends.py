"""Registry, owners and Docker's framing, without any engine."""

from __future__ import annotations

import base64
import os
import platform
import signal
import struct
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.backends import engine_errors, registry, runner_binary
from hermes_exec.backends.base import LaunchSpec, ReapFilter
from hermes_exec.backends.docker.backend import DockerBackend
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.container import plan_container
from hermes_exec.backends.docker.stream import DockerStream
from hermes_exec.backends.local.backend import LocalBackend
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.backends.nomad.exec_stream import ExecStream
from hermes_exec.backends.nomad.job import job_specification
from hermes_exec.backends.nomad.placement import placement_error
from hermes_exec.backends.owner import (
    descendants,
    from_json,
    from_strings,
    own_labels,
    owner_state,
    process_start,
    reap_reason,
    to_json,
    to_strings,
)
from hermes_exec.config import Limits
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError, QuotaExceeded
from hermes_exec.redact import secret_values
from tests.fuzz.decoders import accepted_websocket
from tests.fuzz.seeds import nomad


def test_backends_by_name_and_by_configuration() -> None:
    assert isinstance(registry.make_backend("local"), LocalBackend)
    assert isinstance(registry.make_backend("docker", {"image": "x"}), DockerBackend)
    assert isinstance(registry.make_backend(LocalConfig()), LocalBackend)
    assert set(registry.config_types()) >= {"local", "docker"}
    with pytest.raises(ConfigError, match="did you mean 'docker'"):
        registry.make_backend("dokcer")
    with pytest.raises(ConfigError, match="did you mean 'readonly_paths'"):
        registry.make_backend("local", {"readonly_path": ["/x"]})
    with pytest.raises(ConfigError, match="LocalConfig"):
        registry.make_backend(LocalConfig(), {"base_dir": "/x"})


def test_backends_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        name: EntryPoint(name, value, registry.GROUP)
        for name, value in {
            "mine": "hermes_exec.backends.local",
            "broken": "no_such_module_at_all",
            "empty": "json",
            "docker": "json",
        }.items()
    }
    monkeypatch.setattr(registry, "_points", lambda: points)
    assert registry.config_type("mine") is LocalConfig
    assert registry.config_type("docker") is DockerConfig
    for name in ("broken", "empty"):
        with pytest.raises(BackendUnavailable, match=name):
            registry.backend_module(name)
    assert "broken" not in registry.config_types()


def test_a_backend_without_its_client_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(registry.has_client, registry.BUILT_IN))
    monkeypatch.setitem(registry.CLIENTS, "nomad", "no_such_module_at_all")
    assert not registry.has_client("nomad")
    assert registry.has_client("local")


def test_owners() -> None:
    mine = own_labels("run-1")
    assert from_json(to_json(mine)) == mine
    assert from_strings({**to_strings(mine), "other": "x"}) == mine
    before = {name: value for name, value in to_strings(mine).items() if not name.endswith((".user", ".note"))}
    assert from_strings(before) == replace(mine, user="", note=""), "as an older version has written them"
    for shared in (False, True):
        state = partial(owner_state, shared_engine=shared)
        assert state(mine) == "alive"
        assert state(replace(mine, pid_start=mine.pid_start + 1)) == "gone"
        assert state(replace(mine, boot_id="earlier")) == ("unknown" if shared else "gone"), "it may be a clone's"
        assert state(replace(mine, host_id="elsewhere")) == "unknown"
        assert state(replace(mine, pid_namespace="1")) == "unknown"
        assert state(replace(mine, boot_id="")) == "unknown"
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert process_start(child) is None, "a zombie owns nothing"
    os.waitpid(child, 0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', '{"run_id": 1, "pid": 1, "pid_start": 1}'])
def test_owner_files_that_are_none(text: str) -> None:
    assert from_json(text) is None
    assert from_strings({}) is None


def test_what_a_filter_names() -> None:
    labels = own_labels("a")
    for ended in (False, True):
        assert reap_reason(ReapFilter(all=True), labels, "alive", ended=ended)
        assert reap_reason(ReapFilter(run_id="a"), labels, "alive", ended=ended)
        assert reap_reason(ReapFilter(orphans=True), labels, "gone", ended=ended)
        assert reap_reason(ReapFilter(orphans=True), labels, "alive", ended=ended) is None
        assert reap_reason(ReapFilter(run_id="a", orphans=True), labels, "gone", ended=ended)
        assert reap_reason(ReapFilter(run_id="b", orphans=True), labels, "gone", ended=ended) is None
        assert bool(reap_reason(ReapFilter(run_id="a", orphans=True), labels, "unknown", ended=ended)) is ended
        assert reap_reason(ReapFilter(run_id="b"), labels, "gone", ended=ended) is None
        assert reap_reason(ReapFilter(), labels, "gone", ended=ended) is None


@given(
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=200)), max_size=10),
    st.lists(st.integers(1, 300), max_size=12),
)
def test_docker_frames_however_they_are_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(struct.pack(">BxxxI", kind, len(payload)) + payload for kind, payload in frames)
    stream, got, offset = DockerStream(os.open(os.devnull, os.O_RDWR)), b"", 0
    for cut in [*cuts, len(data)]:
        got += stream.demultiplex(data[offset : offset + cut])
        offset += cut
    stream.close_now()
    assert got == b"".join(payload for kind, payload in frames if kind != 2)


def test_docker_frame_of_an_unknown_kind() -> None:
    stream = DockerStream(os.open(os.devnull, os.O_RDWR))
    with pytest.raises(anyio.BrokenResourceError):
        stream.demultiplex(b"HTTP/1.1 500 Internal")
    stream.close_now()


@pytest.mark.parametrize("text", [b"OCI runtime exec failed", b"cannot exec in a stopped container"])
def test_what_docker_says_in_place_of_a_program_is_no_output_of_a_sandbox(text: bytes) -> None:
    for cut in (1, len(text)):
        stream = DockerStream(os.open(os.devnull, os.O_RDWR))
        with pytest.raises(anyio.BrokenResourceError):
            stream.unwrap(struct.pack(">BxxxI", 1, len(text)) + text[:cut])
        stream.close_now()
    stream = DockerStream(os.open(os.devnull, os.O_RDWR))
    assert stream.unwrap(struct.pack(">BxxxI", 1, 5) + b"\0frame"[:5]) == b"\0fram"
    stream.close_now()


def test_a_nomad_task_that_cannot_start_the_runner_says_so_on_stdout() -> None:
    stream = ExecStream(os.open(os.devnull, os.O_RDWR), accepted_websocket())
    with pytest.raises(anyio.BrokenResourceError, match="no such file"):
        stream.unwrap(nomad({"stdout": {"data": base64.b64encode(b"exec: no such file").decode()}}))
    stream.close_now()


def test_nomads_reasons_reach_the_error() -> None:
    def asking(memory_mb: int, *datacenters: str) -> dict[str, Any]:
        group = {"Tasks": [{"Resources": {"MemoryMB": memory_mb}}], "EphemeralDisk": {"SizeMB": 300}}
        return {"TaskGroups": [group], "Datacenters": list(datacenters)}

    filtered = placement_error({"NodesEvaluated": 3, "ConstraintFiltered": {"missing drivers": 3}}, asking(9, "*"), [])
    assert "of 3: 3 filtered by missing drivers" in str(filtered)
    assert not filtered.retryable
    metrics = {"NodesEvaluated": 1, "NodesExhausted": 1, "DimensionExhausted": {"memory": 1}}
    nodes = [{"NodeResources": {"Memory": {"MemoryMB": 64}}, "ReservedResources": {"Memory": {"MemoryMB": 4}}}]
    for known in (nodes, []):
        full = placement_error(metrics, asking(60, "*"), known)
        assert isinstance(full, QuotaExceeded)
        assert "1 have no memory left (the sandbox asks for 60 MiB of memory)" in str(full)
    too_large = placement_error(metrics, asking(61, "*"), nodes)
    assert "the largest has 60: set limits.memory_mb" in str(too_large)
    assert not too_large.retryable
    nowhere, later = placement_error({}, asking(9, "a", "b"), []), placement_error({}, asking(9, "*"), [])
    assert "in the datacenters a, b" in str(nowhere)
    assert not nowhere.retryable
    assert isinstance(later, QuotaExceeded)


def test_the_password_of_a_registry_reaches_the_job_alone() -> None:
    config = NomadConfig(image="i", docker={"auth": {"username": "me", "password": "hunter22"}})
    assert secret_values(config) == ["hunter22"]
    assert "hunter22" not in repr(config) + config.model_dump_json()
    asked = job_specification(config, LaunchSpec(), own_labels("run"), "name", runner_binary.find_runner("linux"), 1234)
    assert asked["Job"]["TaskGroups"][0]["Tasks"][0]["Config"]["auth"] == {"username": "me", "password": "hunter22"}


def test_every_option_reaches_the_job() -> None:
    config = NomadConfig(
        image="i", namespace="n", region="r", datacenters=("d",), node_pool="p", priority=7, user="5", env={"A": "b"},
        constraints=({"attribute": "${node.class}", "operator": "!=", "value": "x"},), volumes=("/a:/b:ro",), gpus=2,
        resources={"memory_max": 99, "disk": 101, "devices": {"other": 1}}, docker={"shm_size": 4},
    )  # fmt: skip
    spec = LaunchSpec(limits=Limits(memory_mb=10, cpus=0.5, pids=5), network=False, slots=2, lease_s=9)
    asked = job_specification(config, spec, own_labels("run"), "name", runner_binary.find_runner("linux"), 1234)
    made, task = asked["Job"], asked["Job"]["TaskGroups"][0]["Tasks"][0]
    assert (asked["EnforceIndex"], asked["JobModifyIndex"], made["Type"]) == (True, 0, "batch")
    assert (made["Namespace"], made["Region"], made["Datacenters"], made["NodePool"]) == ("n", "r", ["d"], "p")
    assert (made["Priority"], made["Meta"]["hermes-exec.run-id"], task["User"]) == (7, "run", "5")
    assert made["Constraints"] == [{"LTarget": "${node.class}", "Operand": "!=", "RTarget": "x"}]
    assert made["TaskGroups"][0]["EphemeralDisk"] == {"SizeMB": 101}
    assert task["Resources"]["Devices"] == [{"Name": "other", "Count": 1}, {"Name": "nvidia/gpu", "Count": 2}]
    assert {k: task["Resources"][k] for k in ("CPU", "MemoryMB", "MemoryMaxMB")} == {
        "CPU": 1234, "MemoryMB": 10, "MemoryMaxMB": 99,
    }  # fmt: skip
    options = task["Config"]
    assert (options["network_mode"], options["cpu_hard_limit"], options["shm_size"]) == ("none", True, 4)
    assert (options["volumes"], options["pids_limit"]) == (["/a:/b:ro"], 5 + 32 + 3 * 28)


def test_every_option_reaches_the_container() -> None:
    docker = pytest.importorskip("docker")
    config = DockerConfig(
        user="7", groups=("8",), cap_drop=("ALL",), cap_add=("CHOWN",), security_opt=("no-new-privileges",),
        read_only=True, runtime="runsc", cgroupns="private", sysctls={"net.core.somaxconn": "1"}, gpus="all",
        devices=("/dev/fuse",), memory_swap_mb=20, shm_size_mb=3, cpuset_cpus="0", ulimits={"nofile": (1, 2)},
        oom_kill_disable=True, device_read_bps={"/dev/vda": 5}, device_write_bps={"/dev/vda": 6}, network_mode="host",
        dns=("1.1.1.1",), extra_hosts={"a": "1.2.3.4"}, hostname="sandbox", env={"A": "b"},
        volumes=("/a:/b:ro", "/c:/d:z", "named:/e"),
        tmpfs={"/t": "size=1m"}, labels={"x": "y"}, platform="linux/amd64", privileged=True,
    )  # fmt: skip
    client = docker.DockerClient(base_url="unix:///nowhere", version="1.41")
    spec = LaunchSpec(image="i", limits=Limits(memory_mb=10, cpus=0.5, pids=5), lease_s=9)
    plan = plan_container(client, config, spec, own_labels("r"), "n", [])
    client.close()
    arguments, host = plan.arguments, plan.arguments["host_config"]
    assert (arguments["user"], arguments["hostname"], arguments["platform"]) == ("7", "sandbox", "linux/amd64")
    assert arguments["environment"] == {"A": "b"}
    assert arguments["labels"]["x"] == "y"
    assert arguments["labels"]["hermes-exec.run-id"] == "r"
    command = arguments["command"]
    assert command[command.index("--lease-s") + 1] == "9"
    assert [command[i + 1] for i, word in enumerate(command) if word == "--volume"] == ["/b", "/d", "/e"]
    expected = {
        "Memory": 10 << 20, "MemorySwap": 20 << 20, "NanoCpus": 500_000_000, "PidsLimit": 93, "ShmSize": 3 << 20,
        "CpusetCpus": "0", "ReadonlyRootfs": True, "Runtime": "runsc", "CgroupnsMode": "private", "Privileged": True,
        "CapAdd": ["CHOWN"], "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"], "GroupAdd": ["8"],
        "Sysctls": {"net.core.somaxconn": "1"}, "NetworkMode": "host", "Dns": ["1.1.1.1"],
        "ExtraHosts": ["a:1.2.3.4"], "Binds": ["/c:/d:z", "named:/e"], "Tmpfs": {"/t": "size=1m"},
        "OomKillDisable": True,
        "BlkioDeviceReadBps": [{"Path": "/dev/vda", "Rate": 5}],
        "BlkioDeviceWriteBps": [{"Path": "/dev/vda", "Rate": 6}],
    }  # fmt: skip
    assert {name: host.get(name) for name in expected} == expected
    assert {"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True} in host["Mounts"]
    assert host["Ulimits"] == [{"Name": "nofile", "Soft": 1, "Hard": 2}]
    assert host["Devices"][0]["PathOnHost"] == "/dev/fuse"
    assert host["DeviceRequests"][0]["Count"] == -1


def test_runner_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = platform.machine()
    found = runner_binary.find_runner("Linux", machine)
    assert found == runner_binary.find_runner("linux", runner_binary.ARCHITECTURES.get(machine, machine))
    assert found.path.stat().st_mode & 0o111
    with pytest.raises(BackendUnavailable, match=r"only for .*: run `make runner PLATFORMS=linux/riscv64`"):
        runner_binary.find_runner("linux", "riscv64")
    monkeypatch.setattr(runner_binary, "DIRECTORY", tmp_path)
    with pytest.raises(BackendUnavailable, match="make runner"):
        runner_binary.find_runner()
    (tmp_path / "manifest.json").write_text('{"runner-linux-amd64": "00"}')
    (tmp_path / "runner-linux-amd64").write_bytes(b"changed")
    with pytest.raises(BackendUnavailable, match="was changed after its build"):
        runner_binary.find_runner("linux", "amd64")


@pytest.mark.anyio
async def test_an_engine_that_is_away_for_a_moment_is_asked_again_to_end_a_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_errors, "RETRY_PAUSE_S", 0.01)
    asked: list[ExecError] = []

    def away(times: int, *, for_now: bool) -> Callable[[], Awaitable[None]]:
        async def end() -> None:
            if len(asked) < times:
                asked.append(BackendUnavailable("nobody answers", retryable=for_now))
                raise asked[-1]

        asked.clear()
        return end

    assert await engine_errors.end_with_retries(away(3, for_now=True)) is None
    assert len(asked) == 3
    failure = await engine_errors.end_with_retries(away(3, for_now=False))
    assert [failure] == asked
    monkeypatch.setattr(engine_errors, "RETRY_TIMEOUT_S", 0.05)
    assert await engine_errors.end_with_retries(away(10**9, for_now=True)) is asked[-1]


@pytest.mark.skipif(platform.system() != "Linux", reason="descendants are read from /proc")
def test_descendants_that_end_while_they_are_listed() -> None:
    churn = ["sh", "-c", "sleep 60 & while :; do (:) & (:) & wait $!; done"]
    with subprocess.Popen(churn, start_new_session=True) as shell:
        try:
            assert max(len(descendants(shell.pid)) for _ in range(3000)) > 1
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
