"""Sizes, times and switches of a Toolbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from hermes_exec.config.model import nearest
from hermes_exec.errors import ConfigError

CodeMode = Literal["project", "strict", "kernel"]


@dataclass(frozen=True)
class ToolOptions:
    """Limits of the tools. Sizes are characters, times seconds."""

    result_limit_chars: int = 100_000
    """A longer result is written to a file in the slot, and the model sees a preview.

    `read_file` has its own limits and is exempt.
    """
    turn_limit_chars: int = 200_000
    """The limit for all results of one turn together (`Toolbox.fit_turn`)."""
    preview_chars: int = 1_500
    terminal_timeout_s: int = 180
    terminal_max_timeout_s: int = 600
    terminal_output_chars: int = 50_000
    read_chars: int = 100_000
    read_line_chars: int = 2_000
    skip_unchanged_reads: bool = True
    """Answer a repeated read of an unchanged range with a note instead of the text."""
    similarity_patch: bool = False
    """Let `patch` also use the strategies that accept similar lines (block_anchor, context_aware)."""
    search_timeout_s: float = 60.0
    process_wait_max_s: int = 180
    process_write_max_s: int = 10
    """The maximum wait for a background process to read its input."""
    max_running_processes: int = 64
    process_log_bytes: int = 1 << 20
    code_mode: CodeMode = "project"
    """How execute_code runs: `project` from the state of the terminal's session (its directory, variables, virtual
    environment), `strict` in an empty directory with the slot's environment, `kernel` like `project`, but in one Python
    process that keeps its variables between calls.
    """
    code_timeout_s: int = 300
    code_max_calls: int = 50
    """The maximum number of tool calls in one execute_code."""
    code_output_chars: int = 50_000
    code_error_chars: int = 10_000
    browser_changes: bool = False
    """Add the changes of the snapshot to the result of a browser action."""
    native_images: bool = False
    """The model accepts images: browser_vision returns the screenshot itself, and execute_code returns up to four
    figures, each in addition to its path in the slot.
    """

    def __post_init__(self) -> None:
        if self.code_mode not in get_args(CodeMode):
            raise ConfigError(f"ToolOptions.code_mode is project, strict or kernel, not {self.code_mode!r}")
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise ConfigError(f"ToolOptions.{name} must be above 0, not {value!r}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ToolOptions:
        """Create options from a mapping, such as one read from a file.

        Raises:
            ConfigError: If a name is unknown or a value has the wrong type.
        """
        defaults = vars(cls())
        for name, value in values.items():
            if name not in defaults:
                raise ConfigError(f"ToolOptions has no {name!r}; {nearest(name, defaults)}")
            kind = type(defaults[name])
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise ConfigError(f"ToolOptions.{name} is of type {kind.__name__}, not {value!r}")
        return cls(**values)

    def for_context_window(self, window_chars: int) -> ToolOptions:
        """Return these options with result limits scaled to a model's context window.

        The limits are 15 % for a result (at least 8,000) and 30 % for a turn (at least 16,000), but never above the
        limits of these options.
        """
        return replace(
            self,
            result_limit_chars=min(self.result_limit_chars, max(8_000, window_chars * 15 // 100)),
            turn_limit_chars=min(self.turn_limit_chars, max(16_000, window_chars * 30 // 100)),
        )
