"""Limits of a sandbox or of a slot."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hermes_exec.config.model import ConfigModel

Positive = Annotated[int, Field(gt=0, le=2**53, strict=True)]

PER_PROCESS = ("open_files", "file_size_mb", "cpu_time_s")


class Limits(ConfigModel):
    """Upper bounds for a sandbox or a slot; None for no limit.

    A limit that cannot be enforced is refused. With `best_effort_limits` it is listed as `not enforced` instead.
    """

    cpus: Annotated[float, Field(gt=0, le=4096)] | None = None
    """Processors, as a share of time: 0.5 is half of one."""
    memory_mb: Positive | None = None
    """Memory in MiB. A command over it is ended, with `oom_killed` in its result. A container's memory includes the
    runner and some 4 MiB for each slot: less than 8 is refused.
    """
    pids: Positive | None = None
    """Processes and threads at one time. Default for a slot: 1,024; for a container: the sum of its slots. A command
    that finds none left is a result with exit code 126. A container gets about 30 more for the runner and as many for
    each slot's agent: while few slots are in use, commands can have more.
    """
    disk_mb: Positive | None = None
    """Space for the files of a slot in MiB: in its workspace, home and temporary directories, and its changes of an
    image. Only slots with a file system of their own have it; no engine limits the disk of a whole sandbox. The file
    system is in a sparse file for root on `local` and `ssh` (with `mkfs.ext4` and loop devices), and in memory
    elsewhere: its files then count as memory of the slot and its sandbox. It needs a few percent of the space itself.
    """
    open_files: Positive | None = None
    """Open files of each process."""
    file_size_mb: Positive | None = None
    """Size of each written file, in MiB."""
    cpu_time_s: Annotated[float, Field(gt=0, le=2**53)] | None = None
    """Processor seconds of each process."""

    def per_process(self) -> dict[str, float | int]:
        """Return the limits of a single process that are set. Slots enforce them."""
        return {name: value for name, value in self.to_dict().items() if name in PER_PROCESS}

    def total(self) -> dict[str, float | int]:
        """Return the limits over all processes together that are set. The sandbox or the slot enforces them."""
        return {name: value for name, value in self.to_dict().items() if name not in PER_PROCESS}

    def to_dict(self) -> dict[str, float | int]:
        """Return the limits that are set, by name."""
        return {name: value for name, value in self if value is not None}
