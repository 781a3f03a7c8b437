"""The environment of helper programs on this host: a login's variables, without the user's other ones (API keys)."""

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
"""Names of the variables that helper programs get, in capitals or not: of a login, its agents and the network."""
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class HelpedConfig(BackendConfig):
    """Base of the configuration classes of backends that start programs on this host."""

    helper_env: tuple[EnvName, ...] = ()
    """Further variables of this process for helper programs (the SSH client and its `ProxyCommand`, credential
    helpers), besides those for a login, its agents and proxies.
    """

    def helper_environment(self, *more: str) -> dict[str, str]:
        """Return the environment of helper programs. `more` are patterns of further names."""
        return helper_environment(*self.helper_env, *more)


def helper_environment(*more: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables for every helper program, from this process's environment or `env`. `more` are patterns of
    further names.
    """
    needed = re.compile("|".join((_NEEDED, *more)), re.IGNORECASE)
    return {name: value for name, value in (os.environ if env is None else env).items() if needed.fullmatch(name)}


def blank_others(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` and an empty value for all other variables, for a program that inherits the whole environment."""
    return {name: "" for name in os.environ if name not in env}


def unset_others(env: Mapping[str, str]) -> list[str]:
    """Return the beginning of a command that keeps only the variables of `env`."""
    return ["env", *(word for name in os.environ if name not in env for word in ("-u", name))]
