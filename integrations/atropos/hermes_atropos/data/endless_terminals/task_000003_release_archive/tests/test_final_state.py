"""The archive, read as a tar file."""

import hashlib
import tarfile
from pathlib import Path

CONTENT = {"src/hello.txt": b"hello\n", "src/sub/numbers.txt": "".join(f"{n}\n" for n in range(1, 101)).encode()}


def sums():
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(CONTENT.items()))


def test_files():
    for path, data in CONTENT.items():
        assert Path(path).read_bytes() == data
    assert Path("SHA256SUMS").read_text() == sums()


def test_archive():
    with tarfile.open("release.tar.gz", "r:gz") as archive:
        found = {m.name.removeprefix("./"): archive.extractfile(m).read() for m in archive if m.isfile()}
    wanted = {f"release-1.0/{path}": data for path, data in CONTENT.items()}
    wanted["release-1.0/SHA256SUMS"] = sums().encode()
    assert found == wanted
