"""The options of the local backend."""

from __future__ import annotations

from typing import ClassVar

from pydantic import field_validator

from hermes_exec.config.backend import BackendConfig


class LocalConfig(BackendConfig):
    """Boxes that are a process tree on this host."""

    backend: ClassVar[str] = "local"
    default_slots: ClassVar[int] = 64
    default_max_sandboxes: ClassVar[int] = 1

    readonly_paths: tuple[str, ...] = ()
    """Further absolute paths of the host that slots may read, besides what the system and the running Python need."""
    base_dir: str | None = None
    """Directory in which each box makes its own private directory; None for the system's temporary directory."""

    @field_validator("readonly_paths", "base_dir")
    @classmethod
    def _absolute(cls, value: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        for path in (value,) if isinstance(value, str) else value or ():
            if not path.startswith("/") or "\0" in path:
                raise ValueError(f"{path!r} is not an absolute path")
        return value
