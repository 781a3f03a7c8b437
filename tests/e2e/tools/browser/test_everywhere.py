"""The browser and execute_code beyond root on local and Docker: they are programs of the slot, whatever it is in."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import require_engine
from tests.e2e.tools.browser.smoke import a_page_and_a_program
from tests.engines import options_of
from tests.support.ordinary_user import run_as_ordinary_user


@pytest.mark.anyio
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("ssh", "singularity", "nomad", "modal")],
)
async def test_other_backends(backend: str) -> None:
    require_engine(backend)
    if backend == "ssh":
        require_engine("chromium")
    with options_of(backend, "browser") as options:
        if backend == "nomad":
            options["slot_root"] = "shared"  # what its containers allow here
        await a_page_and_a_program(backend, options)


@pytest.mark.anyio
@pytest.mark.docker
@pytest.mark.parametrize("more", [{"user": "1000:1000"}, {"slot_root": "shared"}], ids=["user", "shared root"])
async def test_other_sandboxes_of_docker(more: dict[str, Any], docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    await a_page_and_a_program("docker", {"image": docker_image("browser"), **more})


def test_an_ordinary_user() -> None:
    require_engine("chromium")
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user: the others are this")
    assert run_as_ordinary_user("tests.e2e.tools.browser.smoke", "local", "{}") == b"all of it works\n"
