"""The 44 self-checks of inspect_ai, on slots of three backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 (pytest collects what it imports)

from hermes_inspect import HermesConfig, HermesSandboxEnvironment
from tests.support import sshd

OWN_UID = {"test_exec_as_user": "commands of a slot that shares its sandbox run as the slot's own user alone"}
AS_ROOT = dict.fromkeys(
    (
        "test_read_file_not_allowed",
        "test_write_text_file_without_permissions",
        "test_write_binary_file_without_permissions",
    ),
    "the image's user is root, who may read and write every file",
)
KNOWN: Mapping[str, Mapping[str, str]] = {
    "local": OWN_UID,
    "ssh": OWN_UID,
    "docker-own-roots": AS_ROOT,
    "docker-exclusive": AS_ROOT,
}
"""Checks that fail by design, for each configuration."""


ADDUSER = r"""cat >/usr/bin/adduser <<'end' && chmod +x /usr/bin/adduser
#!/bin/sh
for name; do :; done
echo "$name:x:1234:1234::/home/$name:/bin/sh" >>/etc/passwd && mkdir -p "/home/$name"
end"""
"""Debian's program, which the test image does not have. The check gives it options and the name of a user."""


@pytest.fixture(
    params=[
        "docker-own-roots",
        *(pytest.param(name, marks=pytest.mark.whole) for name in KNOWN if name != "docker-own-roots"),
    ],
    scope="module",
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ssh_options() -> Iterator[dict[str, Any]]:
    if reason := sshd.missing():
        pytest.skip(f"engine ssh: {reason}")
    with sshd.server() as server:
        yield server.options()


@pytest.fixture(scope="module")
def options(name: str, docker_image: Callable[[str], str], request: pytest.FixtureRequest) -> dict[str, Any]:
    if name == "local":
        return {"backend": "local"}
    if name == "ssh":
        return {"backend": "ssh", **request.getfixturevalue("ssh_options")}
    slots = 8 if name == "docker-own-roots" else 1
    return {"backend": "docker", "image": docker_image("debian"), "slots_per_sandbox": slots, "setup": ADDUSER}


@pytest.fixture(scope="module")
async def environment(options: dict[str, Any], anyio_backend: str) -> AsyncIterator[SandboxEnvironment]:
    config = HermesConfig(**options)
    await HermesSandboxEnvironment.task_init("self-check", config)
    environments = await HermesSandboxEnvironment.sample_init("self-check", config, {})
    yield environments["default"]
    await HermesSandboxEnvironment.sample_cleanup("self-check", config, environments, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, name: str, environment: SandboxEnvironment) -> SandboxEnvironment:
    if reason := KNOWN[name].get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return environment


def test_suite_has_all_checks() -> None:
    assert len(self_check.__all__) == 44
