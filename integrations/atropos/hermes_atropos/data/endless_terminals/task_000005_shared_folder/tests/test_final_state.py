"""Modes and contents below /srv/share."""

import os
import stat
from pathlib import Path

CONTENT = {
    "tools/run.sh": "echo run\n",
    "tools/old/clean up.sh": "echo clean\n",
    "keys/host.key": "secret\n",
    "keys/spare one.key": "spare\n",
    "notes.txt": "notes\n",
    "data/table.csv": "a,b\n",
}


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_contents():
    found = {str(p.relative_to("/srv/share")): p.read_text() for p in Path("/srv/share").rglob("*") if p.is_file()}
    assert found == CONTENT


def test_folders():
    folders = [Path("/srv/share"), *(p for p in Path("/srv/share").rglob("*") if p.is_dir())]
    assert {str(p): mode(p) for p in folders} == {str(p): 0o750 for p in folders}


def test_files():
    wanted = {".sh": 0o750, ".key": 0o600}
    for name in CONTENT:
        path = Path("/srv/share") / name
        assert (name, mode(path)) == (name, wanted.get(path.suffix, 0o640))
