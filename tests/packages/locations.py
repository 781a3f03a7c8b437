"""Where a suite is run: outside of slots, as a user of this host and in plain containers, and in slots of these."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError

from docker import from_env

from hermes_exec import LocalConfig, SandboxPool, blocking
from tests.packages.report import Report, parsed
from tests.packages.suites import Suite

LONGEST_S = 1200
NOBODY = 65534
VARIABLES = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "SHELL": "/bin/bash", "TERM": "xterm"}


class NoReport(Exception):
    """Raised when a suite did not come to its end; the message has what it printed last."""


class Work(NamedTuple):
    """A suite with the directory that has it, the image of containers, and the tests that are asked for (default:
    all).
    """

    suite: Suite
    directory: Path
    image: str
    tests: tuple[str, ...] = ()

    @property
    def directories(self) -> tuple[str, str]:
        """What has to be brought: the sources, and what is installed."""
        return self.suite.name, "site"

    @property
    def script(self) -> str:
        """Shell text that installs the package beside its tools and runs its tests, where the directories are."""
        # Without -s pytest takes away the input, whatever it is.
        options = ["-s"] if self.suite.terminal else []
        words = shlex.join([*options, *self.suite.options, *(self.tests or self.suite.tests)])
        begin = "stty rows 24 columns 80" if self.suite.terminal else "exec </dev/null"
        return (
            f"{begin}; exec >log 2>&1; set -e; /usr/bin/python3 -m venv --without-pip venv;"
            " cp -R site/. venv/lib/python3*/site-packages/;"
            f" export PATH=$PWD/venv/bin:$PATH; cd {self.suite.name}; set +e;"
            " python -m pytest -p no:cacheprovider --timeout 120 -o junit_family=xunit1 --junit-xml ../report.xml"
            f" {words}; echo $? >../ended"
        )


class Place(NamedTuple):
    """One way to run a suite."""

    title: str
    run: Callable[[Work], Report]


def report_of(read: Callable[[str], str]) -> Report:
    """The report, if pytest came to its end: 0 says that all passed, 1 that some failed, all else that it gave up."""
    try:
        ended = read("ended").strip()
        if ended in ("0", "1"):
            return parsed(read("report.xml"))
    except (OSError, ParseError) as error:
        ended = str(error)
    raise NoReport(f"pytest ended with {ended}: " + "\n".join(read("log").splitlines()[-20:]))


def on_host(work: Work) -> Report:
    """As an ordinary user of this host, with a home of its own."""
    with tempfile.TemporaryDirectory() as path:
        home = Path(path)
        for name in work.directories:
            shutil.copytree(work.directory / name, home / name, symlinks=True)
        (home / "tmp").mkdir()
        env = {"PATH": os.defpath, "HOME": path, "TMPDIR": f"{path}/tmp", **VARIABLES}
        user = None
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", path], check=True)
            user = NOBODY
        run = on_terminal if work.suite.terminal else without_terminal
        run(["bash", "-c", work.script], path, env, user)
        return report_of(lambda name: (home / name).read_text(errors="replace"))


def _started(directory: str, env: dict[str, str], user: int | None) -> dict[str, Any]:
    """Where and as whom a process is started, as `subprocess` takes it."""
    groups = None if user is None else ()
    return {"cwd": directory, "env": env, "user": user, "group": user, "extra_groups": groups}


def without_terminal(command: list[str], directory: str, env: dict[str, str], user: int | None) -> None:
    """Run it in a session of its own, without input."""
    subprocess.run(
        command,
        **_started(directory, env, user),
        start_new_session=True,
        timeout=LONGEST_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def on_terminal(command: list[str], directory: str, env: dict[str, str], user: int | None) -> None:
    """Run it in a session of its own that has a terminal."""
    ours, theirs = os.openpty()
    try:
        if user is not None:
            os.fchown(theirs, user, user)
        process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            **_started(directory, env, user),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
    finally:
        os.close(theirs)
    try:
        process.wait(LONGEST_S)
    finally:
        os.close(ours)


def in_container(work: Work) -> Report:
    """In a plain container, by the engine's own exec, as root."""
    return _in_container(work, "root")


def in_container_as_user(work: Work) -> Report:
    """In a plain container, by the engine's own exec, as an ordinary user."""
    return _in_container(work, "tester")


def _in_container(work: Work, user: str) -> Report:
    client = from_env(timeout=LONGEST_S)
    container = client.containers.run(
        work.image,
        ["sleep", str(2 * LONGEST_S)],
        detach=True,
        auto_remove=True,
        init=True,
        network_mode="none",
        volumes=[f"{work.directory}:/from:ro"],
    )
    try:
        prepare = (
            f"mkdir -p /suite/tmp && cd /from && cp -R {' '.join(work.directories)} /suite && chown -R {user} /suite"
        )
        assert container.exec_run(["bash", "-c", prepare]).exit_code == 0
        env = {"HOME": "/suite", "TMPDIR": "/suite/tmp", **VARIABLES}
        container.exec_run(
            ["bash", "-c", work.script], environment=env, user=user, workdir="/suite", tty=work.suite.terminal
        )

        def read(name: str) -> str:
            done = container.exec_run(["cat", f"/suite/{name}"])
            if done.exit_code:
                raise FileNotFoundError(name)
            assert isinstance(done.output, bytes)
            return done.output.decode(errors="replace")

        return report_of(read)
    finally:
        container.remove(force=True, v=True)
        client.close()


def in_local_slot(work: Work) -> Report:
    """In a slot of this host."""
    with SandboxPool(LocalConfig()) as pool:
        return _in_slot(work, pool)


def in_docker_slot(work: Work) -> Report:
    """In a slot that has its container for itself."""
    with SandboxPool("docker", image=work.image, network=False) as pool:
        return _in_slot(work, pool)


def in_shared_docker_slot(work: Work) -> Report:
    """In one of several slots of a container."""
    with SandboxPool("docker", image=work.image, network=False, slots_per_sandbox=4) as pool:
        return _in_slot(work, pool)


def _in_slot(work: Work, pool: blocking.SandboxPool) -> Report:
    with pool.slot() as slot:
        for name in work.directories:
            slot.files.upload(work.directory / name, name)
        if work.suite.terminal:
            slot.spawn(work.script, pty=True, env=VARIABLES).wait(timeout_s=LONGEST_S)
        else:
            slot.run(work.script, timeout_s=LONGEST_S, env=VARIABLES)
        return report_of(lambda name: slot.files.read_text(name, limit_bytes=1 << 24))


class Pair(NamedTuple):
    """A level of isolation, and what its slots are compared with: where the same user would run without us."""

    name: str
    outside: Place
    inside: Place


PAIRS = (
    Pair("local", Place("this host, ordinary user", on_host), Place("slot on `local`", in_local_slot)),
    Pair("docker", Place("container, root", in_container), Place("slot in Docker, `exclusive`", in_docker_slot)),
    Pair(
        "docker-shared",
        Place("container, ordinary user", in_container_as_user),
        Place("slot in Docker, `uid`", in_shared_docker_slot),
    ),
)
