"""The job of a box: a specification and a configuration in the words of Nomad's API."""

from __future__ import annotations

import math
import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any

from hermes_exec.backends.base import Labels, LaunchSpec, NoOwnRoot
from hermes_exec.backends.nomad.cluster import LOG, TASK
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.backends.owner import PREFIX, to_strings
from hermes_exec.backends.runner_binary import RunnerBinary
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.singularity.engine import OLDEST, Engine, Place, Start, command, limited
from hermes_exec.errors import ConfigError

HOME = "/local/hermes-exec"
"""Where the runner is in a container: on the disk of the node. To the node's own shell it is `$NOMAD_TASK_DIR/…`."""
BOUND = "/hermes-exec/runner"
BASE = f"{HOME}/box"
IMAGE = f"{PREFIX}image"
LEAST_MEMORY_MB, MEMORY_MB = 1024, 256
"""What a box reserves, and may use, where nothing is said: so much for each slot, and no less. Nomad has no task
without a limit."""
NS_PER_S = 10**9
POLL_S = 0.02
ARRIVAL_S = 30.0
"""How long a box waits for its runner, or for its lease if that is longer, before it ends by itself."""
HERE = "@here@"
"""Stands for the folder of a box until the node's shell knows it."""
IN_HOME = 'umask 022; mkdir -p "$NOMAD_TASK_DIR/hermes-exec" && cd "$NOMAD_TASK_DIR/hermes-exec" || exit; '
TAKE = f"""w=$PWD; {IN_HOME}echo "for $(uname -m)"; read n && head -c "$n" >part.$$ && chmod 755 part.$$ \\
&& mv part.$$ runner && r=$PWD/runner && {{up}}cd "$w" && exec "$r" here"""
"""Takes the runner from standard input, after its size: what is not whole is never in its place."""
UP = """until [ -S state/box/run/socket ]; do
[ -e runner ] && ! grep -qs FATAL "$NOMAD_ALLOC_DIR/hermes-exec.log" || exit 1; sleep 0.02; done; """
"""Waits on a node for what Apptainer has started, unless it says why not or the box is given up."""
WAIT = """sleep {limit_s} & limit=$!; until [ -x runner ]; do
kill -0 $limit 2>/dev/null || exit 1; sleep {poll_s} 2>/dev/null || sleep 1; done
kill $limit; wait $limit 2>/dev/null; """
"""What the main process does first where the runner is yet to come: it becomes the runner."""


def check_options(config: NomadConfig, spec: LaunchSpec) -> None:
    """Raise ConfigError for options that a box cannot have."""
    if not image_of(config, spec):
        raise ConfigError("the nomad backend needs an image: SandboxPool('nomad', image='…')")
    if not spec.network and config.docker.get("network_mode", "none") != "none":
        raise ConfigError(f"network=False and network_mode={config.docker['network_mode']!r} exclude each other")
    if spec.limits.disk_mb is not None and not spec.best_effort_limits:
        told = "limits.disk_mb cannot be enforced on a job: leave it out (resources.disk reserves it)"
        raise ConfigError(f"{told}, or say best_effort_limits=True")
    if config.resources.cores is not None and spec.limits.cpus is not None:
        raise ConfigError("limits.cpus and resources.cores exclude each other")


def check_own_roots(config: NomadConfig, spec: LaunchSpec) -> None:
    """Raise NoOwnRoot where slots cannot have roots of their own."""
    if spec.own_roots and config.driver == "docker" and not config.docker.get("privileged"):
        raise NoOwnRoot(
            "a container of Nomad's docker driver has no user namespaces, and parts of its /proc are hidden: with "
            "docker={'privileged': True}, where the nodes allow it, slots can have roots of their own"
        )


def program(config: NomadConfig, *argv: str, base: bool = False) -> list[str]:
    """What starts the runner in a task where it has arrived, in the one case with the base of that which serves."""
    if config.driver == "singularity":
        start = 'exec ./runner "$@" --base state/box' if base else f'{UP}exec ./runner "$@"'
        script = f'cd "$NOMAD_TASK_DIR/hermes-exec" || exit; {start}'
        return ["/bin/sh", "-c", script, "sh", *argv]
    path = BOUND if config.runner_delivery == "bind" else f"{HOME}/runner"
    return [path, *argv, *(["--base", BASE] * base)]


def taking(config: NomadConfig) -> list[str]:
    """What takes the runner in a task, unless it comes by itself, and says that it is there."""
    if config.runner_delivery != "exec":
        return program(config, "here")
    return ["/bin/sh", "-c", TAKE.format(up=UP if config.driver == "singularity" else "")]


def image_of(config: NomadConfig, spec: LaunchSpec) -> str:
    """The image's name; empty when none is given."""
    return spec.image or config.image or ""


def how_enforced(config: NomadConfig, spec: LaunchSpec) -> dict[str, str]:
    """How each limit of a box is enforced."""
    none = {"disk_mb"} if config.driver == "docker" or _limited(spec) else set(spec.limits.box())
    return {name: "not enforced" if name in none else "cgroup of the container" for name in spec.limits.box()}


def _limited(spec: LaunchSpec) -> bool:
    """Whether Apptainer is to make cgroups, which not all nodes have: only for limits that somebody asked for."""
    return bool(limited(spec)) and not set(spec.limits.box()) <= spec.default_limits


def job(
    config: NomadConfig, spec: LaunchSpec, labels: Labels, name: str, runner: RunnerBinary, mhz: int | None
) -> dict[str, Any]:
    """What is registered, once: a job that is there is not changed. `mhz` is what ``limits.cpus`` comes to."""
    task = {
        "Name": TASK,
        "KillSignal": "SIGKILL",
        "LogConfig": {"Disabled": True},
        "Resources": _resources(config, spec, mhz),
        "Artifacts": _artifacts(config, runner),
        **(_docker(config, spec, runner, mhz) if config.driver == "docker" else _raw_exec(config, spec, runner)),
    }
    group = {
        "Name": TASK,
        "Count": 1,
        "Tasks": [task],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        # A node that is away for a while keeps its box, as a lost stream does.
        "Disconnect": {"LostAfter": round(spec.lease_s * NS_PER_S), "Replace": False, "Reconcile": "keep_original"},
        "EphemeralDisk": {"SizeMB": config.resources.disk},
    }
    constraints = [{"LTarget": c.attribute, "Operand": c.operator, "RTarget": c.value} for c in config.constraints]
    made = {
        "ID": name,
        "Name": name,
        "Type": "batch",
        "Namespace": config.namespace,
        "Region": config.region,
        "Datacenters": list(config.datacenters),
        "NodePool": config.node_pool,
        "Priority": config.priority,
        "Constraints": constraints,
        "Meta": {**to_strings(labels), IMAGE: image_of(config, spec)},
        "TaskGroups": [group],
    }
    # A job of this name is never changed: that would end the box.
    job = {key: value for key, value in made.items() if value is not None}
    return {"Job": job, "EnforceIndex": True, "JobModifyIndex": 0}


def _resources(config: NomadConfig, spec: LaunchSpec, mhz: int | None) -> dict[str, Any]:
    wanted = config.resources
    devices = [{"Name": name, "Count": count} for name, count in config.devices.items()]
    memory = spec.limits.memory_mb or max(LEAST_MEMORY_MB, MEMORY_MB * spec.slots)
    values = {"MemoryMB": memory, "MemoryMaxMB": wanted.memory_max, "Cores": wanted.cores, "CPU": mhz}
    return {**{name: value for name, value in values.items() if value is not None}, "Devices": devices}


def asked_for(job: Mapping[str, Any]) -> dict[str, int]:
    """How much a job asks for, as the scheduler calls it, as far as it says so."""
    (group,) = job["TaskGroups"]
    resources = group["Tasks"][0]["Resources"]
    asked = {"memory": resources.get("MemoryMB"), "cpu": resources.get("CPU"), "cores": resources.get("Cores")}
    return {what: size for what, size in {**asked, "disk": group["EphemeralDisk"]["SizeMB"]}.items() if size}


def _docker(config: NomadConfig, spec: LaunchSpec, runner: RunnerBinary, mhz: int | None) -> dict[str, Any]:
    serve = ["serve", "--base", BASE, "--lease-s", str(spec.lease_s), "--log", f"/{LOG}", "--unset", "NOMAD_*"]
    start = ["/bin/sh", "-c", f'{_arrival(config, spec)}cd / && exec {HOME}/runner "$@"', "sh", *serve]
    options, volumes = dict(config.docker), list(config.volumes)
    if isinstance(login := options.get("auth"), dict) and "password" in login:
        options["auth"] = {**login, "password": login["password"].get_secret_value()}
    if config.runner_delivery == "bind":
        volumes.append(f"{config.runner_source or runner.path.resolve()}:{BOUND}:ro")
        start = [BOUND, *serve]
    if not spec.network:
        options["network_mode"] = "none"
    if mhz is not None:
        options["cpu_hard_limit"] = True
    if spec.box_pids is not None:
        options["pids_limit"] = spec.box_pids
    options |= {"image": image_of(config, spec), "image_pull_timeout": f"{round(spec.pull_timeout_s)}s"}
    options |= {"entrypoint": start[:1], "args": start[1:], "volumes": volumes}
    return {"Driver": "docker", "User": config.user or "0:0", "Env": config.env, "Config": options}


def _raw_exec(config: NomadConfig, spec: LaunchSpec, runner: RunnerBinary) -> dict[str, Any]:
    """Apptainer, started by the agent's user, which is root: a shell makes the folders, and leaves out mounts of what
    this node does not have.
    """
    made: list[str] = []

    def make(name: str) -> str:
        made.append(name)
        return f"{HERE}/{name}"

    place = Place(HERE, secrets.token_hex(4), 0, make, lambda _: True)
    engine, image = Engine(config.binary, "apptainer", OLDEST["apptainer"]), image_of(config, spec)
    start = Start(engine, image, f"{HERE}/runner", True, _limited(spec))
    options = SingularityConfig(volumes=config.volumes, gpus="all" if config.gpus else None)
    argv = command(options, spec, start, place)
    lines = ["set --"]
    for word in (word for word in argv if word != "--until-stdin-ends"):
        optional = re.fullmatch(r"type=bind,source=.*,destination=(/(?:proc|sys)/[^,]*),readonly", word)
        if optional is None:
            lines.append(f'set -- "$@" {shlex.quote(word)}')
        else:
            lines[-1] = f'[ ! -e {optional[1]} ] || set -- "$@" --mount {shlex.quote(word)}'
    hosts = "cp /etc/hosts hosts" if spec.network else "echo 127.0.0.1 localhost >hosts"
    source = config.runner_source or str(runner.path.resolve())
    bound = f"ln -sf {shlex.quote(source)} runner && " * (config.runner_delivery == "bind")
    script = f"{_arrival(config, spec)}{bound}mkdir -p {' '.join(made)} && {hosts} || exit\n"
    script += "\n".join(lines).replace(HERE, '"$PWD"') + '\nexec "$@" 2>"$NOMAD_ALLOC_DIR/hermes-exec.log"'
    env = {f"APPTAINERENV_{name}": value for name, value in config.env.items()}
    return {"Driver": "raw_exec", "Env": env, "Config": {"command": "/bin/sh", "args": ["-c", script]}}


def _arrival(config: NomadConfig, spec: LaunchSpec) -> str:
    """What a shell does until the runner is there."""
    if config.runner_delivery == "exec":
        return IN_HOME + WAIT.format(limit_s=math.ceil(max(spec.lease_s, ARRIVAL_S)), poll_s=POLL_S)
    return IN_HOME + "chmod 755 runner; " * (config.runner_delivery == "artifact")


def _artifacts(config: NomadConfig, runner: RunnerBinary) -> list[dict[str, Any]]:
    if config.runner_delivery != "artifact":
        return []
    options = {"checksum": f"sha256:{runner.sha256}"}
    source = {"GetterSource": config.runner_source, "GetterMode": "file", "GetterOptions": options}
    return [{**source, "RelativeDest": "local/hermes-exec/runner"}]
