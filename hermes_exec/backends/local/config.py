"""The options of the local backend."""

from __future__ import annotations

from typing import ClassVar

from hermes_exec.backends.host_gpus import GPUConfig
from hermes_exec.config.model import AbsolutePath


class LocalConfig(GPUConfig):
    """Sandboxes as process trees on this host."""

    backend: ClassVar[str] = "local"
    default_slots: ClassVar[int] = 64
    default_max_sandboxes: ClassVar[int] = 1

    readonly_paths: tuple[AbsolutePath, ...] = ()
    """Further absolute paths of the host that slots may read, besides the system's and the running Python's."""
    base_dir: AbsolutePath | None = None
    """Directory in which each sandbox makes its own private directory; None for the system's temporary directory."""
