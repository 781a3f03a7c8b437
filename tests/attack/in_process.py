"""Fires attacks in this process and prints the outcomes as JSON.

Usage: `python -m tests.attack.in_process [options] LEVEL [ROW…]`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import anyio

from tests.attack.arena import FEW, LONG_S, SHORT_S
from tests.attack.fire import control_all, fire
from tests.attack.levels import LEVELS
from tests.attack.programs.tenant import syscall
from tests.attack.table import ROWS

JOIN_SESSION_KEYRING = 1


@cache
def image(backend: str) -> str:
    """The image of the sandboxes of a backend."""
    if backend == "singularity":
        from tests.images import directories

        return str(directories.ensure("debian"))
    import docker

    from tests.images.build import ensure

    client = docker.from_env(timeout=300)
    try:
        return ensure(client, "debian")
    finally:
        client.close()


def main() -> None:
    """Fire all attacks, or those rows that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("level", choices=LEVELS)
    parser.add_argument("--planted", type=Path, help="directory of programs that would make root of whoever runs them")
    parser.add_argument("--alone", action="store_true", help="fire within one slot, where attacks have to succeed")
    parser.add_argument("--long", action="store_true", help="use up resources for seconds, and measure the neighbour")
    parser.add_argument("--much", type=int, default=FEW, help="entries of the large directory")
    parser.add_argument("--rounds", type=int, help="how often each row is fired at the most")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    options = parser.parse_args()
    # As after a login: a keyring that all processes which are started from here inherit.
    syscall("keyctl", JOIN_SESSION_KEYRING, ctypes.c_char_p(None))
    level = LEVELS[options.level]
    its_image = partial(image, level.backend)
    rows = [row for row in ROWS if not options.rows or row.id in options.rows]
    if options.alone:
        json.dump(anyio.run(partial(control_all, level, rows, its_image)), sys.stdout)
    else:
        seconds = LONG_S if options.long else SHORT_S
        amounts = (seconds, options.much, options.rounds)
        outcomes = anyio.run(partial(fire, level, rows, its_image, options.planted, *amounts))
        json.dump({name: asdict(outcome) for name, outcome in outcomes.items()}, sys.stdout)


if __name__ == "__main__":
    main()
