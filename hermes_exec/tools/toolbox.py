"""The Toolbox: executes a model's tool calls in one slot; and its blocking form."""

from __future__ import annotations

import copy
import difflib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import anyio
from anyio.from_thread import BlockingPortal

import hermes_exec.blocking
from hermes_exec.aio.loop import raise_stray_cancellation
from hermes_exec.aio.portal import call
from hermes_exec.errors import CommandFailed, ConfigError, ErrorCause, ExecError, OutputLimitExceeded, SandboxDied
from hermes_exec.slot.checkpoint import StateKey
from hermes_exec.slot.run import OnOutput
from hermes_exec.slot.slot import Slot
from hermes_exec.tools.call import budget
from hermes_exec.tools.call.arguments import parse_arguments
from hermes_exec.tools.call.coercion import coerce_arguments
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import NO_SPACE, REMOVE_FILES_HINT
from hermes_exec.tools.call.results import CallOutcome, ToolResult, to_json
from hermes_exec.tools.catalog.host_tools import HostTool
from hermes_exec.tools.catalog.registry import REGISTRY
from hermes_exec.tools.catalog.schemas import EXAMPLES, JsonObject
from hermes_exec.tools.catalog.selection import choose_tools
from hermes_exec.tools.catalog.toolsets import KNOWN_TOOLS, unavailability_reason, usable_tools
from hermes_exec.tools.options import ToolOptions
from hermes_exec.tools.state.tool_state import SavedToolState, ToolState
from hermes_exec.tools.state.watch import Notice
from hermes_exec.tools.terminal import background, notices

R = TypeVar("R")
AroundCall = Callable[[str, Mapping[str, object], Callable[[], Awaitable[ToolResult]]], Awaitable[ToolResult]]
logger = logging.getLogger(__name__)


class Toolbox:
    """The tools of one slot for one model.

    `toolsets` are names of toolsets (default `terminal` and `file`; `hermes-exec tools list` shows them). `tools` are
    names of single tools, and host-side tools made with `@tool`. Both may be given. `options` are the limits. A
    blocking slot gives a blocking toolbox: the same names, values instead of awaitables.

    A Toolbox has one shell session for its terminal. Background processes belong to the slot: another Toolbox of the
    same slot sees them, and closing a Toolbox ends none of them. Calls may run at the same time; commands of the
    session and writes of files run one after the other, in the order of their calls.

    `like` is a Toolbox of the slot that this slot is a fork of: the new one has its tools and options, unless others
    are given, and continues from its session and from the files that the model had seen at the checkpoint. After
    `Slot.restore`, a Toolbox continues in the same way.

    Tools that a toolset names but this package does not have are left out and listed in `unavailable`.

    Raises:
        ConfigError: If a name is unknown, if this package does not have a tool of `tools`, if no tool remains, or if
            the checkpoint of this slot does not hold the state of `like`.
    """

    state_key: StateKey
    _state: ToolState

    @overload
    def __new__(
        cls,
        slot: Slot,
        toolsets: Iterable[str] | None = None,
        *,
        tools: Iterable[str | HostTool] | None = None,
        options: ToolOptions | None = None,
        like: Toolbox | None = None,
    ) -> Self: ...
    @overload
    def __new__(
        cls,
        slot: hermes_exec.blocking.Slot,
        toolsets: Iterable[str] | None = None,
        *,
        tools: Iterable[str | HostTool] | None = None,
        options: ToolOptions | None = None,
        like: Toolbox | None = None,
    ) -> BlockingToolbox: ...
    def __new__(  # noqa: PYI034  (the overloads define the return type)
        cls,
        slot: Slot | hermes_exec.blocking.Slot,
        toolsets: Iterable[str] | None = None,
        *,
        tools: Iterable[str | HostTool] | None = None,
        options: ToolOptions | None = None,
        like: Toolbox | None = None,
    ) -> Toolbox:
        """Create the complete object. There is no `__init__`, because the class depends on the slot."""
        if isinstance(slot, hermes_exec.blocking.Slot):
            make = partial(Toolbox, slot.wrapped, toolsets, tools=tools, options=options, like=like)
            return BlockingToolbox.wrap(make() if like is None else _make_in_loop(slot.portal, make), slot.portal)
        if not isinstance(slot, Slot):
            raise ConfigError(f"a Toolbox works in a slot (`pool.slot()`), not in a {type(slot).__name__}")
        toolbox = object.__new__(cls)
        toolbox._set_up(slot, toolsets, tools, options, like.wrapped if isinstance(like, BlockingToolbox) else like)
        return toolbox

    def _set_up(
        self,
        slot: Slot,
        toolsets: Iterable[str] | None,
        tools: Iterable[str | HostTool] | None,
        options: ToolOptions | None,
        like: Toolbox | None,
    ) -> None:
        if like is None or toolsets is not None or tools is not None:
            self._schemas, self._host, self._code_tools, self.unavailable = choose_tools(toolsets, tools)
        else:
            self._schemas, self._host, self._code_tools = like._schemas, like._host, like._code_tools
            self.unavailable = like.unavailable
        self.state_key = StateKey() if like is None else like.state_key
        if like is not None and slot.find_saved_state(like.state_key) is None:
            raise ConfigError(
                "the checkpoint of this slot does not hold the state of that Toolbox: make the Toolbox before "
                "`slot.checkpoint()`, and acquire the slot with from_="
            )
        self._state = self._new_state(slot, options or (ToolOptions() if like is None else like._state.options))
        slot.keep_state_of(self)

    def save_state(self) -> SavedToolState:
        """Return the state for a checkpoint of the slot."""
        self._renew_state()
        return self._state.save()

    def _renew_state(self) -> None:
        """Begin a new state if the slot was reset or restored since the last one."""
        if self._state.resets != self._state.slot.resets:
            self._state = self._new_state(self._state.slot, self._state.options)

    def _new_state(self, slot: Slot, options: ToolOptions) -> ToolState:
        """Return a state for the slot as it is now: new, or from the checkpoint that the slot was set to."""
        state = ToolState(
            slot,
            options,
            frozenset(self._schemas),
            resets=slot.resets,
            call_tool=self._call_from_code,
            code_tools=self._code_tools,
        )
        saved = slot.find_saved_state(self.state_key)
        if isinstance(saved, SavedToolState):
            state.load(saved)
        return state

    around_calls_of_code: AroundCall | None = None
    """A wrapper for calls that code makes (execute_code), used for an agent's hooks and budgets.

    It receives the name, the arguments and a function that makes the call, and returns the result for the code.
    """

    @property
    def schemas(self) -> list[JsonObject]:
        """The function schemas for the model, as a copy that may be changed."""
        return copy.deepcopy(list(self._schemas.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools."""
        return tuple(self._schemas)

    def reads_only(self, name: str) -> bool:
        """Return whether the tool changes nothing, so its calls may run side by side.

        False for a name that is not a tool of this Toolbox.
        """
        if name not in self._schemas:
            return False
        return self._host[name].reads_only if name in self._host else REGISTRY[name].reads_only

    async def call(
        self,
        name: str,
        arguments: str | bytes | Mapping[str, object] | None = None,
        call_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        """Execute one tool call and return its result.

        `arguments` is a mapping or the model's JSON text; it is coerced and validated against the tool's schema.
        `call_id` names the file of a result that is too long; by default it is generated. `on_output` is called with
        each piece of output while the tool runs: of a foreground command of `terminal`, of the program of
        `execute_code`, and of the process that `process` waits for. Its arguments are as in `Slot.run`: "stdout" or
        "stderr", and the bytes. A mistake of the model gives a result with `error` and `error_kind`, and so does a
        failure inside the slot.

        Raises:
            ExecError: If the sandbox, the stream or the slot failed.
        """
        started = time.monotonic()
        call_id = call_id or "call_" + secrets.token_hex(8)
        name = str(name)
        self._renew_state()
        result = await self._call_tool(name, arguments, call_id, started, on_output)
        return await budget.fit_result(self._state.slot, result, self._state.options)

    async def _call_from_code(self, name: str, arguments: Mapping[str, object]) -> ToolResult:
        """Execute a call that code makes. The code gets the complete result."""

        async def make() -> ToolResult:
            state = self._state
            state.code_calls += 1
            try:
                return await self._call_tool(name, arguments, "call_" + secrets.token_hex(8), time.monotonic())
            finally:
                state.code_calls -= 1

        return (
            await make()
            if self.around_calls_of_code is None
            else await self.around_calls_of_code(name, arguments, make)
        )

    async def _call_tool(
        self,
        name: str,
        arguments: str | bytes | Mapping[str, object] | None,
        call_id: str,
        started: float,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        outcome = await self._execute_in_order(name, arguments, on_output)
        kind = outcome.error_kind
        duration_s = time.monotonic() - started
        return ToolResult(
            name,
            to_json(outcome.data),
            outcome.data,
            kind is None,
            kind,
            duration_s,
            call_id,
            images=outcome.images,
            shows_images=self._state.options.native_images,
        )

    async def fit_turn(self, results: Sequence[ToolResult], limit_chars: int | None = None) -> list[ToolResult]:
        """Return the results of one turn within the limit of a turn.

        The largest results are written to files in the slot first.
        """
        return await budget.fit_turn(self._state.slot, results, self._state.options, limit_chars)

    async def check_disk(self) -> None:
        """Raise HostDiskFull if a disk was nearly full during a call and this slot is not the cause."""
        if self._state.slot.disk_full:
            await self._state.slot.check_disk()

    async def notices(self) -> list[Notice]:
        """Return the new notices of `notify_on_complete` and `watch_patterns`.

        Call it before each turn of the model.
        """
        return await notices.collect(self._state, anyio.current_time)

    def forget_reads(self) -> None:
        """Make read_file return unchanged text in full again.

        Call it after earlier results were removed from the model's context.
        """
        self._renew_state()
        self._state.views.forget_pages()

    async def aclose(self) -> None:
        """Close the shell session. Background processes keep running with the slot."""
        await self._state.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _execute_in_order(
        self, name: str, arguments: str | bytes | Mapping[str, object] | None, on_output: OnOutput | None
    ) -> CallOutcome:
        state = self._state
        if name in self._host or not self.reads_only(name):
            outcome = await self._execute(name, arguments, on_output)
            state.searches.interrupt()
            return outcome
        with state.reads.join() as first:
            outcome = await self._execute(name, arguments)
            await first.wait()
            if name != "search_files":
                state.searches.interrupt()
            return outcome if outcome.settle is None else outcome.settle()

    async def _execute(
        self, name: str, arguments: str | bytes | Mapping[str, object] | None, on_output: OnOutput | None = None
    ) -> CallOutcome:
        try:
            schema = self._schemas.get(name)
            if schema is None:
                raise self._unknown_tool(name)
            return await self._run(name, schema, arguments, on_output)
        except ToolFailure as failure:
            if failure.kind == NO_SPACE and not self._state.slot.disk_filled_by_others:
                failure.message += REMOVE_FILES_HINT
            if name.startswith("browser_"):  # all results of these tools have the field
                failure.fields.setdefault("success", False)
            return CallOutcome(failure.data(), failure.kind)
        except (CommandFailed, OutputLimitExceeded) as error:
            return CallOutcome(ToolFailure("limit", str(error)).data(), "limit")
        except ProcessLookupError:  # the runner has forgotten the ended process
            return CallOutcome(ToolFailure("no_process", background.FORGOTTEN_MESSAGE).data(), "no_process")
        except ExecError as error:
            if error.cause is not ErrorCause.POLICY or isinstance(error, SandboxDied):
                raise
            return CallOutcome(ToolFailure("refused", str(error)).data(), "refused")

    async def _run(
        self,
        name: str,
        schema: JsonObject,
        arguments: str | bytes | Mapping[str, object] | None,
        on_output: OnOutput | None,
    ) -> CallOutcome:
        function: Any = schema["function"]
        host = self._host.get(name)
        entry = REGISTRY.get(name)
        try:
            fitted = coerce_arguments(
                function["parameters"],
                parse_arguments(arguments),
                clamped=entry.clamped if entry and host is None else (),
            )
        except ToolFailure as failure:
            example = host.example if host is not None else EXAMPLES[name]
            failure.message = f"{name}: {failure.message} Example: {name}({example})"
            raise
        if host is not None:
            return await _run_host(host, fitted)
        return await REGISTRY[name].run(self._state, fitted, on_output)

    def _unknown_tool(self, name: str) -> ToolFailure:
        available = ", ".join(self._schemas)
        if name in KNOWN_TOOLS:
            reason = "it was not given to you" if name in usable_tools() else unavailability_reason(name)
            return ToolFailure(
                "unknown_tool", f"The tool '{name}' is not available here: {reason}. Available tools: {available}."
            )
        near = difflib.get_close_matches(name[:80], self._schemas, n=1)
        meant = f" Did you mean '{near[0]}'? Example: {near[0]}({EXAMPLES.get(near[0], '{}')})." if near else ""
        return ToolFailure("unknown_tool", f"Unknown tool '{name[:100]}'.{meant} Available tools: {available}.")


class BlockingToolbox(Toolbox):
    """The result of `Toolbox(slot)` for a blocking slot.

    `wrapped` is the Toolbox that does the work, `portal` the portal to its event loop.
    """

    wrapped: Toolbox
    portal: BlockingPortal

    @classmethod
    def wrap(cls, toolbox: Toolbox, portal: BlockingPortal) -> BlockingToolbox:
        """Return a blocking form of `toolbox`, whose calls run in the event loop of `portal`."""
        blocking = object.__new__(cls)
        blocking.wrapped, blocking.portal = toolbox, portal
        blocking._schemas, blocking.unavailable = toolbox._schemas, toolbox.unavailable
        return blocking

    def call(  # type: ignore[override]
        self,
        name: str,
        arguments: str | bytes | Mapping[str, object] | None = None,
        call_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> ToolResult:
        """See `Toolbox.call`."""
        return call(self.portal, partial(self.wrapped.call, name, arguments, call_id, on_output))

    def reads_only(self, name: str) -> bool:
        """See `Toolbox.reads_only`."""
        return self.wrapped.reads_only(name)

    def fit_turn(self, results: Sequence[ToolResult], limit_chars: int | None = None) -> list[ToolResult]:  # type: ignore[override]
        """See `Toolbox.fit_turn`."""
        return call(self.portal, partial(self.wrapped.fit_turn, results, limit_chars))

    def check_disk(self) -> None:  # type: ignore[override]
        """See `Toolbox.check_disk`."""
        call(self.portal, self.wrapped.check_disk)

    def notices(self) -> list[Notice]:  # type: ignore[override]
        """See `Toolbox.notices`."""
        return call(self.portal, self.wrapped.notices)

    def run_async(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run async work, for example with `wrapped`, in the toolbox's event loop and wait for it."""
        return call(self.portal, work)

    def forget_reads(self) -> None:
        """See `Toolbox.forget_reads`."""
        call(self.portal, self.wrapped.forget_reads)

    def close(self) -> None:
        """See `Toolbox.aclose`."""
        call(self.portal, self.wrapped.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_in_loop(portal: BlockingPortal, make: Callable[[], Toolbox]) -> Toolbox:
    """Create a Toolbox in the event loop, where sessions can be found."""

    async def work() -> Toolbox:
        return make()

    return call(portal, work)


async def _run_host(host: HostTool, fitted: dict[str, Any]) -> CallOutcome:
    try:
        with raise_stray_cancellation(host.name):
            return await host.run(fitted)
    except (ToolFailure, ExecError):
        raise
    except (Exception, SystemExit) as error:  # argparse and others raise SystemExit
        logger.warning("the host tool %s failed", host.name, exc_info=True)
        raise ToolFailure("tool_failed", f"{host.name} failed: {type(error).__name__}: {error}") from None
