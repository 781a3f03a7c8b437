"""Runs a harness in a slot: its command, its environment, its time, and the way it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hermes_agent.messages import Message, image_parts, message_text
from hermes_exec import Slot
from hermes_exec.errors import ConfigError

TASK_FIELD = "{task}"
"""The text that each argument of a program has in place of the task."""
TASK_VARIABLE = "HERMES_TASK"
DEADLINE_S = 3600.0
"""The most seconds that a program runs, unless another deadline is given."""
_OUTPUT_BYTES = 16 << 10


@dataclass(frozen=True)
class ProgramResult:
    """The end of a program.

    Attributes:
        exit_code: The exit code, as in `RunResult`.
        signal: The signal that ended it. None: it ended by itself.
        timed_out: Whether it was ended because its time was over.
        output: The beginning and end of its output, of 16 KiB together. The key of the gateway is masked.
        duration_s: Its run time.
        reason: Why it could not be started. None: it was started.
    """

    exit_code: int
    signal: int | None = None
    timed_out: bool = False
    output: str = ""
    duration_s: float = 0.0
    reason: str | None = None

    def explain(self) -> str:
        """Return a sentence about the end, with the last lines of the output."""
        if self.reason is not None:
            return f"the program could not be started: {self.reason}"
        end = f"the program ended with exit code {self.exit_code}"
        last = self.output.strip()[-500:]
        return f"{end}; it printed: {last}" if last else f"{end} and printed nothing"


@dataclass(frozen=True, kw_only=True)
class HarnessProgram:
    """A harness with its task.

    Args:
        command: The program and its arguments, each with the task in place of `{task}`. Or a text for the slot's shell,
            which is run as it is. Both have the task in `HERMES_TASK`.
        task: The task.
        env: Variables of the program, which win over the gateway's.
        cwd: Directory to start in, `slot.workdir` by default.
        deadline_s: The most seconds that it runs, with outages of the model's endpoint. `math.inf`: no bound.

    Raises:
        ConfigError: If the command is empty.
    """

    command: str | Sequence[str]
    task: str
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        if not self.command or (isinstance(self.command, str) and not self.command.strip()):
            raise ConfigError("program is a command, and this one is empty")
        if not self.deadline_s > 0:
            raise ConfigError(f"deadline_s is above 0, not {self.deadline_s!r}")

    async def run(self, slot: Slot, env: Mapping[str, str]) -> ProgramResult:
        """Run it with the variables of a gateway, and return how it ended.

        Raises:
            ConfigError, OSError, ExecError: As `Slot.run`.
        """
        command = self.command
        if not isinstance(command, str):
            command = [argument.replace(TASK_FIELD, self.task) for argument in command]
        result = await slot.run(
            command,
            timeout_s=self.deadline_s if math.isfinite(self.deadline_s) else None,
            cwd=self.cwd,
            env={**env, TASK_VARIABLE: self.task, **self.env},
            output_limit_bytes=_OUTPUT_BYTES,
            merge_stderr=True,
        )
        return ProgramResult(
            exit_code=result.exit_code,
            signal=result.signal,
            timed_out=result.timed_out,
            output=result.output,
            duration_s=result.duration_s,
            reason=result.reason,
        )


def task_text(messages: Sequence[Message] | str) -> str:
    """Return the task of a program: a text, or the text of one user message.

    Raises:
        ConfigError: If there are other messages, or images.
    """
    if isinstance(messages, str):
        return messages
    (message, *others) = messages or ({},)
    if others or message.get("role") != "user" or image_parts(message):
        raise ConfigError("with program, messages is a text or one user message without images")
    return message_text(message)
