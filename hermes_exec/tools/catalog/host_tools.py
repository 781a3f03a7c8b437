"""Tools that run on the host, next to the tools that run in the slot. They are always declared, with @tool."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import anyio

from hermes_exec.aio.threads import call_in_daemon_thread
from hermes_exec.checks import validate_timeout
from hermes_exec.errors import ConfigError
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.results import PNG, CallOutcome, to_json
from hermes_exec.tools.catalog.schemas import JsonObject

TIMEOUT_S = 300.0
_TYPES = types.MappingProxyType(
    {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
)


@dataclass(frozen=True)
class HostResult:
    """The result of a host tool that has images: `data` as a tool returns it without images, and PNG images.

    The model receives the images if it accepts images (`ToolOptions.native_images`).
    """

    data: object
    images: Sequence[bytes]


@dataclass(frozen=True)
class HostTool:
    """A host function that a model may call, with the rights of this process. `@tool` creates it.

    `reads_only` declares that the function changes nothing, so it may run beside other calls that only read.
    """

    name: str
    description: str
    parameters: Mapping[str, object]
    function: Callable[..., object]
    example: str = "{}"
    timeout_s: float | None = TIMEOUT_S
    reads_only: bool = False
    runs_on: str = field(default="host", init=False)

    @property
    def schema(self) -> JsonObject:
        """The function schema. Its description ends with the note that the tool runs on the host."""
        description = f"{self.description} (Runs on the host, outside of the slot.)".strip()
        return {
            "type": "function",
            "runs_on": self.runs_on,
            "function": {"name": self.name, "description": description, "parameters": dict(self.parameters)},
        }

    async def run(self, arguments: Mapping[str, object]) -> CallOutcome:
        """Call the function: a coroutine function in the event loop, any other in a thread of its own.

        A thread that exceeds the time limit is abandoned, and does not keep the program from ending.
        """
        value: object = None
        with anyio.move_on_after(self.timeout_s) as within:
            value = await self._invoke(arguments)
        if within.cancelled_caught:
            raise ToolFailure("timeout", f"{self.name} took longer than {self.timeout_s:g} s")
        result = value if isinstance(value, HostResult) else HostResult(value, ())
        if not all(image.startswith(PNG) for image in result.images):
            raise ToolFailure("tool_failed", f"{self.name} returned an image that is not a PNG image")
        data = dict(result.data) if isinstance(result.data, Mapping) else {"result": result.data}
        return CallOutcome(data, images=tuple(result.images))

    async def _invoke(self, arguments: Mapping[str, object]) -> object:
        if inspect.iscoroutinefunction(self.function):
            awaited: Awaitable[object] = self.function(**arguments)
            return await awaited
        return await call_in_daemon_thread(lambda: self.function(**arguments))


@overload
def tool(function: Callable[..., object], /) -> HostTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, object] | None = None,
    timeout_s: float | None = TIMEOUT_S,
    reads_only: bool = False,
) -> Callable[[Callable[..., object]], HostTool]: ...
def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, object] | None = None,
    timeout_s: float | None = TIMEOUT_S,
    reads_only: bool = False,
) -> HostTool | Callable[[Callable[..., object]], HostTool]:
    """Turn a function into a host-side tool for `Toolbox(…, tools=[…])`. Use it as `@tool` or as `@tool(name=…)`.

    The function runs in this process with its rights, not in the slot; the description in the schema includes that.
    `parameters` is a JSON schema of the arguments. By default it is derived from the signature (str, int, float, bool,
    list, dict, list[str], Literal, and `| None` or a default for optional parameters). The function returns a dict (the
    result as data) or any JSON value (wrapped as `result`); with images, a `HostResult`. An exception becomes an error
    result with its type and message, `SystemExit` too, and so does a call that takes longer than `timeout_s` (default
    300; None: no limit). `reads_only=True` declares that the function changes nothing: an agent may then run it beside
    neighbouring calls that only read. By default it runs alone.

    Raises:
        ConfigError: If no schema can be derived from the signature.
    """
    limit_s = validate_timeout(timeout_s)

    def declare(decorated: Callable[..., object]) -> HostTool:
        schema = dict(parameters) if parameters is not None else _parameters_schema(decorated)
        example = to_json(_example_arguments(schema))
        text = description if description is not None else inspect.getdoc(decorated) or ""
        return HostTool(name or decorated.__name__, text, schema, decorated, example, limit_s, reads_only)

    return declare if function is None else declare(function)


def _example_arguments(schema: Mapping[str, object]) -> JsonObject:
    """Return a value for each required parameter of a JSON schema."""
    required, properties = schema.get("required"), schema.get("properties")
    described = properties if isinstance(properties, Mapping) else {}
    return {str(key): _example_value(described.get(key)) for key in (required if isinstance(required, list) else [])}


def _example_value(schema: object) -> object:
    if not isinstance(schema, Mapping):
        return "…"
    if (allowed := schema.get("enum")) and isinstance(allowed, list):
        return allowed[0]
    match schema.get("type"):
        case "array":
            return [_example_value(schema.get("items"))]
        case "object":
            return _example_arguments(schema)
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return "…"


def _parameters_schema(function: Callable[..., object]) -> JsonObject:
    hints = typing.get_type_hints(function)
    properties: JsonObject = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"@tool {function.__name__}: the parameter {parameter.name!r} cannot be given by name; pass "
                "parameters= yourself"
            )
        property_schema = _describe_annotation(hints.get(parameter.name), f"{function.__name__}.{parameter.name}")
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            property_schema["default"] = parameter.default
        properties[parameter.name] = property_schema
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _describe_annotation(annotation: object, location: str) -> JsonObject:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [item for item in typing.get_args(annotation) if item is not type(None)]
        annotation = inner[0] if len(inner) == 1 else None
    if typing.get_origin(annotation) is typing.Literal:
        return {"type": "string", "enum": list(typing.get_args(annotation))}
    plain = typing.get_origin(annotation) or annotation
    kind = _TYPES.get(plain) if isinstance(plain, type) else None
    if kind is None:
        raise ConfigError(
            f"@tool: no JSON type for the annotation of {location}; use str, int, float, bool, list, dict, or pass "
            "parameters= yourself"
        )
    schema: JsonObject = {"type": kind}
    arguments = typing.get_args(annotation)
    if kind == "array" and arguments:
        schema["items"] = _describe_annotation(arguments[0], location)
    return schema
