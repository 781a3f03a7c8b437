"""Tasks in harbor's format, written to a directory."""

from __future__ import annotations

from pathlib import Path


def write_task(
    directory: Path, name: str, *, environment: str, solve: str, check: str, more: str = "", dockerfile: str = ""
) -> Path:
    """Write a task that is solved by the commands `solve`, and checked by the command `check`."""
    task = directory / name
    parts = {
        "task.toml": f'schema_version = "1.4"\n{more}\n[agent]\ntimeout_sec = 60\n[environment]\n{environment}\n',
        "instruction.md": f"Solve {name}.\n",
        "solution/solve.sh": f"#!/bin/sh\nset -e\n{solve}\n",
        "tests/test.sh": f"#!/bin/sh\nif {check}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    }
    if dockerfile:
        parts["environment/Dockerfile"] = dockerfile
    for path, text in parts.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    (task / "environment").mkdir(exist_ok=True)
    return task


def write_numbered_tasks(directory: Path, image: str, count: int) -> None:
    """Write tasks whose answer is their number."""
    for number in range(count):
        write_task(
            directory,
            f"task{number:02}",
            environment=f'docker_image = "{image}"',
            solve=f"echo {number} > /tmp/answer",
            check=f"grep -qx {number} /tmp/answer",
        )


def write_tasks(directory: Path, image: str) -> dict[str, Path]:
    """Write one task for each ability that tasks of harbor use."""
    prebuilt = f'docker_image = "{image}"'
    tasks = {
        "workdir": write_task(
            directory,
            "workdir",
            environment="",
            dockerfile=f"FROM {image}\nWORKDIR /srv/app\nRUN echo seed > seed.txt\n",
            solve='test "$PWD" = /srv/app\ncat seed.txt > answer.txt',
            check='[ "$PWD" = /srv/app ] && grep -q seed answer.txt',
        ),
        "artifacts": write_task(
            directory,
            "artifacts",
            more='artifacts = [{source = "/srv/work", exclude = ["*.log"]}]',
            environment=f'{prebuilt}\nworkdir = "/srv/work"',
            solve="echo kept > kept.txt; echo dropped > x.log; ln -s kept.txt link; mkfifo pipe",
            check="grep -q kept /srv/work/kept.txt",
        ),
        "users": write_task(
            directory,
            "users",
            more='[verifier]\nuser = "root"',
            environment=f'{prebuilt}\n[environment.env]\nGREETING = "hello"',
            solve='id -un > /tmp/who; echo "$GREETING" > /tmp/greeting; touch ~/home-is-mine',
            check='[ "$(id -u)" = 0 ] && grep -q daemon /tmp/who && grep -q hello /tmp/greeting',
        ),
        "limits": write_task(
            directory,
            "limits",
            environment=f'{prebuilt}\nmemory_mb = 96\ncpus = 0.5\nnetwork_mode = "no-network"',
            solve="head -c 300m /dev/zero | tail -c 250m > /dev/null || echo killed > /tmp/memory",
            check="grep -q killed /tmp/memory && ! ls /sys/class/net | grep -q eth0",
        ),
        "verifier": write_task(
            directory,
            "verifier",
            more='artifacts = ["/srv/work/answer.txt"]\n[verifier]\nenvironment_mode = "separate"',
            environment=f'{prebuilt}\nworkdir = "/srv/work"',
            solve="echo 42 > answer.txt; echo left > /tmp/left-here",
            check="grep -q 42 /srv/work/answer.txt && [ ! -e /tmp/left-here ]",
        ),
    }
    agent = (tasks["users"] / "task.toml").read_text().replace("[agent]\n", '[agent]\nuser = "daemon"\n')
    (tasks["users"] / "task.toml").write_text(agent)
    return tasks
