"""How much memory a JSON text takes when it is parsed, judged before."""

from __future__ import annotations


def is_structure_above(text: bytes, most: int) -> bool:
    """Return whether more than `most` bytes of a JSON text stand outside of its strings, or it has more quotes: three
    of them can be an object in memory, while a string takes about what it has.
    """
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return bare.count(b'"') > most or sum(map(len, bare.split(b'"')[::2])) > most
