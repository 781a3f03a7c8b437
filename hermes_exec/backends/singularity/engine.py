"""The engine's program: its detection, and its options for a sandbox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from hermes_exec.backends.base import LaunchSpec
from hermes_exec.backends.engine_errors import temporarily_unavailable
from hermes_exec.backends.helpers import helper_environment
from hermes_exec.backends.process import SYSTEM_PATH
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.singularity.squashfuse import (
    find_squashfuse,
    gives_owners,
    has_subordinate_ids,
    write_wrapper,
)
from hermes_exec.config.model import volume_parts
from hermes_exec.errors import BackendUnavailable, ConfigError

ANSWER_S = 30.0
OLDEST = {"apptainer": (1, 1), "singularity-ce": (3, 10)}
APT_CONFIG = "/etc/hermes-exec-apt.conf"
"""File in a sandbox with `fakeroot` that keeps apt from becoming another user, who need not exist there. It is not in
the runner's directory, because a slot with its own root does not see that.
"""
TEMPORARY = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR")
"""Variables that name the engine's temporary directory. Apptainer reads the second if the first is not set."""


class SingularityEngine(NamedTuple):
    """An installed program; `family` is `apptainer` or `singularity-ce`."""

    path: str
    family: str
    version: tuple[int, int]

    @property
    def prefix(self) -> str:
        """Prefix of environment variables for it."""
        return "APPTAINER" if self.family == "apptainer" else "SINGULARITY"


def find_engine(binary: str | None) -> SingularityEngine:
    """Return the program of that name or path, or an installed one; blocking.

    Raises:
        BackendUnavailable: If there is none, it does not answer, or it is too old.
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
        raise temporarily_unavailable(f"{path} --version did not answer within {ANSWER_S:g} s") from error
    except OSError as error:
        raise BackendUnavailable(f"{path} cannot be started: {error}") from error
    version = re.match(r"(apptainer|singularity-ce) version (\d+)\.(\d+)", done.stdout)
    if version is not None:
        engine = SingularityEngine(path, version[1], (int(version[2]), int(version[3])))
        if engine.version >= OLDEST[engine.family]:
            return engine
    output = (done.stdout or done.stderr).strip()[:200]
    raise BackendUnavailable(
        f"{path} reports {output!r}: sandboxes need Apptainer 1.1 or SingularityCE 3.10 or newer; set `binary` to "
        "another one"
    )


def check_options(config: SingularityConfig, spec: LaunchSpec) -> None:
    """Raise ConfigError for options that a sandbox cannot have."""
    if not image_of(config, spec):
        raise ConfigError("the singularity backend needs an image: SandboxPool('singularity', image='docker://…')")
    for volume in (*config.volumes, *config.shared_volumes):
        source, _, mode = volume_parts(volume)
        if not source.startswith("/") or not os.path.exists(source):
            raise ConfigError(f"the volume {volume!r} cannot be mounted: there is no {source} on this host")
        if mode not in {"ro", "rw"}:
            raise ConfigError(f"the volume {volume!r} has a mode that is neither ro nor rw")
    if spec.limits.disk_mb is not None and not spec.best_effort_limits:
        raise ConfigError(
            "limits.disk_mb cannot be enforced on a sandbox: set slot_limits.disk_mb with"
            " slots_per_sandbox=2 or more, or best_effort_limits=True"
        )
    if config.fakeroot and os.geteuid() == 0:
        raise ConfigError("fakeroot is for ordinary users: root is root in its sandboxes")


def image_of(config: SingularityConfig, spec: LaunchSpec) -> str:
    """Return the image's name, or "" if none is set."""
    return spec.image or config.image or ""


def fakeroot_options(engine: SingularityEngine) -> list[str]:
    """Return the options that make an ordinary user root of a sandbox."""
    if engine.family != "apptainer":
        return ["--fakeroot"]
    # Without entries in /etc/subuid Apptainer would put a program for that name around the runner, and would give it no
    # capabilities.
    return ["--fakeroot", "--ignore-fakeroot-command", "--add-caps", "all"]


def mount_obstacle(engine: SingularityEngine) -> str:
    """Return why this user cannot mount the file of an image, or "" if nothing is missing: root has a loop device,
    others need FUSE. Images are then kept as directories.
    """
    if os.geteuid() == 0:
        return ""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse"
    if engine.family == "apptainer" and find_squashfuse(engine.path, search_path()) is None:
        return "no squashfuse"
    return ""


def search_path() -> str:
    """Return where the engine looks for other programs: in the user's own PATH, then in the system's directories."""
    return ":".join(filter(None, (helper_environment().get("PATH"), SYSTEM_PATH)))


def prefer_owners(engine: SingularityEngine, image: Path, fakeroot: bool, directory: str, env: dict[str, str]) -> None:
    """Make the engine mount the file of an image so that its files belong to the user, as those of a directory do that
    this user has unpacked. The change is in the engine's environment; `directory` gets a program.
    """
    is_fuse = os.geteuid() != 0 and engine.family == "apptainer" and image.is_file()
    if not is_fuse or (fakeroot and has_subordinate_ids()) or gives_owners(engine.path, env["PATH"]):
        return
    if write_wrapper(directory, env["PATH"]):
        env["PATH"] = f"{directory}:{env['PATH']}"


def engine_environment(config: SingularityConfig, engine: SingularityEngine) -> dict[str, str]:
    """Return the engine's environment. Of this process's variables it has only those for finding programs, libraries
    and room: others would add mounts and variables to the sandbox.
    """
    own = helper_environment(*TEMPORARY)
    env = {name: own[name] for name in ("LD_LIBRARY_PATH", *TEMPORARY) if name in own}
    variables = {"APT_CONFIG": APT_CONFIG, **config.env} if config.fakeroot else config.env
    env |= {f"{engine.prefix}ENV_{name}": value for name, value in variables.items()}
    runtime = f"/run/user/{os.geteuid()}"
    if os.path.isdir(runtime):  # where systemd makes cgroups of ordinary users
        env |= {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    return {**env, "PATH": search_path(), "LANG": "C.UTF-8"}
