"""Answers to hermes-agent's questions about the backend, without network and without sandboxes."""

from __future__ import annotations

import logging
import sys

from hermes_exec import ExecError
from hermes_plugin.options import BACKEND, read_options

logger = logging.getLogger(__name__)
STRIPPED_KEYS = frozenset({"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "NOMAD_TOKEN"})
"""Credentials of backends, which no process that the agent starts may see."""
CONTAINER_BACKENDS = ("docker", "singularity", "nomad", "modal")


def find_error() -> str | None:
    """Return the mistake in the options, or None."""
    from hermes_exec import SandboxPool

    try:
        SandboxPool.from_config(read_options().pool_config())
    except ExecError as error:
        return str(error)
    return None


def find_mistake() -> str | None:
    """Return the mistake in the options if hermes-agent is set to this backend, or None."""
    from tools.terminal_tool import _get_env_config

    return find_error() if _get_env_config()["env_type"] == BACKEND else None


def show(mistake: str) -> None:
    """Print a mistake as hermes-agent prints its own warnings."""
    print(f"⚠ hermes-exec: {mistake}", file=sys.stderr)  # noqa: T201


def is_available() -> bool:
    """Return whether the options are right; otherwise log the reason."""
    if error := find_error():
        logger.error("%s", error)
        return False
    return True


def is_container() -> bool:
    """Return whether commands cannot reach files of this machine, so that hermes-agent need not ask about them."""
    try:
        config = read_options().pool_config()
    except ExecError:
        return False
    return config["backend"] in CONTAINER_BACKENDS and not config.get("volumes")
