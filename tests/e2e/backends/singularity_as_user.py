"""A program for an ordinary user: runs boxes of an image's file, and prints what came of it as JSON."""

from __future__ import annotations

import json
import os
import sys

from hermes_exec import Limits, SandboxPool
from hermes_exec.errors import ExecError

FILL = "dd if=/dev/zero of=/large bs=1M count=80 2>/dev/null"


def told(**options: object) -> str:
    """What a box with these options says, or its error."""
    try:
        with SandboxPool("singularity", **options) as pool, pool.slot() as slot:  # type: ignore[arg-type]
            return slot.run(f"id -u; touch /changed /tmp/changed ~/changed && {FILL}; stat -c %s /large").stdout
    except ExecError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Take the path of the file from the command line."""
    image = sys.argv[1]
    answers = {
        "file": told(image=image),
        "memory": told(image=image, overlay="memory"),
        "limits": told(image=image, limits=Limits(memory_mb=64)),
        "best effort": told(image=image, limits=Limits(memory_mb=64), best_effort_limits=True),
        "fakeroot": told(image=image, fakeroot=True),
        "left": [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("hermes-singularity")],
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
