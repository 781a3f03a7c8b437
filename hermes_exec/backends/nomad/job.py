"""The job of a sandbox: a specification and a configuration in terms of Nomad's API."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any

from hermes_exec.backends.base import Labels, LaunchSpec, NoOwnRoot, network_owner, volume_arguments
from hermes_exec.backends.nomad.cluster import TASK, TASK_DIRECTORY
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.backends.nomad.delivery import BOUND, FETCHED, STATE, artifacts, delivery_script, runner_directory
from hermes_exec.backends.owner import PREFIX, to_strings
from hermes_exec.backends.runner_binary import RunnerBinary
from hermes_exec.backends.singularity.command import LaunchSite, StartPlan, launch_command, limit_options
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.singularity.engine import OLDEST, SingularityEngine
from hermes_exec.errors import ConfigError

HIDDEN = "/sys/firmware"
"""Mount point of the node's directories of a task, which accept set-uid programs and device nodes. The engine mounts an
empty file system over it after all others, so that no process in the container reaches them.
"""
DIRECTORIES = {"ALLOC": HIDDEN, "TASK": f"{HIDDEN}/data", "SECRETS": f"{HIDDEN}/tmp"}
USUAL_DIRECTORIES = ("/alloc", "/local", "/secrets")
"""The usual mount points, for runtimes that may have no such file system."""
IMAGE = f"{PREFIX}image"
LEAST_MEMORY_MB, MEMORY_MB = 1024, 256
"""Memory that a sandbox reserves and may use by default: the second for each slot, but at least the first. Nomad has no
task without a limit.
"""
NS_PER_S = 10**9
KILL_S = 25
"""How long the runner of an ended job may remove leftovers of its slots, because Nomad cannot."""
HERE = "@here@"
"""Placeholder for the directory of a sandbox, which only the node's shell knows."""


def check_options(config: NomadConfig, spec: LaunchSpec) -> None:
    """Raise ConfigError for options that a sandbox cannot have."""
    if not image_of(config, spec):
        raise ConfigError("the nomad backend needs an image: SandboxPool('nomad', image='…')")
    if not spec.network and config.docker.get("network_mode", "none") != "none":
        raise ConfigError(f"network=False and network_mode={config.docker['network_mode']!r} exclude each other")
    if spec.limits.disk_mb is not None and not spec.best_effort_limits:
        problem = "limits.disk_mb cannot be enforced on a job: leave it out (resources.disk reserves it)"
        raise ConfigError(f"{problem}, or set best_effort_limits=True")
    if config.resources.cores is not None and spec.limits.cpus is not None:
        raise ConfigError("limits.cpus and resources.cores exclude each other")


def check_own_roots(config: NomadConfig, spec: LaunchSpec) -> None:
    """Raise NoOwnRoot if slots cannot have their own roots."""
    if spec.own_roots and config.driver == "docker" and not config.docker.get("privileged"):
        raise NoOwnRoot(
            "a container of Nomad's docker driver has no user namespaces, and parts of its /proc are hidden: with "
            "docker={'privileged': True}, where the nodes allow it, slots can have roots of their own"
        )


def hides_directories(config: NomadConfig) -> bool:
    """Return whether the runtime of a container is known to hide HIDDEN."""
    return config.docker.get("runtime", "runc") in {"runc", "crun"}


def image_of(config: NomadConfig, spec: LaunchSpec) -> str:
    """Return the image's name, or "" if none is set."""
    return spec.image or config.image or ""


def limit_enforcement(config: NomadConfig, spec: LaunchSpec) -> dict[str, str]:
    """Return how each limit of a sandbox is enforced."""
    by_cgroup = {"cpus", "memory_mb", "pids"} if config.driver == "docker" or _needs_cgroups(spec) else set()
    return {name: "cgroup of the container" if name in by_cgroup else "not enforced" for name in spec.limits.total()}


def _needs_cgroups(spec: LaunchSpec) -> bool:
    """Return whether Apptainer should make cgroups. Not all nodes have them, so only explicit limits need them."""
    return bool(limit_options(spec)) and not set(spec.limits.total()) <= spec.default_limits


def job_specification(
    config: NomadConfig, spec: LaunchSpec, labels: Labels, name: str, runner: RunnerBinary, mhz: int | None
) -> dict[str, Any]:
    """Return the job to register. It is registered once; an existing job is never changed. `mhz` is `limits.cpus` in
    MHz.
    """
    task = {
        "Name": TASK,
        "KillSignal": "SIGTERM",
        "KillTimeout": KILL_S * NS_PER_S,
        "LogConfig": {"Disabled": True},
        "Resources": _resources(config, spec, mhz),
        "Artifacts": artifacts(config, runner),
        **(_docker(config, spec, runner, mhz) if config.driver == "docker" else _raw_exec(config, spec, runner)),
    }
    group = {
        "Name": TASK,
        "Count": 1,
        "Tasks": [task],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        # A node that is away for a while keeps its sandbox.
        "Disconnect": {"LostAfter": round(spec.lease_s * NS_PER_S), "Replace": False, "Reconcile": "keep_original"},
        "EphemeralDisk": {"SizeMB": config.resources.disk},
    }
    constraints = [{"LTarget": c.attribute, "Operand": c.operator, "RTarget": c.value} for c in config.constraints]
    fields = {
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
    # An existing job of this name is never changed, because a change would end the sandbox.
    job = {key: value for key, value in fields.items() if value is not None}
    return {"Job": job, "EnforceIndex": True, "JobModifyIndex": 0}


def _resources(config: NomadConfig, spec: LaunchSpec, mhz: int | None) -> dict[str, Any]:
    wanted = config.resources
    devices = [{"Name": name, "Count": count} for name, count in config.devices.items()]
    memory = spec.limits.memory_mb or max(LEAST_MEMORY_MB, MEMORY_MB * spec.slots)
    values = {"MemoryMB": memory, "MemoryMaxMB": wanted.memory_max, "Cores": wanted.cores, "CPU": mhz}
    return {**{name: value for name, value in values.items() if value is not None}, "Devices": devices}


def resource_request(job: Mapping[str, Any]) -> dict[str, int]:
    """Return the amounts that a job requests, by the scheduler's names."""
    (group,) = job["TaskGroups"]
    resources = group["Tasks"][0]["Resources"]
    requested = {
        "memory": resources.get("MemoryMB"),
        "cpu": resources.get("CPU"),
        "cores": resources.get("Cores"),
        "disk": group["EphemeralDisk"]["SizeMB"],
    }
    return {name: size for name, size in requested.items() if size}


def _docker(config: NomadConfig, spec: LaunchSpec, runner: RunnerBinary, mhz: int | None) -> dict[str, Any]:
    base, hidden = runner_directory(config), hides_directories(config)
    serve = ["serve", "--base", f"{base}/base", "--lease-s", str(spec.lease_s), "--unset", "NOMAD_*"]
    for directory in (HIDDEN,) if hidden else USUAL_DIRECTORIES:
        serve += ["--hide", directory]
    if (owner := network_owner(config.docker.get("network_mode"))) is not None:
        serve += ["--network-of", owner]
    serve += volume_arguments(config.volumes)
    if config.runner_delivery == "bind":
        start = [BOUND, *serve]
    else:
        start = [
            "/bin/sh",
            "-c",
            f'{delivery_script(config, spec, runner)}cd / && exec {base}/runner "$@"',
            "sh",
            *serve,
        ]
    options = _docker_options(config, spec, mhz)
    options |= {"image": image_of(config, spec), "image_pull_timeout": f"{round(spec.pull_timeout_s)}s"}
    options |= {"entrypoint": start[:1], "args": start[1:], "volumes": _docker_volumes(config, runner)}
    env = dict(config.env)
    if hidden:
        env |= {f"NOMAD_{name}_DIR": path for name, path in DIRECTORIES.items()}
    return {"Driver": "docker", "User": config.user or "0:0", "Env": env, "Config": options}


def _docker_options(config: NomadConfig, spec: LaunchSpec, mhz: int | None) -> dict[str, Any]:
    """Return the options of a container from the configuration and the limits."""
    options = dict(config.docker)
    if options.get("readonly_rootfs") and not options.get("privileged"):
        target = STATE if runner_directory(config) == STATE else "/tmp"
        options["mount"] = [*options.get("mount", ()), {"type": "volume", "target": target}]
    if "mknod" not in (name.lower() for name in options.get("cap_add", ())):
        options["cap_drop"] = [*options.get("cap_drop", ()), "mknod"]
    login = options.get("auth")
    if isinstance(login, dict) and "password" in login:
        options["auth"] = {**login, "password": login["password"].get_secret_value()}
    if not spec.network:
        options["network_mode"] = "none"
    if mhz is not None:
        options["cpu_hard_limit"] = True
    if spec.sandbox_pids is not None:
        options["pids_limit"] = spec.sandbox_pids
    return options


def _docker_volumes(config: NomadConfig, runner: RunnerBinary) -> list[str]:
    volumes = list(config.volumes)
    if config.docker.get("privileged"):
        volumes.append(f"{TASK_DIRECTORY}:{STATE}")  # in the task's directory: an overlay cannot lie on another overlay
    if config.runner_delivery == "artifact":
        volumes.append(f"local/{TASK_DIRECTORY}:{FETCHED}:ro")
    if config.runner_delivery == "bind":
        volumes.append(f"{config.runner_source or runner.path.resolve()}:{BOUND}:ro")
    return volumes


def _raw_exec(config: NomadConfig, spec: LaunchSpec, runner: RunnerBinary) -> dict[str, Any]:
    """Return a task that starts Apptainer as the agent's user, which is root.

    A shell makes the directories, and omits mounts of paths that the node does not have.
    """
    directories: list[str] = []

    def make(name: str) -> str:
        directories.append(name)
        return f"{HERE}/{name}"

    site = LaunchSite(HERE, secrets.token_hex(4), 0, make, lambda _: True)
    engine, image = SingularityEngine(config.binary, "apptainer", OLDEST["apptainer"]), image_of(config, spec)
    start = StartPlan(engine, image, f"{HERE}/runner", True, _needs_cgroups(spec))
    options = SingularityConfig(volumes=config.volumes, gpus="all" if config.gpus else None)
    argv = launch_command(options, spec, start, site)
    argv.remove("--until-stdin-ends")
    lines = ["set --"]
    for word in argv:
        optional = re.fullmatch(r"type=bind,source=.*,destination=(/(?:proc|sys)/[^,]*),readonly", word)
        if optional is None:
            lines.append(f'set -- "$@" {shlex.quote(word)}')
        else:
            lines[-1] = f'[ ! -e {optional[1]} ] || set -- "$@" --mount {shlex.quote(word)}'
    hosts = "cp /etc/hosts hosts" if spec.network else "echo 127.0.0.1 localhost >hosts"
    script = f"{delivery_script(config, spec, runner)}mkdir -p {' '.join(directories)} && {hosts} || exit\n"
    script += "\n".join(lines).replace(HERE, '"$PWD"') + '\nexec "$@" 2>log'
    env = {f"APPTAINERENV_{name}": value for name, value in config.env.items()}
    return {"Driver": "raw_exec", "Env": env, "Config": {"command": "/bin/sh", "args": ["-c", script]}}
