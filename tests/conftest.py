"""Fixtures of all tests: event loops, engines, what a plain run leaves out, engines that must not be skipped.

`HERMES_REQUIRE_ENGINES=local,docker` turns a skip because of one of these engines into a failure. A plain run takes a
fixed sample, `--whole` all: see tests/support/sample.py.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.engines import modal_server as modal_servers
from tests.support import nomad_agent as nomad
from tests.support import podman_service, sample, sshd
from tests.support.hangs import Hangs
from tests.support.interrupts import take_interrupts

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = frozenset(filter(None, (name.strip() for name in os.environ.get("HERMES_REQUIRE_ENGINES", "").split(","))))
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SLOWEST = (
    "soak", "attack/test_attacks", "e2e/cli/test_run", "conformance/test_docker_debian", "faults", "e2e/test_packaging",
    "chaos", "e2e/cli", "conformance", "e2e/agent", "e2e/backends", "docs", "e2e",
)  # fmt: skip
"""Parts of the tests that take long, the longest first."""

settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")  # they judge results, not the speed of a shared machine


@dataclass(frozen=True)
class BackendCase:
    """One way to make a pool in tests: `SandboxPool(case.backend, **case.options)`."""

    id: str
    backend: str
    options: dict[str, Any] = field(default_factory=dict)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let everything be run where a plain run takes a sample."""
    parser.addoption("--whole", action="store_true", help="run everything, not the fixed sample")


def pytest_configure(config: pytest.Config) -> None:
    """Take interrupts.

    Processes that run tests side by side get a temporary directory each: pools of one directory remove what dead
    drivers left there, and list each other.
    """
    config.pluginmanager.register(Hangs(config))
    if "PYTEST_XDIST_WORKER" in os.environ:
        _own_temporary_directory(config)
    else:
        config.pluginmanager.register(Failures(config))
    take_interrupts()


def _own_temporary_directory(config: pytest.Config) -> None:
    directory = tempfile.mkdtemp(prefix="tests-")
    Path(directory).chmod(0o1777)  # as /tmp: users of slots work in it
    os.environ["TMPDIR"] = tempfile.tempdir = directory
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_report_header() -> list[str]:
    """Say which engines must be there, and whether the runner binaries are those of the sources."""
    from hatch_build import RunnerBuildError, build_key, find_go, is_current, local_targets

    lines = [f"engines required: {', '.join(sorted(REQUIRED)) or 'none'}", f"sample: HERMES_SAMPLE_SEED={sample.SEED}"]
    try:
        current = is_current(ROOT, build_key(ROOT / "runner", find_go()), local_targets())
    except RunnerBuildError as error:
        lines.append(f"runner: {error}")
    else:
        lines.append("runner: up to date" if current else "runner: STALE, `make runner` builds it")
    return lines


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop of an async test: asyncio, for those marked `loops` trio or with --whole both."""
    return str(request.param)


@pytest.hookimpl(tryfirst=True)  # before `-m newest` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not of this run; the slowest files come first."""
    sample.mark_newest(items)
    left_out = sample.left_out(items, whole=bool(config.getoption("--whole")))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = sorted((item for item in items if item not in left_out), key=place)


def place(item: pytest.Item) -> int:
    """Where a test stands in the order: a slow file that begins last would be waited for."""
    name = item.path.relative_to(ROOT / "tests").as_posix()
    return next((number for number, part in enumerate(SLOWEST) if name.startswith(part)), len(SLOWEST))


@cache
def missing(engine: str) -> str | None:
    """Say why an engine cannot be used here, None when it can."""
    if engine == "local":
        return None
    if engine == "ssh":
        return sshd.missing() or None
    if engine == "chromium":
        return None if any(map(shutil.which, BROWSERS)) else f"there is no browser ({', '.join(BROWSERS)})"
    if engine == "podman":
        return podman_service.missing() or missing("docker")
    if engine == "nomad":
        return nomad.missing() or missing("docker")
    if engine == "singularity":
        found = shutil.which("apptainer") or shutil.which("singularity")
        return None if found else "there is neither apptainer nor singularity"
    if engine == "modal" and modal_servers.missing():
        return modal_servers.missing()  # its sandboxes are containers of Docker here
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
    """Turn a skip of a test that is marked with an engine into a failure when that is required, whatever the reason."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        for engine in REQUIRED & {"docker", "podman", "ssh", "singularity", "nomad", "modal"}:
            if item.get_closest_marker(engine):
                report.outcome = "failed"
                report.longrepr = f"engine {engine} is required, and this test was skipped: {report.longrepr}"
    return report


class Failures:
    """Tells of a failure as it happens: of a run that is ended from outside, nobody would see the summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Show why a test failed, and after how long."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_sep("_", f"{report.nodeid} failed after {report.duration:.0f} s ({report.when})")
            terminal.write_line(report.longreprtext)


@pytest.fixture(scope="module")
def ssh_server() -> Iterator[sshd.Server]:
    """An SSH server that lets the user of the tests in."""
    require_engine("ssh")
    with sshd.server() as server:
        yield server


@pytest.fixture(scope="module")
def nomad_agent() -> Iterator[nomad.Agent]:
    """A Nomad server that is its own node, with ACLs."""
    require_engine("nomad")
    with nomad.agent() as agent:
        yield agent


@pytest.fixture(scope="module")
def modal_server() -> Iterator[modal_servers.Server]:
    """A server that speaks Modal's protocol, for the client in this process and in those that it starts."""
    require_engine("modal")
    with modal_servers.server() as server, modal_servers.used(server):
        yield server


@pytest.fixture(scope="session")
def singularity_image() -> Callable[[str], str]:
    """A function from a test image to the path of its directory; it is made when it is not there."""

    @cache
    def image(name: str) -> str:
        require_engine("singularity")
        from tests.images.directories import ensure

        return str(ensure(name))

    return image


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
