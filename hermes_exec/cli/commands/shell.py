"""`hermes-exec shell`: an interactive terminal in a fresh slot."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.modes import TerminalModes
from hermes_exec.cli.kit.output import say
from hermes_exec.cli.kit.pools import Backend, Config, Image, Options, Profile, TraceTo, make_pool
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.pool.pool import SandboxPool
    from hermes_exec.slot.process import Process

BEST_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi"
LAST_OUTPUT_S = 0.5
DETACH = b"~."
"""Typed at the start of a line, this ends the terminal whatever the slot does."""


def shell(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="CMD", help="Program to start instead of a shell.")
    ] = None,
    backend: Backend = None,
    image: Image = None,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
    trace: TraceTo = None,
    slot: Annotated[
        str | None, typer.Option("--slot", metavar="ID", help="Look into this slot of a running process, read-only.")
    ] = None,
) -> None:
    """Open a terminal in a fresh slot; ends with the shell's exit code.

    Keys go into the slot, Ctrl-C too. `~.` at the start of a line ends the terminal and everything in the slot.

    With --slot ID (`hermes-exec ps` lists them) it shows a slot that another process of yours on this host holds: its
    processes, and from then on the output of its commands, until the slot is released. Nothing can be typed into the
    slot or run in it; its commands neither wait for the viewer nor notice it. With `ps` as CMD it shows only the
    processes.
    """
    if slot is not None:
        from hermes_exec.cli.observe.look import look

        if any((backend, image, config, profile, option, trace)):
            raise ConfigError("--slot shows an existing slot: it cannot be combined with options of a new one")
        raise typer.Exit(run_async(lambda: look(slot, command or []), notice=None))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("shell needs a terminal; to run a command without one, use: hermes-exec run -- CMD")
    pool = make_pool(backend, image, config, profile, option, trace=trace)
    raise typer.Exit(run_async(lambda: _run_terminal(pool, command or BEST_SHELL)))


async def _run_terminal(pool: SandboxPool, command: str | list[str]) -> int:
    async with pool, pool.slot() as slot:
        say(f"slot {slot.id} on {slot.backend}, isolation {slot.isolation.level}; ~. at the start of a line ends it")
        size = _size()
        process = await slot.spawn(command, stdin=True, pty=size, env={"TERM": term_of(os.environ.get("TERM", ""))})
        with _raw_terminal(sys.stdin.fileno()) as modes:
            return await _attend(process, size, modes)


def term_of(here: str) -> str:
    """Return the TERM of this terminal, or `xterm-256color` if images may not describe it."""
    match = re.fullmatch(r"(xterm|screen|tmux|rxvt|linux|vt\d+|ansi|dumb)(-\d*color|-unicode)?", here)
    return here if match else "xterm-256color"


async def _attend(process: Process, size: tuple[int, int], modes: TerminalModes) -> int:
    """Forward keys, output and size until the program ends, or until the user ends the terminal (FAILED)."""
    code: int = exits.FAILED
    async with anyio.create_task_group() as tasks:
        output_end = anyio.Event()
        tasks.start_soon(_forward_output, process, output_end, modes)
        tasks.start_soon(_forward_sizes, process, size)
        tasks.start_soon(_forward_keys, process, tasks.cancel_scope)
        code = (await process.wait()).exit_code
        # A background job may keep the terminal open for as long as it likes.
        with anyio.move_on_after(LAST_OUTPUT_S):
            await output_end.wait()
        tasks.cancel_scope.cancel()
    return code


async def _forward_output(process: Process, output_end: anyio.Event, modes: TerminalModes) -> None:
    async for data in process.stdout:
        modes.feed(data)
        view = memoryview(data)
        with suppress(OSError):  # the window was closed; reading keys will notice it
            while view:
                view = view[os.write(sys.stdout.fileno(), view) :]
    output_end.set()


async def _forward_keys(process: Process, cancel_scope: anyio.CancelScope) -> None:
    keys, typed = sys.stdin.fileno(), b"\r"
    while process.stdin is not None:
        await anyio.wait_readable(keys)
        data = b""
        with suppress(OSError):
            data = os.read(keys, 4096)
        typed = (typed + data)[-3:]
        if not data or typed in (b"\r" + DETACH, b"\n" + DETACH):
            cancel_scope.cancel()
            return
        await process.stdin.send(data)


async def _forward_sizes(process: Process, size: tuple[int, int]) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        if size != (now := _size()):
            await process.resize(*now)
        async for _ in changes:
            await process.resize(*_size())


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return rows or 24, columns or 80


@contextmanager
def _raw_terminal(fd: int) -> Iterator[TerminalModes]:
    """Pass keys on as they are typed, and restore the terminal afterwards, whatever was printed."""
    before, modes = termios.tcgetattr(fd), TerminalModes()
    tty.setraw(fd, termios.TCSANOW)
    try:
        yield modes
    finally:
        with suppress(OSError, termios.error):
            os.write(sys.stdout.fileno(), modes.undo())
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def add_to(app: typer.Typer) -> None:
    """Add the command `shell`."""
    app.command(
        epilog="Examples: hermes-exec shell | hermes-exec shell -b docker -i debian:12 -- python3 | "
        "hermes-exec shell --slot 4f1c09d2a6b7-1-s0",
        context_settings={"allow_interspersed_args": False},
    )(shell)
