"""The options of the Singularity and Apptainer backend."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hermes_exec.backends.helpers import HelpedConfig
from hermes_exec.config.model import AbsolutePath, Volume


class SingularityConfig(HelpedConfig):
    """Sandboxes that are containers of Apptainer or Singularity on this host, as root or as an ordinary user."""

    backend: ClassVar[str] = "singularity"

    creates_per_s: Annotated[float, Field(gt=0)] | None = 50.0
    launches_at_once: Annotated[int, Field(ge=1)] = 8

    image: str | None = None
    """Image of sandboxes for which the pool and the profile name none: the path of a `.sif`, of a directory with a
    root or of a `.def`, or an address (`docker://`, `oras://`, `docker-daemon:`, `docker-archive:`, …). Any
    other name is one of a Docker registry.
    """
    binary: str | None = None
    """Name or path of the program; None for `apptainer`, or `singularity` where there is no such."""
    overlay: Literal["auto", "disk", "memory"] = "auto"
    """Where a sandbox keeps what it changes of its image: beside its own directory on `disk`, or in `memory`, where
    the administrator's `sessiondir max size` bounds it (64 MiB). `auto`: on disk where its file system allows it.
    """
    fakeroot: bool = False
    """Be root in the sandbox as an ordinary user; takes entries of this user in `/etc/subuid` and `/etc/subgid`."""
    cache_dir: AbsolutePath | None = None
    """Directory of the images that were built or converted; may be on a file system that several hosts share. None for
    `~/.cache/hermes-exec/images`."""
    pull_policy: Literal["missing", "never"] = "missing"
    """Whether an image that is not in the cache is fetched or built."""
    no_https: bool = False
    """Speak HTTP to registries."""

    volumes: tuple[Volume, ...] = ()
    """Paths of this host in the sandbox, as `source:target` or `source:target:ro`."""
    shared_volumes: tuple[Volume, ...] = ()
    """The same, written to by all slots. Of `volumes` a slot with a root of its own has a view of its own, which ends
    with it."""
    gpus: Literal["all", "rocm"] | None = None
    """`all`: NVIDIA's, with their libraries (`--nv`); `rocm`: AMD's. Some of them are chosen by
    `CUDA_VISIBLE_DEVICES` in `env`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further variables of the sandbox."""
    base_dir: AbsolutePath | None = None
    """Directory of this host in which each sandbox makes its own private directory; None for the system's temporary
    one.
    """
