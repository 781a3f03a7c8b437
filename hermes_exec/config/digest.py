"""Digests of configurations: equal for equal settings, whatever way they were written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pydantic import BaseModel, SecretBytes, SecretStr

from hermes_exec.config.limits import Limits


def digest(*values: object) -> str:
    """Return a digest of settings. Secrets count, and cannot be read from it."""
    return hashlib.sha256(repr([_plain(value) for value in values]).encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: object) -> object:
    """Return a value as nested tuples whose repr is the same for equal values."""
    if isinstance(value, Limits):  # a limit of None lifts a default
        return ("Limits", _plain({name: getattr(value, name) for name in value.model_fields_set}))
    if isinstance(value, BaseModel):
        wrapped = _plain(value.__pydantic_private__ or {})
        return (type(value).__qualname__, _plain(dict(iter(value))), wrapped)  # a field may be named `keys`
    if isinstance(value, SecretStr | SecretBytes):
        return ("secret", value.get_secret_value())
    if isinstance(value, Mapping):
        return tuple(sorted(((repr(_plain(name)), _plain(each)) for name, each in value.items()), key=repr))
    if isinstance(value, set | frozenset):
        return tuple(sorted((_plain(each) for each in value), key=repr))
    if isinstance(value, tuple | list):
        return tuple(_plain(each) for each in value)
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    return (type(value).__qualname__, repr(value))
