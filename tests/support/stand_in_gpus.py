"""Device nodes like those of NVIDIA's GPUs, which behave like `/dev/zero`, and an `nvidia-smi` that opens them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.other_user import require_root

NVIDIA_SMI = r"""#!/bin/sh
set -e
for node in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9]*; do
  exec 3<>$node
  head -c 1 <&3 >/dev/null
  echo x >&3
  case $(LC_ALL=C stty <&3 2>&1) in *Inappropriate*) ;; *) echo "$node: no ioctl" >&2; exit 1 ;; esac
  case $node in /dev/nvidia[0-9]*) echo "$node ${CUDA_VISIBLE_DEVICES-unset}" ;; esac
done
test -d /sys/bus && test -e /proc/devices
"""


@contextmanager
def stand_in_gpus(count: int) -> Iterator[None]:
    """Make the nodes of so many GPUs, and remove them afterwards. Takes root, and a host without GPUs."""
    require_root()
    nodes = [Path(f"/dev/{name}") for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(count)))]
    made = []
    try:
        for node in nodes:
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 5))
            made.append(node)
            node.chmod(0o666)
        yield
    finally:
        for node in made:
            with contextlib.suppress(FileNotFoundError):
                node.unlink()


def with_nvidia_smi(directory: Path) -> dict[str, object]:
    """Options of a backend whose slots have the `nvidia-smi`, in this directory."""
    program = directory / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    return {"readonly_paths": [str(directory)], "env": {"PATH": f"{directory}:/usr/local/bin:/usr/bin:/bin"}}
