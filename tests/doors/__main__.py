"""`python -m tests.doors` runs the tests of adapters, each in an environment with its target."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

from tests.support.doors import DOORS, ROOT, Door, DoorClosed, DoorEnvironment, door_names, prepare

NO_TESTS = 5


def main() -> int:
    """Run the tests of each target; the exit code is 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.doors", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(door_names())}")
    parser.add_argument("--sample", action="store_true", help="leave out tests marked `whole`, and mypy")
    parser.add_argument(
        "--pytest", default="", metavar="ARGUMENTS", help="more arguments for pytest, such as '-k NAME'"
    )
    parser.add_argument("--prepare", action="store_true", help="only create the environments")
    options = parser.parse_args()
    if unknown := set(options.names) - set(door_names()):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    failed, left_out = [], []
    for name in options.names or door_names():
        print(f"\n== doors: {name}", flush=True)
        door = Door.read(name)
        if options.sample and door.package is None:
            continue  # all its tests are of the target
        try:
            environment = prepare(door)
        except DoorClosed as reason:
            left_out.append(f"{name} ({reason})")
            continue
        if not options.prepare and not run(door, environment, shlex.split(options.pytest), sample=options.sample):
            failed.append(name)
    for title, names in (("left out", left_out), ("FAILED", failed)):
        if names:
            print(f"doors: {title}: {'; '.join(names)}")
    return 1 if failed else 0


def run(door: Door, environment: DoorEnvironment, more: list[str], *, sample: bool) -> bool:
    """Run the tests of a target, and mypy on its adapter. Return whether they passed."""
    tests = DOORS / door.name
    chosen = ["-m", "not whole"] if sample else []
    pytest = [str(environment.python), "-m", "pytest", "-p", "no:asyncio", f"--confcutdir={DOORS}"]
    variables = environment.env | {"HERMES_DOOR": door.name}
    tested = subprocess.run([*pytest, str(tests), *chosen, *more], cwd=ROOT, env=variables, check=False)
    if sample or more or door.package is None:
        return tested.returncode in (0, NO_TESTS)
    mypy = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--python-executable", str(environment.python)]
    typed = subprocess.run(
        [*mypy, "--cache-dir", f".mypy_cache/{door.name}", "-p", door.package], cwd=ROOT, check=False
    )
    return tested.returncode in (0, NO_TESTS) and typed.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
