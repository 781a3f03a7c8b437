"""The engine's program: its detection, and its options for a sandbox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import NamedTuple

from hermes_exec.backends.base import LaunchSpec
from hermes_exec.backends.engine_errors import temporarily_unavailable
from hermes_exec.backends.process import SYSTEM_PATH
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.config.model import volume_parts
from hermes_exec.errors import BackendUnavailable, ConfigError

ANSWER_S = 30.0
OLDEST = {"apptainer": (1, 1), "singularity-ce": (3, 10)}


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
        raise ConfigError("limits.disk_mb cannot be enforced on a sandbox: use slot_limits, or best_effort_limits=True")
    if config.fakeroot and os.geteuid() == 0:
        raise ConfigError("fakeroot is for ordinary users: root is root in its sandboxes")


def image_of(config: SingularityConfig, spec: LaunchSpec) -> str:
    """Return the image's name, or "" if none is set."""
    return spec.image or config.image or ""


def fakeroot_options(engine: SingularityEngine) -> list[str]:
    """Return the options that make an ordinary user root of a sandbox."""
    if engine.family != "apptainer":
        return ["--fakeroot"]
    # Without entries in /etc/subuid Apptainer would put a program for that name around the runner.
    return ["--fakeroot", "--ignore-fakeroot-command"]


def engine_environment(config: SingularityConfig, engine: SingularityEngine) -> dict[str, str]:
    """Return the engine's environment, without variables of this process: they would add mounts and variables to the
    sandbox.
    """
    env = {f"{engine.prefix}ENV_{name}": value for name, value in config.env.items()}
    runtime = f"/run/user/{os.geteuid()}"
    if os.path.isdir(runtime):  # where systemd makes cgroups of ordinary users
        env |= {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    return {**env, "PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
