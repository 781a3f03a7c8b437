"""The program `hermes-exec`: its commands, commands of other packages, and error output."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.ending import end_with
from hermes_exec.cli.kit.output import LogHandler, say

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from _typeshed import ReadableBuffer

COMMANDS = (
    "run",
    "shell",
    "checkpoint",
    "doctor",
    "ps",
    "reap",
    "conformance",
    "bench",
    "tools",
    "image",
    "config",
    "trace",
)
"""Commands of this package; each is a module with a function `add_to`."""
GROUP = "hermes_exec.commands"
"""Entry points of this group are typer apps, by the name of their command."""
_WARNING_LOGGERS = ("hermes_agent", "hermes_atropos", "hermes_batch", "hermes_mcp", "hermes_exec.pool.waiting")
"""Loggers whose warnings are shown without `--verbose`: they report that data would be worthless."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"hermes-exec {version('hermes-exec')}")
        raise typer.Exit


def _root(
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Log to stderr; twice for everything.")
    ] = 0,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Set up logging for all commands."""
    level = {0: logging.ERROR, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(level=level, handlers=[LogHandler()])
    if not verbose:
        for name in _WARNING_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # its exceptions are reported anyway
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")


def build_app(command: str | None = None) -> typer.Typer:
    """Return the program with one command, or with all commands of this package and of other installed packages.

    Only the modules of the command are imported. An unknown name builds all commands.
    """
    others = {} if command in COMMANDS else _others()
    chosen = [command] if command in {*COMMANDS, *others} else [*COMMANDS, *sorted(others)]
    to = typer.Typer(
        name="hermes-exec",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        help="Runs an agent's tool calls in isolated slots, the same way on every backend.",
        epilog="Exit codes: 0 ok, 1 the thing itself failed, 2 usage or configuration, 3 infrastructure, 130 signal.",
    )
    to.callback()(_root)
    for name in chosen:
        if name in COMMANDS:
            import_module(f"hermes_exec.cli.commands.{name}").add_to(to)
        else:
            _add_other(to, others[name])
    return to


def _others() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP) if point.name not in COMMANDS}


def _add_other(to: typer.Typer, point: EntryPoint) -> None:
    try:
        to.add_typer(point.load(), name=point.name)
    except ImportError as error:
        _add_missing(to, point.name, str(error))


def _add_missing(to: typer.Typer, name: str, why: str) -> None:
    @to.command(name, help=f"Not available: {why}", context_settings={"ignore_unknown_options": True})
    def missing(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        say(f"{name} is not available: {why}\nrun: pip install 'hermes-exec[{name}]'")
        raise typer.Exit(exits.USAGE)


def _repair_streams() -> None:
    """Prepare the standard streams.

    Closed ones are opened on /dev/null, because files opened later would get their numbers. Characters that stdout
    cannot encode are escaped. Errors of stdout and stderr have the name of the stream. A COLUMNS that is empty or 0 is
    ignored.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), "w" if number else "r"))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            file = io.BufferedWriter(_NamedStream(stream, f"<{name}>"))
            lines = stream.line_buffering
            setattr(sys, name, io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=lines))
    if os.environ.get("COLUMNS", "").strip("0 ") == "":
        os.environ.pop("COLUMNS", None)


class _NamedStream(io.FileIO):
    """A standard stream whose first error has its name; what follows is discarded, also at the end of the process."""

    def __init__(self, stream: io.TextIOWrapper, label: str) -> None:
        super().__init__(stream.fileno(), "wb", closefd=False)
        self._stream = stream  # closes the file when it is collected
        self._label = label
        self._has_failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes."""
        if self._has_failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self._has_failed, error.filename = True, self._label
            raise


def run() -> None:
    """Run the command line and end the process with its exit code."""
    _repair_streams()
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    end_with(lambda: build_app(command)())  # noqa: PLW0108 - end_with reports errors of build_app too
