"""Arguments of a container: a spec and a configuration in terms of Docker's API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_exec.backends.base import Labels, LaunchSpec, NoOwnRoot, network_owner, volume_arguments
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.dial_socket import SOCKET, DialSocket
from hermes_exec.backends.dockerfile import directory_of
from hermes_exec.backends.owner import PREFIX, to_strings
from hermes_exec.config.model import volume_parts
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from docker import DockerClient

HOME = "/hermes-exec"
STATE_DIR = f"{HOME}/state"
BASE_DIR = f"{STATE_DIR}/base"
RUNNER = f"{STATE_DIR}/runner"
DIAL_DIR = f"{HOME}/dial"
LEAST_MEMORY_MB = 8
"""With less, the kernel kills the runner or every command (7 MB measured with a tiny image). Docker's own minimum
is 6.
"""
LOG_BYTES = "1m"
SECCOMP_PROFILE = Path(__file__).with_name("seccomp.json")
"""The seccomp profile of containers whose slots have their own roots."""
SAME_NAME_OPTIONS = (
    "cap_add",
    "cap_drop",
    "cpuset_cpus",
    "devices",
    "dns",
    "extra_hosts",
    "oom_kill_disable",
    "privileged",
    "read_only",
    "runtime",
    "sysctls",
    "tmpfs",
)
"""Options with the same name in the engine."""
NAME_LABEL = f"{PREFIX}name"


class ContainerPlan(NamedTuple):
    """Arguments of create_container, and how each limit is enforced."""

    name: str
    arguments: dict[str, Any]
    limits: dict[str, str]


def check_options(config: DockerConfig, spec: LaunchSpec) -> None:
    """Raise ConfigError for options that a container cannot have."""
    if not image_of(config, spec):
        raise ConfigError("the docker backend needs an image: SandboxPool('docker', image='…')")
    directory_of(image_of(config, spec))
    if not spec.network and config.network_mode not in {None, "none"}:
        raise ConfigError(f"network=False and network_mode={config.network_mode!r} exclude each other")
    if spec.limits.memory_mb is not None and spec.limits.memory_mb < LEAST_MEMORY_MB:
        raise ConfigError(
            f"limits.memory_mb={spec.limits.memory_mb} leaves no room beside the runner of a container: give it"
            f" {LEAST_MEMORY_MB} at the least"
        )
    if spec.limits.disk_mb is not None and not spec.best_effort_limits:
        raise ConfigError(
            "limits.disk_mb cannot be enforced on a container: set slot_limits.disk_mb with"
            " slots_per_sandbox=2 or more, or best_effort_limits=True"
        )


def check_own_roots(config: DockerConfig, engine_options: list[str]) -> None:
    """Raise NoOwnRoot if an AppArmor profile of the engine would refuse the mounts for own roots."""
    chosen = config.privileged or any(option.startswith("apparmor") for option in config.security_opt)
    if any("name=apparmor" in option for option in engine_options) and not chosen:
        raise NoOwnRoot(
            "the engine's AppArmor profile docker-default refuses the mounts for own roots: with "
            "security_opt=('apparmor=unconfined',) slots can have roots of their own"
        )


def base_of(config: DockerConfig) -> str:
    """Return the runner's own directory."""
    return f"{BASE_DIR}/own" if config.user else BASE_DIR


def image_of(config: DockerConfig, spec: LaunchSpec) -> str:
    """Return the image's name, or "" if none is set."""
    return spec.image or config.image or ""


def limit_enforcement(spec: LaunchSpec) -> dict[str, str]:
    """Return how each limit of a sandbox is enforced on a container. Slots enforce limits of a single process
    themselves.
    """
    return {name: "not enforced" if name == "disk_mb" else "cgroup of the container" for name in spec.limits.total()}


def plan_container(
    client: DockerClient,
    config: DockerConfig,
    spec: LaunchSpec,
    labels: Labels,
    name: str,
    mounts: list[dict[str, Any]],
    dial_socket: DialSocket | None = None,
    *,
    podman: bool = False,
) -> ContainerPlan:
    """Return all arguments of the container.

    `mounts` bring the runner, which connects to the driver by `dial_socket` if there is one.
    """
    command = ["serve", "--base", base_of(config), "--lease-s", str(spec.lease_s)]
    if dial_socket is not None:
        command += ["--dial", f"{DIAL_DIR}/{SOCKET}"]
        mounts = [*mounts, {"Type": "bind", "Source": str(dial_socket.directory), "Target": DIAL_DIR, "ReadOnly": True}]
    if (owner := network_owner(config.network_mode)) is not None:
        command += ["--network-of", owner]
    command += volume_arguments(config.volumes, config.shared_volumes)
    arguments: dict[str, Any] = {
        "image": image_of(config, spec),
        "entrypoint": [RUNNER],
        "command": command,
        "user": config.user or "0:0",
        "working_dir": "/",
        "environment": config.env,
        "hostname": config.hostname,
        "labels": {**config.labels, **to_strings(labels)},
        "name": name,
        "platform": config.platform,
        "stop_signal": "SIGTERM",
        "healthcheck": {"test": ["NONE"]},
        "host_config": client.api.create_host_config(**_host_options(config, spec, podman=podman)),
    }
    state_labels = {NAME_LABEL: name, **to_strings(labels)}
    state = {"Type": "volume", "Target": STATE_DIR, "VolumeOptions": {"Labels": state_labels}}
    binds = [mount for volume in _volumes(config) if (mount := bind_mount(volume)) is not None]
    arguments["host_config"]["Mounts"] = [state, *mounts, *binds]
    if spec.own_roots:
        # A slot can mount its own /proc, with the usual masks, only if the runner's has no masks.
        arguments["host_config"] |= {"MaskedPaths": [], "ReadonlyPaths": []}
    if config.cgroupns is not None:
        arguments["host_config"]["CgroupnsMode"] = config.cgroupns
    return ContainerPlan(name, arguments, limit_enforcement(spec))


def bind_mount(volume: str) -> dict[str, Any] | None:
    """Return `source:target[:mode]` as a mount whose source must exist. For the short form, Docker would create a
    missing source as root's directory.

    None for a named volume, and for modes that only the short form has.
    """
    source, target, mode = volume_parts(volume)
    if not source.startswith("/") or mode not in {"ro", "rw"}:
        return None
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": mode == "ro"}


def _volumes(config: DockerConfig) -> tuple[str, ...]:
    return (*config.volumes, *config.shared_volumes)


def _host_options(config: DockerConfig, spec: LaunchSpec, *, podman: bool) -> dict[str, Any]:
    limits = spec.limits
    memory = None if limits.memory_mb is None else limits.memory_mb << 20
    swap = memory
    if config.memory_swap_mb is not None:
        swap = -1 if config.memory_swap_mb < 0 else config.memory_swap_mb << 20
    options: dict[str, Any] = {
        "mem_limit": memory,
        "memswap_limit": swap,
        "nano_cpus": None if limits.cpus is None else round(limits.cpus * 1e9),
        "pids_limit": spec.sandbox_pids,
        "network_mode": (config.network_mode or "default") if spec.network else "none",
        "binds": [volume for volume in _volumes(config) if bind_mount(volume) is None],
        "shm_size": None if config.shm_size_mb is None else config.shm_size_mb << 20,
        "security_opt": _security(config, spec, podman=podman),
        "group_add": list(config.groups),
        "ulimits": _ulimits(config.ulimits),
        "device_read_bps": _rates(config.device_read_bps),
        "device_write_bps": _rates(config.device_write_bps),
        "log_config": {"Type": "json-file", "Config": {"max-size": LOG_BYTES, "max-file": "1"}},
    }
    for name in SAME_NAME_OPTIONS:
        value = getattr(config, name)
        options[name] = list(value) if isinstance(value, tuple) else value
    if config.gpus is not None:
        count = -1 if config.gpus == "all" else config.gpus
        options["device_requests"] = [{"Count": count, "Capabilities": [["gpu"]]}]
    return {name: value for name, value in options.items() if value not in (None, [], {}, False)}


def _security(config: DockerConfig, spec: LaunchSpec, *, podman: bool) -> list[str]:
    """Return the security options. Podman reads a profile from its own host, and unmasks `/proc` by an option."""
    options = list(config.security_opt)
    if not spec.own_roots:
        return options
    if not config.privileged and not any(option.startswith("seccomp") for option in options):
        options.append(f"seccomp={SECCOMP_PROFILE if podman else SECCOMP_PROFILE.read_text('utf-8')}")
    return [*options, "unmask=ALL"] if podman else options


def _ulimits(values: Mapping[str, int | tuple[int, int]]) -> list[dict[str, Any]]:
    pairs = {name: (value, value) if isinstance(value, int) else value for name, value in values.items()}
    return [{"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in pairs.items()]


def _rates(values: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"Path": path, "Rate": rate} for path, rate in values.items()]
