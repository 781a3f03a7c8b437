"""The slot of a task: its profile, and its set-up command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_batch.task import Task
from hermes_exec import ProfileConfig, Slot
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError, ErrorCause, ExecError

_OUTPUT_BYTES = 8192


class SetUpFailed(ExecError):
    """Raised when the set-up command of a task fails: the task's data are wrong, and the model is not to blame."""

    default_cause = ErrorCause.TASK


@dataclass(frozen=True)
class SetUpCommand:
    """A command that prepares a slot, after the files of its task are there.

    Args:
        command: The command.
        timeout_s: Longest time of the command.
    """

    command: str
    timeout_s: float

    async def __call__(self, slot: Slot) -> None:
        """Run the command in the slot.

        Raises:
            SetUpFailed: If it fails or takes too long.
        """
        result = await slot.run(
            self.command, timeout_s=self.timeout_s, merge_stderr=True, output_limit_bytes=_OUTPUT_BYTES
        )
        if result.timed_out:
            raise SetUpFailed(f"the setup took longer than {self.timeout_s:g} s; it printed: {result.output[-500:]}")
        if not result.ok:
            raise SetUpFailed(f"the setup ended with exit code {result.exit_code}; it printed: {result.output[-500:]}")


def make_profile(task: Task, profiles: Mapping[str, Any]) -> str | ProfileConfig | None:
    """Return the profile of a task's slot: a name, an inline profile with its `network` and `env`, or None.

    Args:
        task: The task.
        profiles: The pool's profiles by name: `ProfileConfig` or mappings.

    Raises:
        ConfigError: If there is no such profile.
    """
    if task.profile is not None and task.profile not in profiles:
        raise ConfigError(f"profile: there is no profile {task.profile!r}; {nearest(task.profile, profiles)}")
    if task.network is None and not task.env:
        return task.profile
    base: dict[str, Any] = {} if task.profile is None else dict(profiles[task.profile] or {})
    base.pop("min_sandboxes", None)  # only named profiles keep sandboxes
    if task.network is not None:
        base["network"] = task.network
    return ProfileConfig.of({**base, "env": {**(base.get("env") or {}), **task.env}})


def image_of_profile(name: str | None, profiles: Mapping[str, Any]) -> str | None:
    """Return the image of a profile, or None if it has none or there is no such profile."""
    image = dict(profiles.get(name or "") or {}).get("image")
    return image if isinstance(image, str) else None
