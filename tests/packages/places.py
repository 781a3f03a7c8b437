"""Where a suite is run: as a user of this host and in a local slot, in a plain container and in one that is a slot."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docker import from_env

from hermes_exec import SandboxPool
from tests.packages.suites import Suite

LONGEST_S = 900
NOBODY = 65534
VARIABLES = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "TERM": "xterm"}
Verdicts = dict[str, str]
"""passed, failed or skipped, by the name of the test."""


def script(suite: Suite, tests: tuple[str, ...] = ()) -> str:
    """Shell text that runs a suite, or some tests of it, in the folder that has it."""
    asked = " ".join(f"'{test}'" for test in tests or suite.tests)
    options = " ".join(suite.options)
    return (
        "cd src && PYTHONPATH=$PWD/../site:$PWD/src:$PWD /usr/bin/python3 -m pytest -p no:cacheprovider --timeout 120"
        f" --junit-xml ../verdict.xml {options} {asked} </dev/null >../log 2>&1; tail -n 3 ../log"
    )


def parsed(report: str) -> Verdicts:
    """The verdicts of a JUnit report."""
    verdicts = {}
    for case in ET.fromstring(report).iter("testcase"):
        kinds = {child.tag for child in case}
        verdict = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        verdicts[f"{case.get('classname')}.{case.get('name')}"] = verdict
    return verdicts


def on_host(suite: Suite, folder: Path) -> Verdicts:
    """As an ordinary user of this host, with a home of its own."""
    with tempfile.TemporaryDirectory() as path:
        home = Path(path)
        for name in ("src", "site"):
            shutil.copytree(folder / name, home / name, symlinks=True)
        who: dict[str, Any] = {}
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", path], check=True)
            who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        (home / "tmp").mkdir()
        (home / "tmp").chmod(0o777)
        env = {"PATH": os.defpath, "HOME": path, "TMPDIR": f"{path}/tmp", "SHELL": "/bin/bash", **VARIABLES}
        command = ["bash", "-c", script(suite)]
        subprocess.run(command, cwd=path, env=env, start_new_session=True, timeout=LONGEST_S, check=True, **who)
        return parsed((home / "verdict.xml").read_text())


def in_container(suite: Suite, folder: Path, image: str) -> Verdicts:
    """In a plain container, by the engine's own exec."""
    client = from_env(timeout=LONGEST_S)
    container = client.containers.run(
        image, ["sleep", "3600"], detach=True, init=True, network_mode="none", volumes=[f"{folder}:/from:ro"]
    )
    try:
        text = f"mkdir -p /work/tmp && cp -r /from/src /from/site /work && cd /work && {script(suite)}"
        env = {"HOME": "/work", "TMPDIR": "/work/tmp", "SHELL": "/bin/bash", **VARIABLES}
        container.exec_run(["bash", "-c", text], environment=env)
        done = container.exec_run(["cat", "/work/verdict.xml"])
        assert isinstance(done.output, bytes)
        return parsed(done.output.decode())
    finally:
        container.remove(force=True, v=True)
        client.close()


@contextmanager
def _slot(image: str | None) -> Iterator[Any]:
    with (
        SandboxPool("docker", image=image, network=False) if image else SandboxPool("local") as pool,
        pool.slot() as slot,
    ):
        yield slot


def in_slot(suite: Suite, folder: Path, image: str | None = None) -> Verdicts:
    """In a slot: of a container with an image, else of this host."""
    with _slot(image) as slot:
        for name in ("src", "site"):
            slot.files.upload(folder / name, name)
        slot.run(script(suite), timeout_s=LONGEST_S, env={"SHELL": "/bin/bash", **VARIABLES}).check()
        return parsed(slot.files.read_text("verdict.xml", limit_bytes=1 << 24))
