"""Base of every configuration model: frozen, refuses unknown names with the nearest valid one, one sentence an
error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretBytes, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from hermes_exec.errors import ConfigError

T = TypeVar("T")
MASK = "***"
"""Text in place of a secret."""
_FIELD = re.compile(r"[a-z_][\w.]*: ")


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint at the nearest valid name, or at all of them if none is near."""
    names = sorted(set(valid))
    by_fold = {n.casefold(): n for n in names}
    longer = [n for n in names if n.casefold().startswith(f"{name.casefold()}_")]
    if len(longer) == 1:
        return f"did you mean {longer[0]!r}?"
    matches = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.55)
    if matches:
        return f"did you mean {by_fold[matches[0]]!r}?"
    return f"valid names are {', '.join(names)}" if names else "there are none"


def check_text(value: object) -> None:
    """Raise ValueError for text that UTF-8 cannot encode (lone surrogates), also inside a collection."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{_short(value)} is not valid Unicode") from None
    elif isinstance(value, Mapping):
        check_text((*value.keys(), *value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            check_text(part)


def check_absolute(path: str) -> str:
    """Return the path if it is absolute, else raise ValueError."""
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{path!r} is not an absolute path")
    return path


AbsolutePath = Annotated[str, AfterValidator(check_absolute)]


def check_volume(volume: str) -> str:
    """Return the volume if it is `source:target[:mode]` with an absolute target, else raise ValueError."""
    parts = volume.split(":")
    if len(parts) not in {2, 3} or not parts[0] or not parts[1].startswith("/"):
        raise ValueError(f"{volume!r} is not source:target or source:target:mode with an absolute target")
    return volume


def volume_parts(volume: str) -> tuple[str, str, str]:
    """Return source, target and mode (default `rw`) of a valid volume."""
    source, target, mode = (*volume.split(":"), "rw")[:3]
    return source, target, mode


Volume = Annotated[str, AfterValidator(check_volume)]


class ConfigModel(BaseModel):
    """A configuration object. Building one with a wrong name or value raises ConfigError."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=False, allow_inf_nan=False, defer_build=True
    )

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self))) from None

    @classmethod
    def of(cls, values: object) -> Self:
        """Build the object from a mapping, for example of a file.

        Raises:
            ConfigError: If a name or a value is wrong.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(explain(error, cls)) from None


def secret_fields(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of the fields that hold secrets, in a model and in nested models."""
    names: set[str] = set()
    for name, field in model.model_fields.items():
        for kind in _component_types(field.annotation):
            if issubclass(kind, SecretStr | SecretBytes):
                names.add(name)
            elif issubclass(kind, BaseModel):
                names |= secret_fields(kind)
    return frozenset(names)


def mask_settings(data: T, fields: Collection[str]) -> T:
    """Return settings, as JSON has them, with the values of these fields masked at any depth."""
    result: object = data
    if isinstance(data, dict):
        result = {
            name: (dict.fromkeys(value, MASK) if isinstance(value, dict) else MASK)
            if name in fields and value is not None
            else mask_settings(value, fields)
            for name, value in data.items()
        }
    elif isinstance(data, list):
        result = [mask_settings(value, fields) for value in data]
    return cast(T, result)


def _component_types(annotation: Any) -> Iterator[type]:  # noqa: ANN401 - any annotation
    """Yield the classes in an annotation."""
    if isinstance(annotation, type):
        yield annotation
    for part in get_args(annotation):
        yield from _component_types(part)


def _is_hidden(model: type[BaseModel], path: Sequence[int | str]) -> bool:
    """Return whether the value at a path is a secret, or may hold one."""
    field = model.model_fields.get(str(path[0])) if path else None
    if field is None:
        return False
    if path[0] in secret_fields(model):
        return True
    inner = [kind for kind in _component_types(field.annotation) if issubclass(kind, BaseModel)]
    if len(path) == 1:
        return any(map(secret_fields, inner))
    return any(_is_hidden(kind, path[begin:]) for kind in inner for begin in range(1, len(path)))


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return all errors, one sentence each, with the path of the field and without the values of secrets."""
    return "\n".join(_format_error(detail, model) for detail in error.errors(include_url=False))


def _format_error(detail: ErrorDetails, model: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        name = str(detail["loc"][-1])
        inner = len(detail["loc"]) > 1
        hint = "" if inner else f"; {nearest(name, model.model_fields)}"
        return f"{model.__name__} has no option {path!r}{hint}"
    raised = detail.get("ctx", {}).get("error")
    if isinstance(raised, ConfigError):
        joint = "." if _FIELD.match(str(raised)) else ": "
        return f"{path}{joint}{raised}" if path else str(raised)
    problem = detail["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list")
    problem = problem[:1].lower() + problem[1:]
    hidden = detail["type"] in {"missing", "value_error"} or _is_hidden(model, detail["loc"])
    received = "" if hidden else f", not {_short(detail['input'])}"
    if detail["type"] == "missing" and len(detail["loc"]) == 1:
        received = f" ({path}=... in Python, --option {path}=... on the command line)"
    return f"{path or model.__name__}: {problem}{received}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
