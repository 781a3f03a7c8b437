"""What a Docker sandbox keeps outside of its container goes with it, whoever removes the container."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from docker import DockerClient
from docker.errors import APIError

from hermes_exec.backends.base import Labels, LaunchSpec, ReapFilter
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.owner import PREFIX, own_labels
from hermes_exec.backends.registry import make_backend
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture
def run_id() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


def volumes_of(engine: DockerClient, run_id: str) -> list[str]:
    return [str(volume.name) for volume in engine.volumes.list(filters={"label": f"{PREFIX}run-id={run_id}"})]


async def test_a_container_that_somebody_removed_leaves_no_volume(
    docker_image: object, engine: DockerClient, run_id: str
) -> None:
    backend = make_backend(DockerConfig())
    spec = LaunchSpec(image=docker_image("busybox"))  # type: ignore[operator]
    sandbox = await backend.launch(spec, own_labels(run_id))
    assert len(volumes_of(engine, run_id)) == 1
    engine.containers.get(sandbox.id).remove(force=True)
    assert len(volumes_of(engine, run_id)) == 1
    await sandbox.destroy()
    assert volumes_of(engine, run_id) == []
    await backend.aclose()


async def test_volumes_of_drivers_that_are_gone_are_reaped_and_no_others(
    docker_image: object, engine: DockerClient, run_id: str
) -> None:
    backend = make_backend(DockerConfig())
    mine = own_labels(run_id)
    gone = Labels(f"{run_id}-gone", mine.host_id, mine.boot_id, mine.pid_namespace, mine.pid, mine.pid_start + 1)
    spec = LaunchSpec(image=docker_image("busybox"))  # type: ignore[operator]
    sandboxes = [await backend.launch(spec, labels) for labels in (mine, gone)]
    for sandbox in sandboxes:
        with contextlib.suppress(APIError):  # another pool of this host may have reaped it, or be about to
            engine.containers.get(sandbox.id).remove(force=True)
    await backend.reap(ReapFilter(orphans=True))
    await until(lambda: not volumes_of(engine, gone.run_id))  # another pool of this host may be removing it just now
    assert len(volumes_of(engine, run_id)) == 1
    for sandbox in sandboxes:
        await sandbox.destroy()
    assert volumes_of(engine, run_id) == []
    await backend.aclose()
