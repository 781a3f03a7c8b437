"""What a slot does before it, or another one, is reset."""

from __future__ import annotations

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import Target, main, refused, show, syscall

AT_FDCWD, RENAME_EXCHANGE = -100, 2


def leave(target: Target) -> None:
    """A file of mode 0600 in the deepest of the directories; those that are not there are made."""
    os.umask(0)
    os.makedirs(target["place"], exist_ok=True)
    os.umask(0o077)
    file = pathlib.Path(target["place"], "left")
    file.write_text(target["secret"])
    show(f"left {file.read_text()}")


def look(target: Target) -> None:
    """Read that file."""
    with refused():
        show(pathlib.Path(target["place"], "left").read_text())


def exchange(target: Target) -> None:
    """Exchange two names in an open directory of ours without end."""
    os.umask(0)
    os.makedirs(target["place"])
    one, two = (f"{target['place']}/{name}".encode() for name in ("one", "two"))
    show("ready")
    while True:
        with refused():
            syscall("renameat2", AT_FDCWD, one, AT_FDCWD, two, RENAME_EXCHANGE)


def spread(target: Target) -> None:
    """Very many open directories, which are there until our slot is reset."""
    os.umask(0)
    for number in range(int(target["directories"])):
        os.mkdir(f"{target['place']}-{number}")
    show("ready")
    time.sleep(600)


def flood_both(target: Target) -> None:
    """So many bytes on both streams."""
    block = b"x" * 65536
    for _ in range(int(target["bytes"]) // len(block)):
        os.write(1, block)
        os.write(2, block)


def dig(target: Target) -> None:
    """Directories with long names, one in another."""
    os.mkdir("top")
    os.chdir("top")
    for _ in range(int(target["levels"])):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)


main(globals())
