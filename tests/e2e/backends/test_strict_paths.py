"""Who may write to the way to a directory of ours: the driver, the runner and the probe of SSH hosts obey one table."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from hermes_exec.backends import runner_binary
from hermes_exec.backends.ssh import host as probed
from tests.support.ordinary_user import ROOT, interpreter

ALICE, BOB, STAFF, SHARED, LISTED, LONELY, UNKNOWN = 61001, 61002, 61003, 61004, 61005, 61006, 61007
ANY = 0xFFFFFFFF
PASSWD = f"""root:x:0:0::/:/bin/sh
alice:x:{ALICE}:{ALICE}::/:/bin/sh
bob:x:{BOB}:{BOB}::/:/bin/sh
carol:x:61008:{SHARED}::/:/bin/sh
alice2:x:{ALICE}:{SHARED}::/:/bin/sh
alice3:x:{ALICE}:{LISTED}::/:/bin/sh
alice4:x:{ALICE}:{UNKNOWN}::/:/bin/sh"""
GROUP = f"""root:x:0:
alice:x:{ALICE}:alice
bob:x:{BOB}:
staff:x:{STAFF}:alice
shared:x:{SHARED}:
listed:x:{LISTED}:alice,bob
lonely:x:{LONELY}:"""
"""The last lines have no end, as editors leave them."""


class Case(NamedTuple):
    """Directories from the top down, each with its mode, owner and group, and the user who asks."""

    way: tuple[tuple[int, int, int], ...]
    user: int = ALICE
    refused: str = ""
    acl: bool = False
    """Whether an access control list of the last one lets another user write to it."""


ACL = struct.pack("<I" + "HHI" * 5, 2, 1, 7, ANY, 2, 7, BOB, 4, 5, ANY, 16, 7, ANY, 32, 5, ANY)
"""`user::rwx, user:bob:rwx, group::r-x, mask::rwx, other::r-x`, as the kernel takes it."""
OWN, WRITES, BELONGS = (0o755, ALICE, ALICE), "others may write to", "belongs to another user"
CASES = {
    "own group": Case(((0o775, ALICE, ALICE),)),
    "own group, at the end of a way": Case(((0o775, ALICE, ALICE), OWN, (0o2775, ALICE, ALICE), (0o700, ALICE, ALICE))),
    "root's, for the own group": Case(((0o775, 0, ALICE),)),
    "root's group": Case(((0o775, 0, 0),)),
    "root's group, for root": Case(((0o775, 0, 0),), 0),
    "all": Case(((0o777, ALICE, ALICE), OWN), refused=WRITES),
    "all but the group": Case(((0o757, ALICE, ALICE),), refused=WRITES),
    "all, sticky": Case(((0o1777, 0, 0), OWN)),
    "group of another": Case(((0o775, ALICE, BOB),), refused=WRITES),
    "own group, of another's directory": Case(((0o775, BOB, ALICE),), refused=BELONGS),
    "group that lists one, and is nobody's first": Case(((0o775, ALICE, STAFF),), refused=WRITES),
    "first group of two": Case(((0o775, ALICE, SHARED),), refused=WRITES),
    "own group that lists another": Case(((0o775, ALICE, LISTED),), refused=WRITES),
    "group of nobody": Case(((0o775, ALICE, LONELY),), refused=WRITES),
    "group without a name": Case(((0o775, ALICE, UNKNOWN),), refused=WRITES),
    "a user's group, for root": Case(((0o775, 0, ALICE),), 0, WRITES),
    "own group, and a list": Case(((0o775, ALICE, ALICE),), refused=WRITES, acl=True),
    "closed": Case(((0o700, ALICE, ALICE), (0o777, ALICE, BOB), OWN)),
    "closed, with rights that lead nowhere": Case(((0o766, ALICE, BOB), (0o777, ALICE, BOB))),
    "closed, and set-gid": Case(((0o2744, ALICE, BOB), (0o777, ALICE, ALICE))),
    "open above what is closed": Case(((0o777, ALICE, ALICE), (0o700, ALICE, ALICE)), refused=WRITES),
    "the group enters": Case(((0o710, ALICE, ALICE), (0o777, ALICE, ALICE)), refused=WRITES),
    "others enter": Case(((0o701, ALICE, ALICE), (0o777, ALICE, ALICE)), refused=WRITES),
    "closed, another's directory": Case(((0o700, ALICE, ALICE), (0o755, BOB, BOB)), refused=BELONGS),
    "closed, for root": Case(((0o700, 0, 0), (0o777, 0, 0)), 0, WRITES),
}
ASK = """
import json, os, subprocess, sys
top, python, paths, user = json.loads(sys.argv[1])
for name in ("passwd", "group"):
    subprocess.run(["mount", "--bind", f"{top}/{name}", f"/etc/{name}"], check=True)
def run(*argv):
    done = subprocess.run(argv, user=user, group=user, extra_groups=[], capture_output=True, text=True)
    return done.stdout + done.stderr
driver = "import json, pathlib, sys; from hermes_exec.backends.strict_path import unsafe_reason as why;"
driver += "print(json.dumps([why(pathlib.Path(path)) or '' for path in sys.argv[1:]]))"
print(json.dumps({
    "driver": json.loads(run(python, "-c", driver, *paths)),
    "runner": [run(f"{top}/runner", "end", "--base", f"{path}/hermes-exec-0/base") for path in paths],
    "probe": [run("sh", f"{top}/probe.sh", path) for path in paths],
}))
"""


def make(path: Path, case: Case) -> Path:
    """Make the way; return its end."""
    path.mkdir()
    for mode, user, group in case.way:
        path = path / "d"
        path.mkdir()
        os.chown(path, user, group)
        path.chmod(mode)
    if case.acl:
        os.setxattr(path, "system.posix_acl_access", ACL)
    return path


def answers(top: Path, paths: list[Path], user: int) -> dict[str, list[str]]:
    """Return what each of the three says of each path, where there are the accounts above."""
    for name, text in (("passwd", PASSWD), ("group", GROUP)):
        (top / name).write_text(text)
    shutil.copy(runner_binary.path(), top / "runner")
    shutil.copy(Path(probed.__file__).with_name("probe.sh"), top / "probe.sh")
    env = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    words = json.dumps([str(top), interpreter(env, "nobody"), [str(path) for path in paths], user])
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", ASK, words],
        env=env, cwd="/", stdout=subprocess.PIPE, check=True, timeout=120,
    )  # fmt: skip
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("user", [ALICE, 0])
def test_the_driver_the_runner_and_the_probe_agree(open_directory: Path, user: int) -> None:
    cases = {name: case for name, case in CASES.items() if case.user == user}
    paths = [make(open_directory / str(number), case) for number, case in enumerate(cases.values())]
    wrong = [
        f"{name}: the {who} says {said!r}"
        for who, all_said in answers(open_directory, paths, user).items()
        for (name, case), said in zip(cases.items(), all_said, strict=True)
        if case.refused not in said or (not case.refused and (WRITES in said or BELONGS in said))
    ]
    assert wrong == []
