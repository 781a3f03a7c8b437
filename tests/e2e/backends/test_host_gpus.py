"""GPUs of the host in slots of `local` and `ssh`, with stand-in device nodes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_exec import ConfigError, ProfileConfig, QuotaExceeded, SandboxPool
from tests.support.directories import let_others_pass
from tests.support.sshd import Server
from tests.support.stand_in_gpus import stand_in_gpus, with_nvidia_smi

pytestmark = pytest.mark.alone
Options = Callable[..., dict[str, Any]]


@pytest.fixture
def nodes() -> Iterator[None]:
    with stand_in_gpus(2):
        yield


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.ssh)])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    """A function from options to all options of a pool on this host."""
    let_others_pass(tmp_path)
    programs, base = tmp_path / "programs", tmp_path / "base"
    for directory in (programs, base):
        directory.mkdir()
        directory.chmod(0o711 if directory == base else 0o755)
    always: dict[str, Any] = {"backend": request.param, "base_dir": str(base), **with_nvidia_smi(programs)}
    if request.param == "ssh":
        server: Server = request.getfixturevalue("ssh_server")
        always |= server.options()

    return lambda **more: {**always, **more}


@pytest.mark.usefixtures("nodes")
def test_nvidia_smi_runs_by_the_documented_command(options: Options, tmp_path: Path) -> None:
    values = options(gpus="all")
    config = tmp_path / "several.yaml"
    config.write_text(yaml.safe_dump({"backends": {"gpu": {"type": values.pop("backend"), **values}}}))
    command = [sys.executable, "-m", "hermes_exec.cli.main", "run", "-c", str(config), "-b", "gpu", "--", "nvidia-smi"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "/dev/nvidia0 unset\n/dev/nvidia1 unset\n"), done.stderr
    with SandboxPool(**options()) as pool, pool.slot() as slot:
        assert not slot.run("nvidia-smi").ok
        assert slot.run("ls -d /dev/nvidia* /sys").stdout == ""


@pytest.mark.usefixtures("nodes")
def test_slot_has_gpus_of_its_own(options: Options) -> None:
    with SandboxPool(**options(gpus_per_slot=1)) as pool:
        assert pool.stats().slots_most == 2
        for _ in range(2):
            with pool.slots(2) as slots:
                outputs = sorted(slot.run("nvidia-smi", check=True).stdout for slot in slots)
                assert outputs == ["/dev/nvidia0 0\n", "/dev/nvidia1 0\n"]
        with pytest.raises(ConfigError, match=r"3 slots .* at most 2 .*gpus_per_slot"), pool.slots(3):
            pass


@pytest.mark.usefixtures("nodes")
def test_inline_profile_has_gpus_of_its_own(options: Options) -> None:
    profile = ProfileConfig(backend_options={"gpus_per_slot": 2})
    with SandboxPool(**options()) as pool:
        with pool.slot(profile=profile) as slot:
            assert slot.run("nvidia-smi").stdout == "/dev/nvidia0 0,1\n/dev/nvidia1 0,1\n"
        with pool.slot() as slot:
            assert not slot.run("nvidia-smi").ok
        with pytest.raises(ConfigError, match=r"2 slots .* at most 1 "), pool.slots(2, profile=profile):
            pass
        pool.prewarm(1, profile=profile)


@pytest.mark.usefixtures("nodes")
def test_request_waits_for_gpus_of_other_pools(options: Options) -> None:
    with SandboxPool(**options(gpus_per_slot=2)) as waiting:
        with SandboxPool(**options(gpus=[0], gpus_per_slot=1)) as pool, pool.slot() as slot:
            assert slot.run("nvidia-smi").stdout == "/dev/nvidia0 0\n"
            problem = "1 of the 2 GPUs are free, .*other slots of this host"
            with pytest.raises(QuotaExceeded, match=problem), waiting.slot(timeout_s=1):
                pass
        with waiting.slot() as slot:
            assert slot.run("nvidia-smi").stdout == "/dev/nvidia0 0,1\n/dev/nvidia1 0,1\n"


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(
    ("gpus", "output"),
    [(1, "/dev/nvidia0 0\n"), ([1], "/dev/nvidia1 0\n"), ("1,0", "/dev/nvidia0 1,0\n/dev/nvidia1 1,0\n")],
)
def test_slots_share_the_selected_gpus(gpus: object, output: str, options: Options) -> None:
    with SandboxPool(**options(gpus=gpus, env={})) as pool, pool.slots(2) as slots:
        assert [slot.run("nvidia-smi").exit_code for slot in slots] == [127, 127], "without its PATH"
    with SandboxPool(**options(gpus=gpus)) as pool, pool.slots(2) as slots:
        assert {slot.run("nvidia-smi", check=True).stdout for slot in slots} == {output}


@pytest.mark.usefixtures("nodes")
def test_sandboxes_of_a_host_share_its_gpus(options: Options) -> None:
    with SandboxPool(**options(gpus_per_slot=1, max_sandboxes=2)) as pool, pool.slots(2) as slots:
        assert len({slot.sandbox for slot in slots}) == 2
        assert len({slot.run("nvidia-smi", check=True).stdout for slot in slots}) == 2
    with SandboxPool(**options(gpus_per_slot=1, max_sandboxes=3, slots_per_sandbox=1)) as pool:
        assert pool.stats().slots_most == 2


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"gpus": 3}, "3 were requested, and this host has 2 .*/dev/nvidia0"),
        ({"gpus": [2]}, "no GPU \"2\""),
        ({"gpus": [0], "gpus_per_slot": 2}, "gpus_per_slot: 2 were requested, and there are 1"),
        ({"gpus_per_slot": 1, "slots_per_sandbox": 3}, "3 slots, .* enough for 2: set slots_per_sandbox=2"),
        ({"gpus_per_slot": 1, "slots_per_sandbox": 2, "min_sandboxes": 2, "max_sandboxes": 2}, "min_sandboxes=2"),
    ],
)  # fmt: skip
def test_gpus_that_are_not_there_are_refused_when_the_pool_opens(
    more: dict[str, Any], problem: str, options: Options
) -> None:
    with pytest.raises(ConfigError, match=problem), SandboxPool(**options(**more)):
        pass


def test_host_without_gpus_names_the_nodes(options: Options) -> None:
    problem = "neither device nodes /dev/nvidia0, .*/dev/dri/renderD128"
    with pytest.raises(ConfigError, match=problem), SandboxPool(**options(gpus="all")):
        pass
