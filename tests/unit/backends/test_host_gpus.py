"""Options for GPUs of existing machines, and how many slots they allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hermes_exec import ConfigError, LaunchError
from hermes_exec.backends.host_gpus import divide_slots, parse_gpu_slots
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.ssh.backend import SSHBackend
from hermes_exec.backends.ssh.config import SSHConfig
from hermes_exec.backends.ssh.host import Host, HostFacts
from hermes_exec.config import PoolConfig
from hermes_exec.errors import BackendUnavailable
from hermes_exec.pool.templates import Templates


@pytest.mark.parametrize(
    ("options", "request_of_slot"),
    [
        ({}, None),
        ({"gpus": "all"}, {}),
        ({"gpus": 2}, {"count": 2}),
        ({"gpus": "2"}, {"count": 2}),
        ({"gpus": [2]}, {"names": ["2"]}),
        ({"gpus": "0,2"}, {"names": ["0", "2"]}),
        ({"gpus": "GPU-8f, GPU-9a"}, {"names": ["GPU-8f", "GPU-9a"]}),
        ({"gpus": ["GPU-8f", 1]}, {"names": ["GPU-8f", "1"]}),
        ({"gpus_per_slot": 1}, {"per_slot": 1}),
        ({"gpus": 4, "gpus_per_slot": 2}, {"count": 4, "per_slot": 2}),
    ],
)
def test_gpus_of_the_configuration_reach_the_runner(options: dict[str, Any], request_of_slot: object) -> None:
    template = Templates(PoolConfig(), LocalConfig(**options)).get(None, None)
    assert template.slot_params("s0", None, template.slot_settings)["gpus"] == request_of_slot
    assert SSHConfig(hosts="a", **options).gpu_request == request_of_slot


@pytest.mark.parametrize(
    "options", [{"gpus": 0}, {"gpus": []}, {"gpus": "0,,1"}, {"gpus": [-1]}, {"gpus": "a b"}, {"gpus_per_slot": 0}]
)
def test_gpus_of_a_wrong_form_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        LocalConfig(**options)


@pytest.mark.parametrize(
    ("available", "sandboxes", "slots", "sizes"),
    [(4, 1, None, (4, 1)), (4, 2, None, (2, 2)), (5, 2, None, (2, 2)), (2, 3, None, (1, 2)), (4, 3, 2, (2, 2))],
)
def test_slots_of_a_host_are_divided_among_sandboxes(
    available: int, sandboxes: int, slots: int | None, sizes: tuple[int, int]
) -> None:
    assert divide_slots(available, sandboxes, slots, "here") == sizes


def test_answers_of_runners_are_checked() -> None:
    assert parse_gpu_slots({"slots": 3}, "here") == 3
    with pytest.raises(ConfigError, match="here: no GPU"):
        parse_gpu_slots({"problem": "no GPU"}, "here")
    malformed: tuple[object, ...] = (None, [], {}, {"slots": 0}, {"slots": True}, {"slots": "1"})
    for answer in malformed:
        with pytest.raises(LaunchError, match="here: the runner answered"):
            parse_gpu_slots(answer, "here")


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many slots the GPUs of each host allow; other hosts are away."""
    slots: dict[str, int] = {}

    def prepare(host: Host) -> HostFacts:
        if host.name not in slots:
            raise BackendUnavailable(f"{host.name} is away")
        return HostFacts("/runner", "/tmp", slots[host.name])

    monkeypatch.setattr(Host, "prepare", prepare)
    return slots


async def sizes_of(config: SSHConfig, sandboxes: int, slots: int | None = None) -> Mapping[int, int] | None:
    return await SSHBackend(config).gpu_sizes(sandboxes, slots)


@pytest.mark.anyio
async def test_hosts_have_as_many_slots_as_their_gpus_allow(hosts: dict[str, int]) -> None:
    hosts |= {"a": 4, "b": 8}
    config = SSHConfig(hosts=["a", "b", "c"], gpus_per_slot=1)
    assert await sizes_of(config, 3) == {4: 1, 8: 2}, "c is away, and may be as large as b"
    assert await sizes_of(config, 3, 2) == {2: 3}
    with pytest.raises(ConfigError, match=r"ssh a: .* 5 slots, .* enough for 4"):
        await sizes_of(config, 3, 5)
    own = SSHConfig(hosts=[{"host": "a", "slots": 2}, {"host": "b", "slots": 9}], gpus_per_slot=1)
    assert await sizes_of(own, 1) == {2: 1}
    with pytest.raises(ConfigError, match="ssh b: "):
        await sizes_of(own, 2)
    assert await sizes_of(SSHConfig(hosts="a", gpus="all"), 1) is None
