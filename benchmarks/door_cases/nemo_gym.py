"""NeMo Gym: a sandbox with ten commands, and a command alone, beside its Apptainer. Version 0.4.0 has no Docker."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nemo_gym.sandbox import Sandbox, SandboxSpec

from benchmarks.door_cases.turns import measure

IMAGE = sys.argv[1]
OURS: dict[str, Any] = {"hermes": {"backend": "docker", "slots_per_sandbox": 8}}
THEIRS: dict[str, Any] = {"apptainer": {"create": {"extra_start_args": ["--writable-tmpfs"]}}}


def build(directory: Path) -> None:
    """Build an image of Apptainer, `image` in the directory, from the image of Docker."""
    archive = directory / "image.tar"
    subprocess.run(["docker", "save", "-o", archive, IMAGE], check=True)
    command = ["apptainer", "--quiet", "build", "--sandbox", f"{directory}/image", f"docker-archive:{archive}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def use(provider: dict[str, Any], image: str) -> None:
    """Run ten commands in a sandbox of its own."""
    with Sandbox(provider, SandboxSpec(image=image)) as sandbox:
        sandbox.start()
        for number in range(10):
            assert sandbox.exec(f"echo {number}").stdout == f"{number}\n"


with tempfile.TemporaryDirectory() as made:
    build(Path(made))
    directory = f"{made}/image"
    with Sandbox(OURS, SandboxSpec(image=IMAGE)) as ours, Sandbox(THEIRS, SandboxSpec(image=directory)) as theirs:
        ours.start()
        theirs.start()
        measure("a command", lambda: ours.exec("echo hi"), lambda: theirs.exec("echo hi"), 20)
    measure("a sandbox with ten commands", lambda: use(OURS, IMAGE), lambda: use(THEIRS, directory), 5)
