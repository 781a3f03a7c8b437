"""Byte strings in JSON: text where it is UTF-8, `{"b64": …}` where it is not; surrogate escapes on our side."""

from __future__ import annotations

import base64
import binascii
import os
import reprlib

from hermes_exec.errors import ConfigError, ProtocolError

WireBytes = str | dict[str, str]


def to_wire(value: str | bytes | os.PathLike[str] | os.PathLike[bytes], name: str) -> WireBytes:
    """A caller's path, argument or value in the form of the wire; `name` names it in errors.

    Raises:
        ConfigError: it holds a NUL byte, text that stands for no bytes, or is neither text nor bytes.
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
    """A byte string from a sandbox as text; bytes that are not UTF-8 become surrogate escapes (`os.fsencode` undoes
    it).

    Raises:
        ProtocolError: it is not a byte string of the wire.
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
    """Whether it can be written as UTF-8: JSON may name halves of characters, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(value: object, limit: int = 4096) -> str:
    """Words of a sandbox for people: halves of characters replaced, and no more than `limit` of it; "" for anything
    else.
    """
    if not isinstance(value, str):
        return ""
    text = value[:limit].encode("utf-8", "replace").decode()
    return text if len(value) <= limit else text + "…"


def shorten(value: object) -> str:
    """Whatever a sandbox sent, as an error shows it: a few words of it, however large or deep it is."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxdict = _SHORT.maxlist = 3
