"""Secrets are in the slot's environment and nowhere else: no metadata, no command line, no log, no error."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from hermes_exec import LaunchError, PoolEvent, SandboxPool
from tests.conftest import BackendCase

pytestmark = pytest.mark.anyio


def command_lines() -> bytes:
    """Those of every process of this host, the tenants' among them."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += path.read_bytes() + b"\n"
    return found


@pytest.mark.parametrize("slots", [1, 4])
async def test_secrets_are_seen_by_commands_alone(
    backend: BackendCase, slots: int, caplog: pytest.LogCaptureFixture
) -> None:
    secret = f"s3cret-{secrets.token_hex(8)}"
    events: list[PoolEvent] = []
    with caplog.at_level(logging.DEBUG):
        async with (
            SandboxPool(
                backend.backend,
                **backend.options,
                slots_per_sandbox=slots,
                secrets={"TOKEN": secret},
                on_event=events.append,
            ) as pool,
            pool.slot() as slot,
        ):
            assert (await slot.run("echo $TOKEN")).stdout.strip() == secret
            assert (await slot.session().run("echo $TOKEN")).stdout.strip() == secret
            process = await slot.spawn("echo $TOKEN; sleep 100")
            assert (await process.stdout.receive()).decode().strip() == secret
            assert secret.encode() not in command_lines()
            shown = [repr(pool), repr(slot), repr(pool.config), repr(slot.isolation), repr(await slot.processes())]
            if backend.backend == "docker":
                with contextlib.closing(docker.from_env()) as client:
                    shown.append(json.dumps(client.api.inspect_container(slot.sandbox)))
                    shown.append(client.api.logs(slot.sandbox).decode())
                    shown.append(json.dumps(client.api.inspect_container(slot.sandbox)["ExecIDs"]))
            assert [text for text in shown if secret in text] == []
    assert len(events) >= 4
    assert secret not in repr(events)
    assert secret not in caplog.text


@pytest.mark.parametrize("what", ["setup", "slot_setup"])
async def test_a_secret_that_a_failing_setup_prints_is_masked(
    what: str, backend: BackendCase, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**backend.options, what: "echo the token is $TOKEN; exit 3"}
    async with SandboxPool(backend.backend, **options, secrets={"TOKEN": "s3cret-value"}) as pool:
        with pytest.raises(LaunchError, match=r"the token is \*\*\*") as caught:
            await pool.acquire()
    assert "s3cret-value" not in repr(caught.value) + str(caught.value.__cause__) + caplog.text


@pytest.mark.docker
async def test_secrets_of_the_pool_are_not_those_of_the_container(docker_image: Callable[[str], str]) -> None:
    """What the backend's own `env` has is in the metadata, as its documentation says; secrets are not."""
    image = docker_image("busybox")
    async with SandboxPool("docker", image=image, secrets={"A": "hidden-a"}, env={"B": "plain-b"}) as pool:
        async with pool.slot() as slot:
            with contextlib.closing(docker.from_env()) as client:
                environment = client.api.inspect_container(slot.sandbox)["Config"]["Env"]
        assert not [entry for entry in environment if "hidden-a" in entry]
