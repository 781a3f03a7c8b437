"""`hermes-exec run`: one command in one slot, or in several at once."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, printable, say
from hermes_exec.cli.kit.pools import (
    AsJson,
    Backend,
    Config,
    Image,
    Options,
    Profile,
    TraceTo,
    has_images,
    make_pool,
    pool_of,
    settings_of,
)
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.pool.pool import SandboxPool
    from hermes_exec.results import RunResult
    from hermes_exec.slot.slot import Slot


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="CMD", help="One word is a shell script, several are a program and its arguments."),
    ],
    backend: Backend = None,
    image: Image = None,
    slots: Annotated[int, typer.Option("--slots", "-n", min=1, help="Run it in this many slots at once.")] = 1,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds after which it is ended.")] = 180.0,
    cwd: Annotated[
        str | None, typer.Option("--cwd", help="Directory to start in (default: the slot's workdir).")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Variable; may be repeated.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="User to run as.")] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="File of a checkpoint that the slots start from."),
    ] = None,
    min_isolation: Annotated[
        str | None,
        typer.Option("--min-isolation", help="none, landlock, uid, namespaces or exclusive (default: landlock)."),
    ] = None,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
    trace: TraceTo = None,
    as_json: AsJson = False,
) -> None:
    """Run a command in an isolated slot; ends with the command's exit code.

    Standard input is passed to a single slot, if it is not a terminal.

    Exit codes: the command's own (the highest of several slots), 126 if it cannot be executed, 127 if it does not
    exist, 128+N if signal N ended it; 143 after --timeout, 137 if that took SIGKILL. Those of hermes-exec, with a line
    on stderr that begins with the name of the error: 2 usage or configuration, 3 infrastructure, 130 interrupted.
    """
    arguments: dict[str, Any] = {"timeout_s": timeout_s, "cwd": cwd, "env": parse_variables(env), "user": user}
    more: dict[str, Any] = {"min_isolation": min_isolation, "trace": trace}
    if from_ is None:
        pool = make_pool(backend, image, config, profile, option, slots=slots, **more)
    else:
        pool = _pool_for_forks(from_, settings_of(backend, image, config, option, profile), slots, **more)
    script: str | list[str] = command[0] if len(command) == 1 else command
    work = _run_one if slots == 1 else _run_several
    raise typer.Exit(run_async(lambda: work(pool, script, slots, from_, arguments, as_json)))


def _pool_for_forks(file: Path, settings: dict[str, Any], slots: int, **more: Any) -> SandboxPool:
    """Return a pool with room for forks of a checkpoint's file, whose image is the default."""
    from hermes_exec.archives.checkpoint_file import CheckpointReader

    with CheckpointReader(file) as reader:
        facts = reader.facts
    defaults: dict[str, Any] = {"slots_per_sandbox": slots}
    if has_images(settings):
        root = "own" if facts.holds == "root" else "shared"
        least = 1 if root == "own" else 2  # one slot alone has the whole sandbox
        defaults = {"image": facts.image, "slot_root": root, "slots_per_sandbox": max(slots, least)}
    settings = {**defaults, **settings}
    return pool_of(settings, **more)


def parse_variables(texts: list[str] | None) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a mapping.

    Raises:
        ConfigError: If a text has no `=`.
    """
    for text in texts or ():
        if "=" not in text:
            raise ConfigError(f"variable {text!r} is not NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts or ())}


async def _run_one(
    pool: SandboxPool,
    script: str | list[str],
    _slots: int,
    from_: Path | None,
    arguments: dict[str, Any],
    as_json: bool,
) -> int:
    piped = None if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty() else _stdin()
    async with pool, pool.slot(from_=None if from_ is None else await pool.load(from_)) as slot:
        result = await slot.run(script, stdin=piped, on_output=None if as_json else _pass_on, **arguments)
        if as_json:
            emit_json(_facts(slot, result))
        else:
            _print_reason(result, printed=result.stderr)
        return _code(result)


async def _run_several(
    pool: SandboxPool,
    script: str | list[str],
    slots: int,
    from_: Path | None,
    arguments: dict[str, Any],
    as_json: bool,
) -> int:
    results: dict[int, tuple[Slot, RunResult]] = {}

    async def work(number: int, slot: Slot) -> None:
        results[number] = slot, await slot.run(script, **arguments)

    async with pool:
        checkpoint = None if from_ is None else await pool.load(from_)
        async with pool.slots(slots, from_=checkpoint) as held, anyio.create_task_group() as tasks:
            for number, slot in enumerate(held):
                tasks.start_soon(work, number, slot)
    ordered = [results[number] for number in range(slots)]
    if as_json:
        emit_json([_facts(slot, result) for slot, result in ordered])
    else:
        for number, (_, result) in enumerate(ordered):
            sys.stdout.flush()
            sys.stdout.buffer.writelines(b"%d: %s\n" % (number, line) for line in _lines(result))
            sys.stdout.buffer.flush()
            _print_reason(result, f"{number}: ")
    return max(_code(result) for _, result in ordered)


def _lines(result: RunResult) -> list[bytes]:
    """Return the lines of one of several slots, for a terminal without control characters: no line can imitate another
    slot's.
    """
    output = result.output_bytes
    if sys.stdout.isatty():
        output = printable(result.output).encode(sys.stdout.encoding, "backslashreplace")
    return output.removesuffix(b"\n").split(b"\n") if output else []


def _code(result: RunResult) -> int:
    """Return the command's exit code, never 0 after a timeout: a command that catches SIGTERM gets 143."""
    return exits.TIMED_OUT if result.timed_out and result.signal is None else result.exit_code


def _print_reason(result: RunResult, head: str = "", printed: str = "") -> None:
    """Print that the command timed out, or why it did not start, unless `printed` contains it."""
    why = f"timed out after {result.duration_s:.1f} s" if result.timed_out else result.reason
    if why and why not in printed:
        say(head + why)


def _pass_on(stream: str, data: bytes) -> None:
    target = (sys.stderr if stream == "stderr" else sys.stdout).buffer
    target.write(data)
    target.flush()


async def _stdin() -> AsyncIterator[bytes]:
    while data := await anyio.to_thread.run_sync(os.read, sys.stdin.fileno(), 1 << 16, abandon_on_cancel=True):
        yield data


def _facts(slot: Slot, result: RunResult) -> dict[str, object]:
    return {
        "slot": slot.id,
        "backend": slot.backend,
        "isolation": slot.isolation.level,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        "duration_s": result.duration_s,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_total_bytes": result.stdout_total_bytes,
        "stderr_total_bytes": result.stderr_total_bytes,
        "usage": result.usage,
        "killed": result.killed,
        "reason": result.reason,
    }


def add_to(app: typer.Typer) -> None:
    """Add the command `run`."""
    app.command(
        epilog="Examples: hermes-exec run -- python3 -V | hermes-exec run -b docker -i debian:12 -- 'ls / | wc -l'",
        context_settings={"allow_interspersed_args": False},
    )(run)
