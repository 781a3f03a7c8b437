"""Fixtures of all tests: event loops, engines, and the rule that a required engine is never skipped.

`HERMES_REQUIRE_ENGINES=local,docker` turns a skip because of one of these engines into a failure.
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = frozenset(filter(None, (name.strip() for name in os.environ.get("HERMES_REQUIRE_ENGINES", "").split(","))))


@dataclass(frozen=True)
class BackendCase:
    """One way to make a pool in tests: `SandboxPool(case.backend, **case.options)`."""

    id: str
    backend: str
    options: dict[str, Any] = field(default_factory=dict)


def pytest_configure() -> None:
    """Take interrupts, also where a shell has started the tests in the background, which ignores them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_report_header() -> list[str]:
    """Say which engines must be there, and whether the runner binaries are those of the sources."""
    from hatch_build import RunnerBuildError, build_key, find_go, is_current

    lines = [f"engines required: {', '.join(sorted(REQUIRED)) or 'none'}"]
    try:
        key = build_key(ROOT / "runner", find_go())
        current = is_current(ROOT / "hermes_exec" / "_runner", key)
    except RunnerBuildError as error:
        lines.append(f"runner: {error}")
    else:
        lines.append("runner: up to date" if current else "runner: STALE, `make runner` builds it")
    return lines


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop of an async test: asyncio for all, trio also for those marked `sample`."""
    return str(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out trio where a test is not of the sample."""
    left_out = [item for item in items if runs_on_trio_by_our_fixture(item) and not item.get_closest_marker("sample")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def runs_on_trio_by_our_fixture(item: pytest.Item) -> bool:
    """Tell whether a test got trio from the fixture above; a module with a fixture of its own keeps what it wants."""
    loop = getattr(getattr(item, "callspec", None), "params", {}).get("anyio_backend")
    definitions = (
        item._fixtureinfo.name2fixturedefs.get("anyio_backend", ()) if isinstance(item, pytest.Function) else ()
    )
    return loop == "trio" and bool(definitions) and definitions[-1].baseid == "tests"


@cache
def missing(engine: str) -> str | None:
    """Say why an engine cannot be used here, None when it can."""
    if engine == "local":
        return None
    import docker
    from docker.errors import DockerException

    # The SDK leaves its socket open when the daemon refuses; collected here, that is no warning in another test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        reason = None
        try:
            client = docker.from_env(timeout=10)
            client.ping()
            client.close()
        except DockerException as error:
            reason = f"no Docker daemon answers ({error})"
        gc.collect()
    return reason


def require_engine(engine: str) -> None:
    """Skip the running test when an engine is not there, and say why; fail it when that engine is required."""
    reason = missing(engine)
    if reason is None:
        return
    if engine in REQUIRED:
        pytest.fail(f"engine {engine} is required: {reason}", pytrace=False)
    pytest.skip(f"engine {engine}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip of a test marked `docker` into a failure when Docker is required, whatever the reason given."""
    report = yield
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and "docker" in REQUIRED
        and item.get_closest_marker("docker")
    ):
        report.outcome = "failed"
        report.longrepr = f"engine docker is required, and this test was skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def docker_image() -> Callable[[str], str]:
    """A function from a test image (busybox, debian, distroless) to its full name; it is built when it is not there."""

    @cache
    def image(name: str) -> str:
        require_engine("docker")
        import docker

        from tests.images.build import ensure

        client = docker.from_env(timeout=300)
        try:
            return ensure(client, name)
        finally:
            client.close()

    return image


@pytest.fixture(
    params=[
        "local",
        pytest.param("docker-busybox", marks=pytest.mark.docker),
        pytest.param("docker-debian", marks=pytest.mark.docker),
    ]
)
def backend(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> BackendCase:
    """Each backend of this matrix in turn; one whose engine is not there is a skip that says why."""
    engine, _, image = str(request.param).partition("-")
    require_engine(engine)
    options: dict[str, Any] = {"image": docker_image(image)} if image else {}
    return BackendCase(id=str(request.param), backend=engine, options=options)
