"""The command that starts a sandbox: a specification and a configuration in terms of the engine."""

from __future__ import annotations

import csv
import io
import os
import pwd
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hermes_exec.backends.base import LaunchSpec, volume_arguments
from hermes_exec.backends.sandbox_directory import SandboxDirectory
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.singularity.engine import APT_CONFIG, SingularityEngine, fakeroot_options
from hermes_exec.config.model import volume_parts

MOUNT = "/hermes-exec"
BASE = f"{MOUNT}/state/base"
RUNNER = f"{MOUNT}/runner"
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)
"""Capabilities of root in a sandbox: as in a Docker container, except device nodes, because no cgroup restricts them.
"""
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
HIDDEN = (
    "/proc/acpi/",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi/",
    "/proc/timer_list",
    "/proc/timer_stats",
)
DEVICES = ("/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/module")
"""Paths of /sys that root of a sandbox may read. It could write to the rest: cgroups and settings of the kernel."""
UNSET_VARIABLES = (
    "APPTAINER_*",
    "SINGULARITY_*",
    "HOME",
    "LANG=C",
    "PS1",
    "PROMPT_COMMAND",
    "USER_PATH",
    "LD_LIBRARY_PATH=/.singularity.d/libs",
)
"""Variables that the engine sets in each sandbox, among them its own paths on the host."""


def limit_options(spec: LaunchSpec) -> dict[str, str]:
    """Return the engine's options for those limits of a sandbox that a cgroup can enforce."""
    limits = spec.limits
    values: dict[str, object] = {"--cpus": limits.cpus, "--pids-limit": spec.sandbox_pids}
    if limits.memory_mb is not None:
        values |= {"--memory": f"{limits.memory_mb}M", "--memory-swap": f"{limits.memory_mb}M"}
    return {name: str(value) for name, value in values.items() if value is not None}


def limit_enforcement(spec: LaunchSpec, *, with_limits: bool) -> dict[str, str]:
    """Return how each limit of a sandbox is enforced."""
    by_cgroup = {"cpus", "memory_mb", "pids"} if with_limits else set()
    return {name: "cgroup of the sandbox" if name in by_cgroup else "not enforced" for name in spec.limits.total()}


class StartPlan(NamedTuple):
    """A sandbox to start: the image's path on its host, and whether changes are kept on disk and limits are set."""

    engine: SingularityEngine
    image: Path | str
    runner: Path | str
    overlay_on_disk: bool
    with_limits: bool


class LaunchSite(NamedTuple):
    """Where a sandbox is started: its directory there, with a file `hosts`, and the user. `make` makes a directory in
    it, and `exists` checks a path of the host.
    """

    directory: str
    name: str
    uid: int
    make: Callable[[str], str]
    exists: Callable[[str], bool]


def local_site(directory: SandboxDirectory, network: bool) -> LaunchSite:
    """Return the site of a sandbox on this host."""
    (directory.path / "hosts").write_text(_hosts(network), "utf-8")
    (directory.path / "apt.conf").write_text('APT::Sandbox::User "root";\n', "utf-8")
    return LaunchSite(str(directory.path), directory.path.name, os.geteuid(), directory.make, os.path.exists)


def launch_command(config: SingularityConfig, spec: LaunchSpec, start: StartPlan, site: LaunchSite) -> list[str]:
    """Return the command that starts the sandbox, and make the directories in it."""
    home = _home() if spec.exclusive and not config.fakeroot and site.uid else None
    argv = [start.engine.path, "-s", "exec", "--containall", "--no-init", "--no-umask", "--no-eval"]
    argv += _container_options(config, spec, start, site)
    if home is None:
        argv += ["--no-home"]
    else:
        argv += ["--home", f"{site.make('home')}:{home}"]
    for mount in _mounts(config, spec, start, site):
        argv += ["--mount", mount]
    argv += [str(start.image), RUNNER, "serve", "--base", BASE, "--lease-s", str(spec.lease_s)]
    argv += ["--filter", "--until-stdin-ends", "--own", "/tmp", "--own", "/var/tmp"]
    if home is not None:
        argv += ["--own", home]
    if spec.network:
        argv += ["--network-of", "host"]
    for name in UNSET_VARIABLES:
        argv += ["--unset", name]
    return argv + volume_arguments(config.volumes, config.shared_volumes)


def _container_options(config: SingularityConfig, spec: LaunchSpec, start: StartPlan, site: LaunchSite) -> list[str]:
    """Return the engine's options for a sandbox, except its home and its mounts."""
    argv = ["--pwd", "/", "--workdir", site.make("work"), "--no-mount", "bind-paths"]
    argv += ["--hostname", f"sandbox-{site.name[-8:].replace('_', '0')}"]
    if start.overlay_on_disk:
        argv += ["--overlay", site.make("overlay")]
    else:
        argv += ["--writable-tmpfs"]
    if not spec.network:
        argv += ["--net", "--network", "none"]
    if config.gpus is not None:
        argv += ["--nv" if config.gpus == "all" else "--rocm"]
    if config.fakeroot:
        argv += fakeroot_options(start.engine)
    if start.with_limits:
        for option, value in limit_options(spec).items():
            argv += [option, value]
    if site.uid == 0:
        capabilities = ",".join(f"CAP_{name}" for name in CAPABILITIES)
        argv += ["--no-privs", "--add-caps", capabilities, "--no-mount", "sys"]
    return argv


def _home() -> str | None:
    """Return the home of an ordinary user, which images lack; root's home is the image's."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None
    return home if re.fullmatch("(/[^/:]+)+", home) else None


def _mounts(config: SingularityConfig, spec: LaunchSpec, start: StartPlan, site: LaunchSite) -> Iterator[str]:
    yield _mount(site.make("state"), f"{MOUNT}/state")
    yield _mount(str(start.runner), RUNNER, read_only=True)
    yield _mount(f"{site.directory}/hosts", "/etc/hosts")
    if config.fakeroot:
        yield _mount(f"{site.directory}/apt.conf", APT_CONFIG, read_only=True)
    for volume in (*config.volumes, *config.shared_volumes):
        source, target, mode = volume_parts(volume)
        yield _mount(source, target, read_only=mode == "ro")
    if site.uid != 0:
        return
    yield from (_mount(path, path, read_only=True) for path in DEVICES if site.exists(path))
    if spec.exclusive and not spec.own_roots:
        # The slot's user is root of this host. If slots have their own roots, the runner does the same for each.
        yield from (_mount(path, path, read_only=True) for path in READ_ONLY if site.exists(path))
        empty = site.make("empty")
        for path in filter(site.exists, HIDDEN):
            yield _mount(empty if path.endswith("/") else "/dev/null", path.rstrip("/"), read_only=True)


def _mount(source: str, target: str, *, read_only: bool = False) -> str:
    """Return a mount in the engine's format, one line of CSV."""
    words = ["type=bind", f"source={source}", f"destination={target}"]
    if read_only:
        words.append("readonly")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(words)
    return line.getvalue()


def _hosts(network: bool) -> str:
    if network:
        try:
            return Path("/etc/hosts").read_text("utf-8", "replace")
        except OSError:
            pass
    return "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
