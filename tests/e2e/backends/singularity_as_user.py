"""A program for an ordinary user: runs sandboxes of an image's file, and prints what came of it as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from hermes_exec import Limits, SandboxPool
from hermes_exec.errors import ExecError

FILES = "touch /changed /tmp/changed ~/changed"
FILL = "dd if=/dev/zero of=/large bs=1M count=80 2>/dev/null"


OWNERS = "touch f && chown 5:5 f && id -u && cat $APT_CONFIG"
PLACES = "/ /etc /usr /usr/local /opt /root /of5"
CHANGES = (
    f"for d in {PLACES}; do touch $d/new 2>/dev/null && printf '%s ' $d; done; echo x 2>/dev/null >>/etc/settings && "
    "printf 'append '; mv /opt/file /opt/moved 2>/dev/null && printf 'move '; rm /etc/settings 2>/dev/null && "
    "printf 'remove '; chmod 700 /opt 2>/dev/null && printf 'chmod '"
)
ROOT = (
    "chown 5:5 /etc/settings && chmod 4755 /etc/settings && mv /usr/tree /usr/moved && rm -r /usr/moved && "
    "mkdir /new && id -un && echo me:x:7:7::/:/bin/sh >>/etc/passwd && id me && cat $APT_CONFIG"
)
USERS = "mkdir -m 700 /of5 && touch /of5/f && chown 5:5 /of5 && stat -c %u:%g /of5"


def told(script: str = f"id -u; {FILES} && {FILL}; stat -c %s /large", **options: object) -> str:
    """What a script says in a sandbox with these options, or the error."""
    try:
        with SandboxPool("singularity", **options) as pool, pool.slot() as slot:  # type: ignore[arg-type]
            return slot.run(script).stdout
    except ExecError as error:
        return f"{type(error).__name__}: {error}"


def writes(image: str) -> dict[str, str]:
    """The level of a slot, and the places of the image that it changes, for each way to have the image."""
    one, own, shared = (
        {"slots_per_sandbox": 1},
        {"slots_per_sandbox": 2},
        {"slots_per_sandbox": 2, "slot_root": "shared"},
    )
    ways: dict[str, dict[str, Any]] = {"one": one, "shared": shared}
    ways |= {f"fakeroot {name}": {"fakeroot": True, **way} for name, way in {**ways, "own": own}.items()}
    changed = {}
    for name, way in ways.items():
        with SandboxPool("singularity", image=image, max_sandboxes=1, **way) as pool, pool.slot() as slot:
            changed[name] = f"{slot.isolation.level}: {slot.run(CHANGES).stdout}"
    return changed


def one_id(image: str) -> dict[str, str]:
    """What root of a slot can do that has its own root and is the only user."""
    options: dict[str, Any] = {"image": image, "fakeroot": True, "slots_per_sandbox": 2, "max_sandboxes": 1}
    with SandboxPool("singularity", **options) as pool, pool.slots(2) as (slot, neighbour):
        said = slot.run(ROOT, merge_stderr=True).stdout
        slot.files.write_bytes("/opt/mine", b"x")
        seen = neighbour.run("ls /opt; id -u; kill -9 -1").stdout
        alone = slot.run("sleep 5 & jobs -p | wc -l; touch /opt/again && echo alive").stdout
        try:
            other = slot.run("id", user="5").stdout
        except ExecError as error:
            other = str(error)
        slot.reset()
        after = slot.run("ls /opt").stdout
        return {"said": said, "neighbour": seen, "alone": alone, "other": other, "after": after}


def fill_memory(image: str) -> str:
    """The error of a file that is too large for the memory overlay."""
    with SandboxPool("singularity", image=image, overlay="memory") as pool, pool.slot() as slot:
        try:
            slot.files.write_bytes("/large", bytes(80 << 20))
        except OSError as error:
            return str(error)
    return "no error"


def neighbours(image: str) -> list[str]:
    """What a slot can write to outside of its own directories, where several share a root."""
    options: dict[str, Any] = {"slots_per_sandbox": 2, "max_sandboxes": 1, "slot_root": "shared"}
    with SandboxPool("singularity", image=image, **options) as pool, pool.slots(2) as (one, _):
        places = "/ /etc /dev /home /run /hermes-exec /hermes-exec/state /sys"
        script = f"for d in {places}; do touch $d/x 2>/dev/null && echo $d; done"
        assert one.run("echo x > ~/x && echo x > /tmp/x && echo x > /dev/shm/x && cat ~/x /tmp/x").stdout == "x\nx\n"
        return one.run(script).stdout.split()


def main() -> None:
    """Take the path of the file from the command line, and what else to try than everything: `owners`, `one id`, or the
    paths of directories with the same image, to compare what can be changed.
    """
    image = sys.argv[1]
    if sys.argv[2:] == ["owners"]:
        several = {"slots_per_sandbox": 2, "slot_root": "shared", "min_isolation": "none"}
        print(json.dumps([told(OWNERS, image=image, fakeroot=True, **more) for more in ({}, several)]))
        return
    if sys.argv[2:] == ["one id"]:
        print(json.dumps(one_id(image)))
        return
    if sys.argv[2:]:
        print(json.dumps([writes(image), *map(writes, sys.argv[2:])]))
        return
    answers = {
        "file": told(image=image),
        "memory": told(image=image, overlay="memory"),
        "full memory": fill_memory(image),
        "limits": told(image=image, limits=Limits(memory_mb=64)),
        "best effort": told(image=image, limits=Limits(memory_mb=64), best_effort_limits=True),
        "fakeroot": told(image=image, fakeroot=True),
        "users": told(USERS, image=image, fakeroot=True),
        "neighbours": neighbours(image),
        "left": [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("hermes-singularity")],
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
