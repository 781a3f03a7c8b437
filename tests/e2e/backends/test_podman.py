"""Sandboxes of Podman, through its API that is compatible with Docker's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import IsolationError, SandboxPool
from hermes_exec.backends.docker import container
from tests.conftest import require_engine
from tests.support.podman_service import Service, service

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.podman]
Image = Callable[[str], str]


@pytest.fixture(scope="module")
def podman() -> Iterator[Service]:
    require_engine("podman")
    with service() as made:
        yield made


@pytest.fixture
def options(podman: Service, docker_image: Image) -> dict[str, Any]:
    image = docker_image("busybox")
    podman.load(image)
    return {"base_url": podman.address, "image": image}


async def test_slot_of_podman_runs_commands(options: dict[str, Any], podman: Service) -> None:
    async with SandboxPool("docker", **options) as pool, pool.slot() as slot:
        assert slot.isolation.level == "exclusive"
        assert (await slot.run("cat", stdin="there and back")).stdout == "there and back"
    assert podman.run("ps", "--all", "--quiet") == ""


async def test_slots_of_a_podman_container_have_their_own_roots(options: dict[str, Any]) -> None:
    async with SandboxPool("docker", **options, slots_per_sandbox=2, slot_root="own") as pool, pool.slots(2) as slots:
        one, two = slots
        assert (one.sandbox, one.isolation.level) == (two.sandbox, "namespaces")
        assert (await one.run("echo one >/etc/mine && id -u")).stdout == "0\n"
        assert not await two.files.exists("/etc/mine")


async def test_podman_without_the_seccomp_profile_shares_the_root(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Podman of another host reads the path of the profile there."""
    monkeypatch.setattr(container, "SECCOMP_PROFILE", Path("/no/such/profile.json"))
    with pytest.warns(RuntimeWarning, match="run Podman on this host"):
        async with SandboxPool("docker", **options, slots_per_sandbox=2) as pool, pool.slots(2) as (one, _):
            assert one.isolation.level == "uid"
    with pytest.raises(IsolationError, match="run Podman on this host"):
        async with SandboxPool("docker", **options, slots_per_sandbox=2, slot_root="own") as pool, pool.slot():
            raise AssertionError("there was a sandbox")
