"""The environment of mini-swe-agent whose commands run in a slot."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_exec import ConfigError, RunResult
from hermes_exec.blocking import SandboxPool, Slot
from hermes_exec.requirements import require_version

if TYPE_CHECKING:
    import logging

SUPPORTED = "mini-swe-agent>=2.4,<3"
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of the output of a command with which the agent hands in its work."""
UNAME = ("system", "node", "release", "version", "machine")


class EnvironmentConfig(BaseModel):
    """The section `environment` of a configuration of mini-swe-agent.

    Fields that are not listed here are options of `SandboxPool` (`backend`, `limits`, `network`, `max_sandboxes`, …).
    """

    model_config = ConfigDict(extra="allow")

    image: str | None = None
    cwd: str = ""
    """Directory in which commands start; empty for the workspace of the slot. A missing one is created."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of each command."""
    forward_env: list[str] = Field(default_factory=list)
    """Variables of this process that each command gets too; `env` has precedence."""
    timeout: float = Field(30, gt=0)
    """Longest time of a command, in seconds."""
    interpreter: list[str] = Field(default_factory=lambda: ["bash", "-lc"], min_length=1)
    """The program and arguments that a command is appended to."""
    pool: str | dict[str, Any] | None = None
    """Configuration file of the pool, or its content; None: the variables `HERMES_EXEC_*`. The other options here have
    precedence.
    """


class MiniEnvironment:
    """Runs the commands of one agent in one slot.

    All environments of a process that have the same pool options share one pool. An agent's slot is acquired here, and
    released by `cleanup` or when the object is no longer used.

    Args:
        config_class: The model that checks `kwargs`: `EnvironmentConfig` or a subclass of it.
        kwargs: Its fields.

    Raises:
        ConfigError: If an option is wrong, the image lacks the interpreter, or another version of mini-swe-agent
            is installed.
        ExecError: If no slot can be acquired.
    """

    def __init__(
        self,
        *,
        config_class: type[EnvironmentConfig] = EnvironmentConfig,
        logger: logging.Logger | None = None,
        **kwargs: Any,
    ) -> None:
        self._slot: Slot | None = None
        require_version("hermes_mini", SUPPORTED)
        try:
            self.config = config_class(**kwargs)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(["environment", *map(str, first["loc"])])
            raise ConfigError(f"{place}: {first['msg']}, not {first['input']!r}") from None
        self._pool = SandboxPool.shared(self.config.pool, **(self.config.model_extra or {})).open()
        self._slot = self._pool.acquire(image=self.config.image, workdir=self.config.cwd or None)
        self._uname: dict[str, str] | None = None
        try:
            self._check_interpreter()
        except BaseException:
            self.cleanup()
            raise
        if logger is not None:
            logger.info("acquired slot %s of sandbox %s", self._slot.id, self._slot.sandbox)

    def execute(self, action: Mapping[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run the command of an action and return `output` (both streams in order), `returncode` and `exception_info`.

        A command that runs longer than `timeout` seconds (None: `config.timeout`), that cannot start in `cwd`, or that
        no program can get (a NUL byte), has the return code -1 and the reason in `exception_info`.

        Raises:
            Submitted: If the command hands in the work of the agent.
            ExecError: If the slot is lost. It is not a result of the command.
        """
        slot = self._open_slot()
        limit_s = timeout or self.config.timeout
        try:
            result = self._run(slot, str(action.get("command", "")), cwd, limit_s)
        except ConfigError as error:  # options were right at the start: it is the model's command or directory
            return _failure("", str(error), type(error).__name__)
        except OSError as error:
            if not error.filename:
                raise
            return _failure("", str(error), type(error).__name__)
        if result.timed_out:
            return _failure(result.output, f"the command timed out after {limit_s:g} seconds", "TimeoutExpired")
        _raise_submission(result)
        return {"output": result.output, "returncode": result.exit_code, "exception_info": ""}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the values that prompts may use: the configuration, and system, release and machine of the slot."""
        from minisweagent.utils.serialize import recursive_merge

        if self._uname is None:
            lines = (
                self._open_slot().run("uname -s && uname -n && uname -r && uname -v && uname -m").stdout.splitlines()
            )
            known = len(lines) == len(UNAME)
            self._uname = dict(zip(UNAME, lines, strict=True)) if known else platform.uname()._asdict()
        merged: dict[str, Any] = recursive_merge(self._visible_config(), self._uname, kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """Return the configuration for the file of the trajectory; secrets are masked."""
        kind = type(self)
        config = {"environment": self._visible_config(), "environment_type": f"{kind.__module__}.{kind.__name__}"}
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        """Release the slot. Has no effect the second time."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._pool.release(slot)

    def __del__(self) -> None:
        # Any thread may run this, also the one of the pool's event loop, which must not wait for itself.
        slot, self._slot = self._slot, None
        if slot is not None and self._pool.is_open:
            with suppress(RuntimeError):  # the interpreter ends: the pool's end releases the slot
                threading.Thread(target=self._pool.release, args=[slot], daemon=True).start()

    def _run(self, slot: Slot, command: str, cwd: str, limit_s: float) -> RunResult:
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        return slot.run(
            [*self.config.interpreter, command],
            cwd=cwd or None,
            env={**forwarded, **self.config.env},
            timeout_s=limit_s,
            merge_stderr=True,
        )

    def _check_interpreter(self) -> None:
        slot, program = self._open_slot(), self.config.interpreter[0]
        if reason := self._run(slot, "true", "", self.config.timeout).reason:
            raise ConfigError(
                f"environment.interpreter: {program!r} cannot run in the image {slot.image!r} ({reason}): set it to a "
                "shell of the image, such as sh with the argument -c, or take an image with a shell"
            )

    def _open_slot(self) -> Slot:
        if self._slot is None:
            raise ConfigError("this environment has released its slot: create a new one")
        return self._slot

    def _visible_config(self) -> dict[str, Any]:
        return self._pool.mask(self.config.model_dump(mode="json"))


def _raise_submission(result: RunResult) -> None:
    lines = result.output.lstrip().splitlines(keepends=True)
    if not lines or lines[0].strip() != SUBMIT or result.exit_code != 0:
        return
    from minisweagent.exceptions import Submitted

    submission = "".join(lines[1:])
    extra = {"exit_status": "Submitted", "submission": submission}
    raise Submitted({"role": "exit", "content": submission, "extra": extra})


def _failure(output: str, reason: str, kind: str) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {reason}",
        "extra": {"exception_type": kind, "exception": reason},
    }
