"""An estimate of the memory that a JSON text needs when it is parsed."""

from __future__ import annotations


def is_structure_above(text: bytes, most: int) -> bool:
    """Return whether a JSON text has more than `most` bytes outside of its strings, or more than `most` quotes.

    Outside of strings, three bytes can become an object in memory; a string needs about its own length.
    """
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return bare.count(b'"') > most or sum(map(len, bare.split(b'"')[::2])) > most
