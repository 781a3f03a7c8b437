"""What programs on this host that help a backend get of this process's environment: a login's variables, and not what
else the user's program keeps there (keys of endpoints and trackers).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from hermes_exec.config.backend import BackendConfig

_NEEDED = (
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|LC_.*|TMPDIR|TEMP|TMP|XDG_.*|LD_LIBRARY_PATH|SSL_CERT_(FILE|DIR)"
    "|SSH_.*|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|DBUS_SESSION_BUS_ADDRESS|KRB5.*|(HTTPS?|FTP|ALL|NO)_PROXY"
)
"""Names of the variables that helper programs get, in capitals or not: those of a login, of its agents and of the
network.
"""
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class HelpedConfig(BackendConfig):
    """Base of the configuration classes of backends that start programs on this host."""

    helper_env: tuple[EnvName, ...] = ()
    """Names of variables of this process that helper programs (the SSH client and its `ProxyCommand`, credential
    helpers) get, besides those of a login, of its agents and of proxies."""

    def helper_environment(self, *more: str) -> dict[str, str]:
        """Return the environment of helper programs. `more` are patterns of further names."""
        return helper_environment(*self.helper_env, *more)


def helper_environment(*more: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what every helper program gets, of this process's environment or another. `more` are patterns of further
    names.
    """
    needed = re.compile("|".join((_NEEDED, *more)), re.IGNORECASE)
    return {name: value for name, value in (os.environ if env is None else env).items() if needed.fullmatch(name)}


def blank_others(env: Mapping[str, str]) -> dict[str, str]:
    """Return what leaves nothing but `env`, for who adds it to the whole environment: the other variables, empty."""
    return {name: "" for name in os.environ if name not in env}


def unset_others(env: Mapping[str, str]) -> list[str]:
    """Return the beginning of a command that keeps only the variables of `env`, for who starts it with all."""
    return ["env", *(word for name in os.environ if name not in env for word in ("-u", name))]
