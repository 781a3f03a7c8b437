"""Decompression of answers, in pieces of bounded size."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType

_PIECE_BYTES = 1 << 20

Decode = Callable[[bytes], Iterator[bytes]]


class BadBody(Exception):
    """Raised for the body of an answer that cannot be decompressed, or is too large."""


def accepted_encodings() -> str:
    """Return the value of the header `Accept-Encoding`. `br` needs the package brotli or brotlicffi."""
    return "gzip, deflate" if _load_brotli() is None else "gzip, deflate, br"


def make_decoder(encodings: str) -> Decode | None:
    """Return a function that decompresses the pieces of one answer. None: the answer is not compressed.

    Args:
        encodings: The value of the header `Content-Encoding`, in the order in which they were applied.

    Raises:
        BadBody: For an unknown encoding. The function raises it for a piece that is not of its encoding.
    """
    names = [name for each in encodings.lower().split(",") if (name := each.strip()) not in ("", "identity")]
    if len(names) > 1:
        raise BadBody(f"it has several encodings: {encodings!r:.100}")
    match names:
        case []:
            return None
        case ["gzip" | "x-gzip"]:
            return _Inflate(zlib.MAX_WBITS | 16)
        case ["deflate"]:
            return _Inflate(zlib.MAX_WBITS)
        case ["br"] if (brotli := _load_brotli()) is not None:
            return _Brotli(brotli)
    raise BadBody(f"its encoding was not asked for: {encodings!r:.100}")


class _Inflate:
    """Decompresses gzip and deflate. Some servers send deflate without its frame."""

    def __init__(self, window_bits: int) -> None:
        self._inflate = zlib.decompressobj(window_bits)
        self._may_be_raw = window_bits == zlib.MAX_WBITS

    def __call__(self, piece: bytes) -> Iterator[bytes]:
        try:
            content = self._inflate.decompress(piece, _PIECE_BYTES)
        except zlib.error as error:
            if not self._may_be_raw:
                raise BadBody(str(error)) from error
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            content = self._decompress(piece)
        self._may_be_raw = False
        while content:
            yield content
            content = self._decompress(self._inflate.unconsumed_tail)

    def _decompress(self, piece: bytes) -> bytes:
        try:
            return self._inflate.decompress(piece, _PIECE_BYTES)
        except zlib.error as error:
            raise BadBody(str(error)) from error


class _Brotli:
    """Decompresses brotli, whose two packages differ in one name."""

    def __init__(self, brotli: ModuleType) -> None:
        decompressor = brotli.Decompressor()
        self._error: type[Exception] = brotli.error
        self._process: Callable[..., bytes] = getattr(decompressor, "decompress", None) or decompressor.process

    def __call__(self, piece: bytes) -> Iterator[bytes]:
        try:
            content = self._process(piece, output_buffer_limit=_PIECE_BYTES)
            while content:
                yield content
                content = self._process(b"", output_buffer_limit=_PIECE_BYTES)
        except self._error as error:
            raise BadBody(str(error) or "it is not brotli") from error


@cache
def _load_brotli() -> ModuleType | None:
    """Return a package for brotli that bounds its output, which brotli does since 1.2."""
    for name in ("brotlicffi", "brotli"):
        try:
            brotli = importlib.import_module(name)
            list(_Brotli(brotli)(b""))
        except (ImportError, TypeError):
            continue
        return brotli
    return None
