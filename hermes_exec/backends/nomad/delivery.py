"""Delivery of the runner into a task: the shell commands for it, and the command that starts it there."""

from __future__ import annotations

import math
import shlex
from typing import Any

from hermes_exec.backends.base import LaunchSpec
from hermes_exec.backends.nomad.cluster import TASK_DIRECTORY
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.backends.runner_binary import RunnerBinary

STATE = "/hermes-exec/state"
BOUND, FETCHED = "/hermes-exec/runner", "/hermes-exec/artifact"
ROOT = (None, "0", "0:0", "root", "root:root")
POLL_S = 0.02
NOT_EXECUTABLE = 126
"""Exit code of a shell that may not execute a program."""
DELIVERY_TIMEOUT_S = 30.0
"""How long a sandbox waits for its runner before it ends by itself; or for its lease, if that is longer."""
ON_NODE = '"$(dirname "$NOMAD_TASK_DIR")"'
IN_PLACE = "umask 066; mkdir -p {place} && cd {place} || exit; umask 022; "
CLOSED = f"""umask 077; cd {ON_NODE} && chown 0:0 . && chmod 700 . && mkdir -p {TASK_DIRECTORY} \\
&& [ ! -L {TASK_DIRECTORY} ] && [ -O {TASK_DIRECTORY} ] && cd {TASK_DIRECTORY} || exit; umask 022; """
"""Nomad lets each user of the node write to the directory of a task: it is closed, and files of others are not used."""
TAKE = """w=$PWD; {there}echo "for $(uname -m)"; read n && head -c "$n" >part.$$ && chmod 755 part.$$ \\
&& mv part.$$ runner && r=$PWD/runner && {up}cd "$w" && exec "$r" here"""
"""Receives the runner from standard input, after its size. An incomplete runner is never moved into place."""
COPY = """cp {source} part && echo '{sha256}  part' | sha256sum -c >&2 && chmod 755 part && mv part runner || exit; """
"""Copies the runner from a path where others may have exchanged it."""
UP = """until [ -S state/base/run/socket ]; do
[ -e runner ] && ! grep -qs FATAL log || exit 1; sleep 0.02; done; """
"""Waits on a node until Apptainer's sandbox serves, unless its log has an error or the sandbox is given up."""
NOEXEC = "no program can run in the directory of a task, because Nomad's data_dir is mounted noexec on this node"
TRY = f"""./runner version >/dev/null 2>&1 || {{ echo "FATAL: {NOEXEC}" >log; exit {NOT_EXECUTABLE}; }}
"""
"""Ends a task on a node where the runner cannot be executed."""
WAIT = """trap 'exit 1' TERM; sleep {limit_s} & limit=$!; until [ -e runner ]; do
kill -0 $limit 2>/dev/null || exit 1; sleep {poll_s} 2>/dev/null || sleep 1; done
kill $limit; wait $limit 2>/dev/null; """
"""First commands of the main process if the runner is yet to come. The process becomes the runner."""


def runner_command(config: NomadConfig, *argv: str, base: bool = False) -> list[str]:
    """Return the command for the runner in a task after its delivery. With `base` it connects to the serving runner."""
    if config.driver == "singularity":
        start = 'exec ./runner "$@" --base state/base' if base else f'{UP}exec ./runner "$@"'
        return ["/bin/sh", "-c", f"cd {ON_NODE}/{TASK_DIRECTORY} || exit; {start}", "sh", *argv]
    directory = runner_directory(config)
    command = [BOUND if config.runner_delivery == "bind" else f"{directory}/runner", *argv]
    return [*command, "--base", f"{directory}/base"] if base else command


def runner_directory(config: NomadConfig) -> str:
    """Return the directory of the runner in a container. Other users there cannot exchange its files."""
    return STATE if config.user in ROOT else "/tmp/hermes-exec"


def receive_command(config: NomadConfig) -> list[str]:
    """Return the command that receives the runner in a task, unless it comes by itself, and reports that it is
    there.
    """
    if config.runner_delivery != "exec":
        return runner_command(config, "here")
    return [
        "/bin/sh",
        "-c",
        TAKE.format(there=_enter_directory(config), up=UP if config.driver == "singularity" else ""),
    ]


def _enter_directory(config: NomadConfig) -> str:
    return CLOSED if config.driver == "singularity" else IN_PLACE.format(place=runner_directory(config))


def _try_runner(config: NomadConfig) -> str:
    return TRY if config.driver == "singularity" else ""


def delivery_script(config: NomadConfig, spec: LaunchSpec, runner: RunnerBinary) -> str:
    """Return the shell commands that run until the runner is there."""
    if config.runner_delivery == "exec":
        wait = WAIT.format(limit_s=math.ceil(max(spec.lease_s, DELIVERY_TIMEOUT_S)), poll_s=POLL_S)
        return _enter_directory(config) + wait + _try_runner(config)
    source = config.runner_source or str(runner.path.resolve())
    if config.runner_delivery == "artifact":
        source = f"../local/{TASK_DIRECTORY}/runner" if config.driver == "singularity" else f"{FETCHED}/runner"
    copy = COPY.format(source=shlex.quote(source), sha256=runner.sha256)
    return _enter_directory(config) + copy + _try_runner(config)


def artifacts(config: NomadConfig, runner: RunnerBinary) -> list[dict[str, Any]]:
    """Return the files that the node fetches for a task."""
    if config.runner_delivery != "artifact":
        return []
    options = {"checksum": f"sha256:{runner.sha256}"}
    source = {"GetterSource": config.runner_source, "GetterMode": "file", "GetterOptions": options}
    return [{**source, "RelativeDest": f"local/{TASK_DIRECTORY}/runner"}]
