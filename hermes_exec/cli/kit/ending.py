"""The end of a program of this project: error output and exit code."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import emit_json, say
from hermes_exec.errors import ErrorCause, ExecError


def report(error: ExecError | OSError) -> None:
    """Print an error: as JSON to stdout with `--json`, if stdout has room, else as lines to stderr."""
    full = isinstance(error, OSError) and error.errno in exits.NO_ROOM
    if not full and "--json" in sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]:
        emit_json({"error": error_fields(error)})
    else:
        say(f"{type(error).__name__}: {error}")


def error_fields(error: ExecError | OSError) -> dict[str, object]:
    """Return the fields of an error for JSON."""
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "cause": error.cause if isinstance(error, ExecError) else ErrorCause.CONFIG,
        "retryable": error.retryable if isinstance(error, ExecError) else False,
    }


_SAME_INTERRUPT_S = 1.0
"""Within this time another SIGINT belongs to the first one: launchers send several."""


def end_with(main: Callable[[], object]) -> None:
    """Run `main`, print its errors, and end the process with their exit code.

    The first SIGINT raises KeyboardInterrupt in synchronous code (`run_async` has its own handlers); a later one ends
    the process at once.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        main()
    except KeyboardInterrupt:
        _leave()
    except SystemExit as stop:
        if stop.code == exits.INTERRUPTED:
            _leave()
        raise
    except Exception as error:
        if exits.is_reader_gone(error):
            sys.stderr.close()
            sys.exit(exits.FAILED)
        errors = list(exits.errors_in(error))
        if not errors:
            raise
        for each in {(type(each), str(each)): each for each in errors}.values():
            report(each)
        sys.exit(max(map(exits.code_of, errors)))


def _leave() -> NoReturn:
    """End the process after a signal, without finalization of the interpreter; open files are flushed.

    Finalization takes seconds in a program with many imports, and another signal could raise in it.
    """
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr, *gc.get_objects()):
        # Unlike isinstance, issubclass runs no code of proxies.
        if issubclass(type(file), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
    os._exit(exits.INTERRUPTED)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    first = time.monotonic()

    def again(_number: int, _frame: FrameType | None) -> None:
        if time.monotonic() - first > _SAME_INTERRUPT_S:
            os._exit(exits.INTERRUPTED)

    signal.signal(signal.SIGINT, again)
    raise KeyboardInterrupt
