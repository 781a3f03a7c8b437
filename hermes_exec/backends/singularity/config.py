"""The options of the Singularity and Apptainer backend."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hermes_exec.backends.helpers import HelpedConfig
from hermes_exec.config.model import AbsolutePath, Volume


class SingularityConfig(HelpedConfig):
    """Sandboxes as containers of Apptainer or Singularity on this host, as root or as an ordinary user."""

    backend: ClassVar[str] = "singularity"

    creates_per_s: Annotated[float, Field(gt=0)] | None = 50.0
    launches_at_once: Annotated[int, Field(ge=1)] = 8

    image: str | None = None
    """Image of sandboxes if the pool and the profile name none: the path of a `.sif`, of a directory with a root or of
    a `.def`, or an address (`docker://`, `oras://`, `docker-daemon:`, `docker-archive:`, …). Any other name is one in a
    Docker registry.
    """
    binary: str | None = None
    """Name or path of the program; None for `apptainer`, or else `singularity`."""
    overlay: Literal["auto", "disk", "memory"] = "auto"
    """Where a sandbox keeps changes of its image: beside its own directory on `disk`, or in `memory`, bounded by the
    administrator's `sessiondir max size` (64 MiB). `auto`: on disk if its file system allows it.
    """
    fakeroot: bool = False
    """Be root in the sandbox as an ordinary user. Without entries of this user in `/etc/subuid` and `/etc/subgid`, no
    other users exist there, and changes of owners have no effect. A directory must belong to this user.
    """
    cache_dir: AbsolutePath | None = None
    """Directory of the images that were built or converted. Several hosts may share its file system. None for
    `~/.cache/hermes-exec/images`.
    """
    pull_policy: Literal["missing", "never"] = "missing"
    """Whether an image that is not in the cache is fetched or built."""
    no_https: bool = False
    """Speak HTTP to registries."""

    volumes: tuple[Volume, ...] = ()
    """Paths of this host in the sandbox, as `source:target` or `source:target:ro`."""
    shared_volumes: tuple[Volume, ...] = ()
    """Like `volumes`, but all slots write to them. Of `volumes`, a slot with its own root has a private view, which
    ends with the slot.
    """
    gpus: Literal["all", "rocm"] | None = None
    """`all`: NVIDIA's, with their libraries (`--nv`); `rocm`: AMD's. `CUDA_VISIBLE_DEVICES` in `env` selects some of
    them.
    """
    env: dict[str, str] = Field(default_factory=dict)
    """Further variables of the sandbox."""
    base_dir: AbsolutePath | None = None
    """Directory of this host in which each sandbox makes its own private directory; None for the system's temporary
    one.
    """
