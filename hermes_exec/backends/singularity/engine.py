"""The program of the engine: which one there is, and what a box is started with."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hermes_exec.backends.base import LaunchSpec, volume_arguments
from hermes_exec.backends.box_directory import BoxDirectory
from hermes_exec.backends.engine_errors import away_for_now
from hermes_exec.backends.process import SYSTEM_PATH
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.config.model import volume_parts
from hermes_exec.errors import BackendUnavailable, ConfigError

ANSWER_S = 30.0
OLDEST = {"apptainer": (1, 1), "singularity-ce": (3, 10)}
MOUNT = "/hermes-exec"
BASE = f"{MOUNT}/state/box"
RUNNER = f"{MOUNT}/runner"
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
"""What root of a box has: as in a container of Docker, without device nodes (there is no cgroup that keeps them from
the devices of the host) and raw sockets (the network may be the host's)."""
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
HIDDEN = (
    *("/proc/acpi/", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug"),
    *("/proc/scsi/", "/proc/timer_list", "/proc/timer_stats"),
)
DEVICES = ("/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/module")
"""What root of a box may read of /sys; the rest, cgroups and settings of the kernel, it could write to."""
LEFT_OUT = (
    *("APPTAINER_*", "SINGULARITY_*", "HOME", "LANG=C", "PS1", "PROMPT_COMMAND", "USER_PATH"),
    "LD_LIBRARY_PATH=/.singularity.d/libs",
)
"""Variables that the engine sets in each box, its own paths on the host among them."""


class Engine(NamedTuple):
    """One installed program; ``family`` is ``apptainer`` or ``singularity-ce``."""

    path: str
    family: str
    version: tuple[int, int]

    @property
    def prefix(self) -> str:
        """With which variables of the environment begin that are for it."""
        return "APPTAINER" if self.family == "apptainer" else "SINGULARITY"


def find_engine(binary: str | None) -> Engine:
    """The program of that name or path, or whichever there is; blocking.

    Raises:
        BackendUnavailable: there is none, it does not answer, or it is too old.
    """
    wanted = (binary,) if binary else ("apptainer", "singularity")
    path = next(filter(None, map(shutil.which, wanted)), None)
    if path is None:
        raise BackendUnavailable(
            f"there is no {' or '.join(wanted)} in PATH here: install Apptainer (apt-get install apptainer, "
            "dnf install apptainer), or load its module"
        )
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired as error:
        late = f"{path} --version did not answer within {ANSWER_S:g} s"
        raise away_for_now(BackendUnavailable(late)) from error
    except OSError as error:
        raise BackendUnavailable(f"{path} cannot be started: {error}") from error
    told = re.match(r"(apptainer|singularity-ce) version (\d+)\.(\d+)", done.stdout)
    if told is None or (version := (int(told[2]), int(told[3]))) < OLDEST[told[1]]:
        said = (done.stdout or done.stderr).strip()[:200]
        raise BackendUnavailable(
            f"{path} says {said!r}: boxes need Apptainer 1.1 or SingularityCE 3.10 or newer; `binary` names another one"
        )
    return Engine(path, told[1], version)


def check_options(config: SingularityConfig, spec: LaunchSpec) -> None:
    """Raise ConfigError for options that a box cannot have."""
    if not image_of(config, spec):
        raise ConfigError("the singularity backend needs an image: SandboxPool('singularity', image='docker://…')")
    for volume in (*config.volumes, *config.shared_volumes):
        source, _, mode = volume_parts(volume)
        if not source.startswith("/") or not os.path.exists(source):
            raise ConfigError(f"the volume {volume!r} cannot be mounted: there is no {source} on this host")
        if mode not in {"ro", "rw"}:
            raise ConfigError(f"the volume {volume!r} has a mode that is neither ro nor rw")
    if spec.limits.disk_mb is not None and not spec.best_effort_limits:
        raise ConfigError("limits.disk_mb cannot be enforced on a box: use slot_limits, or best_effort_limits=True")
    if config.fakeroot and os.geteuid() == 0:
        raise ConfigError("fakeroot is for ordinary users: root is root in its boxes")


def image_of(config: SingularityConfig, spec: LaunchSpec) -> str:
    """The image's name; empty when none is given."""
    return spec.image or config.image or ""


def limited(spec: LaunchSpec) -> dict[str, str]:
    """Those limits of a box that a cgroup can enforce, in the engine's options."""
    limits = spec.limits
    values: dict[str, object] = {"--cpus": limits.cpus, "--pids-limit": spec.box_pids}
    if limits.memory_mb is not None:
        values |= {"--memory": f"{limits.memory_mb}M", "--memory-swap": f"{limits.memory_mb}M"}
    return {name: str(value) for name, value in values.items() if value is not None}


class Start(NamedTuple):
    """A box that is to be started: the image's path on its host, and where its changes and its limits are kept."""

    engine: Engine
    image: Path | str
    runner: Path | str
    overlay_on_disk: bool
    with_limits: bool


class Place(NamedTuple):
    """Where a box is started: its folder there, with a file ``hosts``; by whom; what makes a folder in it, and tells
    what the host has.
    """

    folder: str
    name: str
    uid: int
    make: Callable[[str], str]
    exists: Callable[[str], bool]


def place_here(directory: BoxDirectory, network: bool) -> Place:
    """A place on this host."""
    (directory.path / "hosts").write_text(_hosts(network), "utf-8")
    return Place(str(directory.path), directory.path.name, os.geteuid(), directory.make, os.path.exists)


def command(config: SingularityConfig, spec: LaunchSpec, start: Start, place: Place) -> list[str]:
    """What starts the box; the folders that it names are made."""
    home = _home() if spec.whole_box and not config.fakeroot and place.uid else None
    argv = [start.engine.path, "-s", "exec", "--containall", "--no-init", "--no-umask", "--no-eval"]
    argv += ["--pwd", "/", "--workdir", place.make("work")]
    argv += ["--no-home"] if home is None else ["--home", f"{place.make('home')}:{home}"]
    argv += ["--hostname", f"box-{place.name[-8:].replace('_', '0')}"]
    argv += ["--overlay", place.make("overlay")] if start.overlay_on_disk else ["--writable-tmpfs"]
    argv += [] if spec.network else ["--net", "--network", "none"]
    argv += {"all": ["--nv"], "rocm": ["--rocm"]}.get(config.gpus or "", [])
    argv += fakeroot(start.engine) if config.fakeroot else []
    if start.with_limits:
        argv += [word for pair in limited(spec).items() for word in pair]
    argv += ["--no-mount", "bind-paths"]
    if place.uid == 0:
        argv += ["--no-privs", "--add-caps", ",".join(f"CAP_{name}" for name in CAPABILITIES), "--no-mount", "sys"]
    for mount in _mounts(config, spec, start, place):
        argv += ["--mount", mount]
    argv += [str(start.image), RUNNER, "serve", "--base", BASE, "--lease-s", str(spec.lease_s)]
    argv += ["--filter", "--until-stdin-ends"]
    for path in ("/tmp", "/var/tmp", *([home] if home else [])):
        argv += ["--own", path]
    if spec.network:
        argv += ["--network-of", "host"]
    for name in LEFT_OUT:
        argv += ["--unset", name]
    return argv + volume_arguments(config.volumes, config.shared_volumes)


def fakeroot(engine: Engine) -> list[str]:
    """What makes an ordinary user root of a box."""
    # Without entries in /etc/subuid Apptainer would put a program for that name around the runner.
    return ["--fakeroot", *(["--ignore-fakeroot-command"] if engine.family == "apptainer" else [])]


def _home() -> str | None:
    """The home of an ordinary user, which images do not have; root's is the image's."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None
    return home if re.fullmatch("(/[^/:]+)+", home) else None


def _mounts(config: SingularityConfig, spec: LaunchSpec, start: Start, place: Place) -> Iterator[str]:
    yield _mount(place.make("state"), f"{MOUNT}/state")
    yield _mount(str(start.runner), RUNNER, read_only=True)
    yield _mount(f"{place.folder}/hosts", "/etc/hosts")
    for volume in (*config.volumes, *config.shared_volumes):
        source, target, mode = volume_parts(volume)
        yield _mount(source, target, read_only=mode == "ro")
    if place.uid != 0:
        return
    yield from (_mount(path, path, read_only=True) for path in DEVICES if place.exists(path))
    if spec.whole_box and not spec.own_roots:
        # Its tenant is root of this host; where slots have roots of their own, the runner does the same for each.
        yield from (_mount(path, path, read_only=True) for path in READ_ONLY if place.exists(path))
        empty = place.make("empty")
        for path in filter(place.exists, HIDDEN):
            yield _mount(empty if path.endswith("/") else "/dev/null", path.rstrip("/"), read_only=True)


def _mount(source: str, target: str, *, read_only: bool = False) -> str:
    """A mount in the engine's words, which are one line of CSV."""
    words = ("type=bind", f"source={source}", f"destination={target}", *(["readonly"] if read_only else []))
    return ",".join(f'"{word.replace(chr(34), chr(34) * 2)}"' if set(word) & set(',"\n') else word for word in words)


def _hosts(network: bool) -> str:
    if network:
        try:
            return Path("/etc/hosts").read_text("utf-8", "replace")
        except OSError:
            pass
    return "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


def environment(config: SingularityConfig, engine: Engine) -> dict[str, str]:
    """For the engine itself, and no variable of this process: its own would add mounts and variables to the box."""
    env = {f"{engine.prefix}ENV_{name}": value for name, value in config.env.items()}
    runtime = f"/run/user/{os.geteuid()}"
    if os.path.isdir(runtime):  # where systemd makes cgroups of ordinary users
        env |= {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    return {**env, "PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
