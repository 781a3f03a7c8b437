"""Byte strings in JSON: text if they are UTF-8, else `{"b64": …}`. On the driver's side, other bytes are surrogate
escapes.
"""

from __future__ import annotations

import base64
import binascii
import os
import reprlib

from hermes_exec.errors import ConfigError, ProtocolError

WireBytes = str | dict[str, str]


def to_wire(value: str | bytes | os.PathLike[str] | os.PathLike[bytes], name: str) -> WireBytes:
    """Return a caller's path, argument or value as the wire needs it. `name` describes it in errors.

    Raises:
        ConfigError: If it holds a NUL byte or a lone surrogate, or is neither text nor bytes.
    """
    if type(value) is not str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        if "\0" in value:
            raise ConfigError(f"{name} has a NUL byte")
        if value.isascii():
            return value
        try:
            data = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ConfigError(f"{name} has a lone surrogate at {error.start}, which stands for no bytes") from error
    elif isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if b"\0" in data:
            raise ConfigError(f"{name} has a NUL byte")
    else:
        raise ConfigError(f"{name} must be str or bytes, not {type(value).__name__}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(data).decode("ascii")}


def from_wire(value: object, name: str) -> str:
    """Return a byte string from a sandbox as text. Bytes that are not UTF-8 become surrogate escapes (`os.fsencode`
    reverses them).

    Raises:
        ProtocolError: If it is not a byte string of the wire.
    """
    if isinstance(value, str):
        text = value
        if not text.isascii() and not is_unicode(text):
            raise ProtocolError(f"the sandbox sent a {name} with a lone surrogate, which stands for no bytes")
    elif isinstance(value, dict) and isinstance(encoded := value.get("b64"), str):
        try:
            text = base64.b64decode(encoded.encode(), validate=True).decode("utf-8", "surrogateescape")
        except (binascii.Error, UnicodeEncodeError) as error:
            raise ProtocolError(f"the sandbox sent a {name} that is not base64") from error
    else:
        raise ProtocolError(f"the sandbox sent a {name} of a wrong type")
    if "\0" in text:
        raise ProtocolError(f"the sandbox sent a {name} with a NUL byte")
    return text


def is_unicode(text: str) -> bool:
    """Return whether text can be encoded as UTF-8. JSON may hold lone surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(value: object, limit: int = 4096) -> str:
    """Return text of a sandbox for people: at most `limit` characters, lone surrogates replaced. Other values
    give "".
    """
    if not isinstance(value, str):
        return ""
    text = value[:limit].encode("utf-8", "replace").decode()
    return text if len(value) <= limit else text + "…"


def shorten(value: object) -> str:
    """Return a value of a sandbox for an error message: a short form, however large or deep it is."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxdict = _SHORT.maxlist = 3
