"""Import of the variables of older tools: a pure function from an environment to our options and warnings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hermes_exec.errors import ConfigError

BACKENDS = {name: name for name in ("local", "docker", "ssh", "singularity", "modal", "nomad")}
BACKENDS |= {"apptainer": "singularity"}


class Imported(NamedTuple):
    """Options as SandboxPool takes them, and one warning for each name that was read."""

    options: dict[str, Any]
    warnings: list[str]


class Rule(NamedTuple):
    """Where a value goes (``limits.cpus`` is a nested one), how it is read, and for which backends it counts; with no
    option, `why` it is gone.
    """

    option: str = ""
    read: Callable[[str], Any] = str
    backends: frozenset[str] = frozenset()
    why: str = ""


def _list(text: str) -> tuple[str, ...]:
    """A JSON list, or names with commas."""
    if not text.lstrip().startswith("["):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    values = json.loads(text)
    if not all(isinstance(value, str) for value in values):
        raise ValueError("not a list of strings")
    return tuple(values)


def _mapping(text: str) -> dict[str, str]:
    """A JSON object, or ``NAME=VALUE`` with semicolons."""
    if not text.lstrip().startswith("{"):
        pairs = (pair.partition("=") for pair in text.split(";") if pair.strip())
        return {name.strip(): value.strip() for name, _, value in pairs}
    values = json.loads(text)
    return {str(k): str(v) for k, v in values.items()}


def _truth(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.strip().lower() not in known:
        raise ValueError("neither true nor false")
    return known[text.strip().lower()]


def _amount(text: str) -> float | None:
    """A number; 0 was no limit."""
    return float(text) or None


def _megabytes(text: str) -> int | None:
    return int(float(text)) or None


def _driver(text: str) -> str:
    return {"raw_exec": "singularity"}.get(text, text)


def _gone(why: str, *backends: str) -> Rule:
    return Rule(backends=frozenset(backends), why=why)


DOCKER, MODAL, NOMAD, SINGULARITY, SSH = (
    frozenset({name}) for name in ("docker", "modal", "nomad", "singularity", "ssh")
)
BOXES = DOCKER | MODAL | SINGULARITY | NOMAD
_TIMEOUT = "a command has a timeout of its own, `slot.run(timeout_s=…)`; the tool `terminal`: `ToolOptions(%s=…)`"
_FRESH = "a slot is fresh each time: what is to last is uploaded, downloaded, or in `volumes`"
_SHELL = "the tool `terminal` always keeps its shell; elsewhere `slot.session()` does"
_ONE_STREAM = "calls go over one stream into the box, without a service or a port"
_PRIVILEGED = "nothing here needs it, but roots of the slots' own: `docker={'privileged': True}`"
_NO_ENVIRONMENT = "the driver's environment never reaches a slot: name what it is to have in `env` or `secrets`"

RULES: Mapping[str, Rule] = {
    "TERMINAL_ENV": Rule("backend"),
    "TERMINAL_SLOT_BACKEND": Rule("backend"),
    "TERMINAL_TIMEOUT": _gone(_TIMEOUT % "terminal_timeout_s"),
    "TERMINAL_MAX_FOREGROUND_TIMEOUT": _gone(_TIMEOUT % "terminal_max_timeout_s"),
    "TERMINAL_LIFETIME_SECONDS": Rule("idle_timeout_s", float),
    "TERMINAL_CWD": _gone("calls start in the slot's own workspace: `workdir` names another place in the slot"),
    "TERMINAL_PERSISTENT_SHELL": _gone(_SHELL),
    "TERMINAL_LOCAL_PERSISTENT": _gone(_SHELL, "local"),
    "TERMINAL_SSH_PERSISTENT": _gone(_SHELL, "ssh"),
    "TERMINAL_DISK_WARNING_GB": _gone("`limits.disk_mb` and `slot_limits.disk_mb` bound what is written"),
    "TERMINAL_SANDBOX_DIR": Rule("base_dir", backends=SINGULARITY | {"local"}),
    "TERMINAL_SCRATCH_DIR": Rule("base_dir", backends=SINGULARITY),
    "TERMINAL_CONTAINER_CPU": Rule("limits.cpus", _amount, BOXES),
    "TERMINAL_CONTAINER_MEMORY": Rule("limits.memory_mb", _megabytes, BOXES),
    "TERMINAL_CONTAINER_DISK": _gone(
        "engines do not bound it: `slot_limits.disk_mb` bounds what a slot writes", *BOXES
    ),
    "TERMINAL_CONTAINER_PERSISTENT": _gone(_FRESH, *BOXES),
    "TERMINAL_DOCKER_IMAGE": Rule("image", backends=DOCKER),
    "TERMINAL_DOCKER_VOLUMES": Rule("volumes", _list, DOCKER),
    "TERMINAL_DOCKER_ENV": Rule("env", _mapping, DOCKER),
    "TERMINAL_DOCKER_NETWORK": Rule("network", _truth, DOCKER),
    "TERMINAL_DOCKER_FORWARD_ENV": _gone(_NO_ENVIRONMENT, "docker"),
    "TERMINAL_DOCKER_EXTRA_ARGS": _gone("arguments of `docker run` are options, as `cap_add`", "docker"),
    "TERMINAL_DOCKER_MOUNT_CWD_TO_WORKSPACE": _gone("name the directory in `volumes`, or upload it", "docker"),
    "TERMINAL_DOCKER_RUN_AS_HOST_USER": _gone("`user` names a user of the container", "docker"),
    "TERMINAL_DOCKER_PERSIST_ACROSS_PROCESSES": _gone("a box ends with its pool", "docker"),
    "TERMINAL_DOCKER_ORPHAN_REAPER": _gone("every pool ends orphans when it begins, and `hermes-exec reap`", "docker"),
    "HERMES_DOCKER_BINARY": _gone("the engine is reached by its socket: `base_url` names another one", "docker"),
    "TERMINAL_SINGULARITY_IMAGE": Rule("image", backends=SINGULARITY),
    "TERMINAL_SSH_HOST": Rule("hosts.host", backends=SSH),
    "TERMINAL_SSH_USER": Rule("hosts.user", backends=SSH),
    "TERMINAL_SSH_PORT": Rule("hosts.port", int, SSH),
    "TERMINAL_SSH_KEY": Rule("identity_file", backends=SSH),
    "TERMINAL_DAYTONA_IMAGE": _gone("there is no such backend", "daytona"),
    "TERMINAL_VERCEL_RUNTIME": _gone("there is no such backend", "vercel_sandbox"),
    "TERMINAL_SLOT_APP_NAME": Rule("app_name", backends=MODAL),
    "TERMINAL_MODAL_APP_NAME": Rule("app_name", backends=MODAL),
    "TERMINAL_MODAL_IMAGE": Rule("image", backends=MODAL),
    "TERMINAL_MODAL_GPU": Rule("gpus", backends=MODAL),
    "TERMINAL_MODAL_CPU": Rule("limits.cpus", _amount, MODAL),
    "TERMINAL_MODAL_MEMORY": Rule("limits.memory_mb", _megabytes, MODAL),
    "TERMINAL_MODAL_SLOTS": Rule("slots_per_sandbox", int, MODAL),
    "TERMINAL_MODAL_MIN": Rule("min_sandboxes", int, MODAL),
    "TERMINAL_MODAL_MIN_POOL": Rule("min_sandboxes", int, MODAL),
    "TERMINAL_MODAL_MAX": Rule("max_sandboxes", int, MODAL),
    "TERMINAL_MODAL_MAX_POOL": Rule("max_sandboxes", int, MODAL),
    "TERMINAL_MODAL_POOL_MAX": Rule("max_sandboxes", int, MODAL),
    "TERMINAL_MODAL_POOL_SIZE": Rule("max_sandboxes", int, MODAL),
    "TERMINAL_MODAL_IDLE_TIMEOUT": Rule("idle_timeout_s", float, MODAL),
    "TERMINAL_MODAL_SCALE_DOWN_IDLE": Rule("idle_timeout_s", float, MODAL),
    "TERMINAL_MODAL_MAX_LIFETIME": Rule("max_lifetime_s", float, MODAL),
    "TERMINAL_MODAL_ACQUIRE_TIMEOUT": Rule("acquire_timeout_s", float, MODAL),
    "TERMINAL_MODAL_EXEC_TIMEOUT": _gone(_TIMEOUT % "terminal_timeout_s", "modal"),
    "TERMINAL_MODAL_WORKSPACE": _gone("where slots have their workspaces is the pool's own matter", "modal"),
    "TERMINAL_MODAL_SECRETS": Rule("modal_secrets", _list, MODAL),
    "TERMINAL_MODAL_PROFILES_FILE": Rule("profiles_file", backends=MODAL),
    "TERMINAL_MODAL_DEFAULT_PROFILE": _gone("a request names its profile, or `HERMES_EXEC_PROFILE`", "modal"),
    "TERMINAL_MODAL_MODE": _gone("boxes are always of your own account, in a pool", "modal"),
    "ATROPOS_MODAL_APP_NAME": Rule("app_name", backends=MODAL),
    "ATROPOS_MODAL_IMAGE": Rule("image", backends=MODAL),
    "ATROPOS_MODAL_GPU": Rule("gpus", backends=MODAL),
    "ATROPOS_MODAL_CPU": Rule("limits.cpus", _amount, MODAL),
    "ATROPOS_MODAL_MEMORY": Rule("limits.memory_mb", _megabytes, MODAL),
    "ATROPOS_MODAL_SLOTS_PER_SANDBOX": Rule("slots_per_sandbox", int, MODAL),
    "ATROPOS_MODAL_MIN_SANDBOXES": Rule("min_sandboxes", int, MODAL),
    "ATROPOS_MODAL_MAX_SANDBOXES": Rule("max_sandboxes", int, MODAL),
    "ATROPOS_MODAL_IDLE_TIMEOUT": Rule("idle_timeout_s", float, MODAL),
    "ATROPOS_MODAL_MAX_LIFETIME": Rule("max_lifetime_s", float, MODAL),
    "ATROPOS_MODAL_ACQUIRE_TIMEOUT": Rule("acquire_timeout_s", float, MODAL),
    "ATROPOS_MODAL_EXECUTION_TIMEOUT": _gone(_TIMEOUT % "terminal_timeout_s", "modal"),
    "ATROPOS_MODAL_SECRETS": Rule("modal_secrets", _list, MODAL),
    "ATROPOS_MODAL_ENV_VARS": Rule("env", _mapping, MODAL),
    "ATROPOS_MODAL_WORKSPACE_BASE": _gone("where slots have their workspaces is the pool's own matter", "modal"),
    "ATROPOS_MODAL_PROFILES_FILE": Rule("profiles_file", backends=MODAL),
    "ATROPOS_MODAL_PROFILES": Rule("profiles", backends=MODAL),
    "NOMAD_ADDR": Rule("address", backends=NOMAD),
    "NOMAD_TOKEN": Rule("token", backends=NOMAD),
    "NOMAD_NAMESPACE": Rule("namespace", backends=NOMAD),
    "NOMAD_REGION": Rule("region", backends=NOMAD),
    "NOMAD_CACERT": Rule("ca_cert", backends=NOMAD),
    "NOMAD_CLIENT_CERT": Rule("client_cert", backends=NOMAD),
    "NOMAD_CLIENT_KEY": Rule("client_key", backends=NOMAD),
    "NOMAD_SKIP_VERIFY": _gone("`ca_cert` names the authority that is believed", "nomad"),
    "TERMINAL_NOMAD_ADDRESS": Rule("address", backends=NOMAD),
    "TERMINAL_NOMAD_IMAGE": Rule("image", backends=NOMAD),
    "TERMINAL_NOMAD_APPTAINER_IMAGE": Rule("image", backends=NOMAD),
    "TERMINAL_NOMAD_DRIVER": Rule("driver", _driver, NOMAD),
    "TERMINAL_NOMAD_SLOTS": Rule("slots_per_sandbox", int, NOMAD),
    "TERMINAL_NOMAD_MIN": Rule("min_sandboxes", int, NOMAD),
    "TERMINAL_NOMAD_MAX": Rule("max_sandboxes", int, NOMAD),
    "TERMINAL_NOMAD_JOB_ID": _gone("every box is a job of its own, with a name of its own", "nomad"),
    "TERMINAL_NOMAD_PRIVILEGED": _gone(_PRIVILEGED, "nomad"),
    "TERMINAL_NOMAD_RAW_EXEC_PORT": _gone(_ONE_STREAM, "nomad"),
    "TERMINAL_NOMAD_AUTOSTART": _gone("the cluster is there before its pool", "nomad"),
    "TOOL_EXECUTOR_NOMAD_ADDRESS": Rule("address", backends=NOMAD),
    "TOOL_EXECUTOR_IMAGE": Rule("image", backends=NOMAD),
    "TOOL_EXECUTOR_SLOTS": Rule("slots_per_sandbox", int, NOMAD),
    "TOOL_EXECUTOR_MIN_CONTAINERS": Rule("min_sandboxes", int, NOMAD),
    "TOOL_EXECUTOR_MAX_CONTAINERS": Rule("max_sandboxes", int, NOMAD),
    "TOOL_EXECUTOR_ACQUIRE_TIMEOUT_S": Rule("acquire_timeout_s", float, NOMAD),
    "TOOL_EXECUTOR_ALLOW_NETWORK": Rule("network", _truth, NOMAD),
    "TOOL_EXECUTOR_PURGE_JOB_ON_SHUTDOWN": Rule("purge_on_shutdown", _truth, NOMAD),
    "TOOL_EXECUTOR_JOB_ID": _gone("every box is a job of its own, with a name of its own", "nomad"),
    "TOOL_EXECUTOR_PRIVILEGED": _gone(_PRIVILEGED, "nomad"),
    "TOOL_EXECUTOR_BATCH_WINDOW_MS": _gone("calls are not collected: each goes at once, and many at the same time"),
    "TOOL_EXECUTOR_MAX_BATCH_SIZE": _gone("calls are not collected: each goes at once, and many at the same time"),
    "TOOL_EXECUTOR_TOKEN": _gone(_ONE_STREAM),
    "TOOL_EXECUTOR_TOOL_SERVER_URL": _gone("tools of the host run in the driver (`@tool`)"),
    "TOOL_EXECUTOR_TOOL_SERVER_TOKEN": _gone("tools of the host run in the driver (`@tool`)"),
    "TOOL_SERVER_TOKEN": _gone("tools of the host run in the driver (`@tool`)"),
    "TOOL_SERVER_MAX_CONCURRENCY": _gone("tools of the host run in the driver (`@tool`)"),
    "ATROPOS_SANDBOX_IMAGE": Rule("image", backends=BOXES),
    "ATROPOS_STATEFUL_DIR": _gone("`slot.session()` keeps a shell's state without tmux and its socket"),
    "HERMES_WRITE_SAFE_ROOT": _gone("file tools have the rights of the slot, and no others"),
    "HERMES_EXEC_ASK": _gone("nobody is asked before a command runs: the slot is the boundary"),
}
"""Every name that is known. Those of other backends than the chosen one are passed over in silence: they say nothing
about this pool. What comes later counts more where several became the same."""

_NOMADS_OWN = frozenset(
    f"NOMAD_{name}" for name in ("ADDR", "TOKEN", "NAMESPACE", "REGION", "CLIENT_CERT", "CLIENT_KEY")
)
"""Nomad's client knows them wherever it runs: nobody need write something else."""
_NAMES_OF_PROFILES = "ATROPOS_MODAL_PROFILES"
_OF_A_PROFILE: Mapping[str, Rule] = {
    "WORKDIR": Rule("workdir", backends=MODAL),
    "USE_DOTENV": _gone(_NO_ENVIRONMENT, "modal"),
    "ACQUIRE_TIMEOUT": _gone("`acquire_timeout_s` is the pool's", "modal"),
    **{key: RULES[f"TERMINAL_MODAL_{key}"] for key in ("MIN_POOL", "MAX_POOL", "SCALE_DOWN_IDLE")},
}
_KEYS = {*_OF_A_PROFILE, *(name.removeprefix("ATROPOS_MODAL_") for name in RULES if name.startswith("ATROPOS_MODAL_"))}
_PROFILE = re.compile(rf"(TERMINAL|ATROPOS)_MODAL_PROFILE_(?P<name>\w+?)_(?P<key>{'|'.join(sorted(_KEYS))})")
"""A profile has variables like those of the pool, with its name before the last part."""
_BACKENDS_OWN = frozenset({"app_name", "gpus", "modal_secrets"})
"""In a profile they stand in `backend_options`."""


def import_older_names(environ: Mapping[str, str], backend: str | None = None) -> Imported:
    """Options for the names of older tools in ``environ``, with a warning a name that says what it became or why not.

    ``backend`` is the type of backend that was chosen otherwise; without one these names choose it. Those of other
    backends are passed over in silence: they say nothing about this pool.

    Raises:
        ConfigError: a value cannot be read, or the backend has no counterpart here.
    """
    given = {name: text.strip() for name, text in environ.items() if text.strip()}
    options: dict[str, Any] = {}
    warnings: list[str] = []
    if "TERMINAL_NOMAD_IMAGE" in given and given.get("TERMINAL_NOMAD_DRIVER", "docker").lower() == "docker":
        given.pop("TERMINAL_NOMAD_APPTAINER_IMAGE", None)  # it is that of the other driver
    chosen = backend
    if backend is None and (chosen := _backend(given)) is not None:
        options["backend"] = chosen
    for name, rule, path in _found(given):
        if rule.option == "backend":
            became = f"is left out: the backend is {chosen!r}" if backend else f"is read as backend={chosen!r}"
            warnings += [f"{name}={given[name]} {became}"] if chosen else []
        elif rule.backends and (chosen or "local") not in rule.backends:
            continue
        elif not path:
            warnings.append(f"{name} is left out: {rule.why}")
        else:
            if name != _NAMES_OF_PROFILES:
                _put(options, path, _read(name, rule, given[name]))
            warnings += [] if name in _NOMADS_OWN else [f"{name} is read as {'.'.join(path)}; write that instead"]
    known = {name for name, _, _ in _found(given)}
    unknown = sorted(name for name in given.keys() - known if name.startswith("TERMINAL_"))
    return Imported(options, warnings + [f"{name} has no meaning for hermes-exec and is left out" for name in unknown])


def _found(given: Mapping[str, str]) -> list[tuple[str, Rule, tuple[str, ...]]]:
    """The names that are known, with the path of the option that each became; none for what is gone."""
    found = [(name, rule, tuple(filter(None, rule.option.split(".")))) for name, rule in RULES.items() if name in given]
    called = {name.upper().replace("-", "_"): name for name in _list(given.get(_NAMES_OF_PROFILES, ""))}
    for name in sorted(given):
        if (parts := _PROFILE.fullmatch(name)) is None:
            continue
        key, profile = parts["key"], called.get(parts["name"], parts["name"])
        rule = _OF_A_PROFILE.get(key) or RULES[f"ATROPOS_MODAL_{key}"]
        path = tuple(filter(None, rule.option.split(".")))
        if path and profile.lower() != "default":  # that is what the pool itself says
            path = ("profiles", profile, *(("backend_options",) if rule.option in _BACKENDS_OWN else ()), *path)
        found.append((name, rule, path))
    return found


def _backend(given: Mapping[str, str]) -> str | None:
    chosen = given.get("TERMINAL_ENV", "").lower()
    if chosen == "slot_pool":
        chosen = given.get("TERMINAL_SLOT_BACKEND", "").lower() or "modal"
    if not chosen:
        return None
    if chosen not in BACKENDS:
        raise ConfigError(f"TERMINAL_ENV={chosen!r} has no counterpart; the backends are {', '.join(sorted(BACKENDS))}")
    return BACKENDS[chosen]


def _read(name: str, rule: Rule, text: str) -> object:
    try:
        return rule.read(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{name}={text!r} cannot be read: {error}") from error


def _put(options: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    *outer, last = path
    for part in outer:
        options = options.setdefault(part, {})
    options[last] = value
