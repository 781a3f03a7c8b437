"""How a program of this project ends: its errors told, and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import emit_json, say
from hermes_exec.errors import ErrorCause, ExecError


def report(error: ExecError | OSError) -> None:
    """Print an error: as JSON to stdout where `--json` was given and stdout has room, else as lines to stderr."""
    full = isinstance(error, OSError) and error.errno in exits.NO_ROOM
    if not full and "--json" in sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]:
        emit_json({"error": fields_of(error)})
    else:
        say(f"{type(error).__name__}: {error}")


def fields_of(error: ExecError | OSError) -> dict[str, object]:
    """What JSON has of an error."""
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "cause": error.cause if isinstance(error, ExecError) else ErrorCause.CONFIG,
        "retryable": error.retryable if isinstance(error, ExecError) else False,
    }


def end_with(main: Callable[[], object]) -> None:
    """Do it, tell its errors, and end the process with the exit code of these."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)
    except Exception as error:
        if exits.is_reader_gone(error):
            sys.stderr.close()
            sys.exit(exits.FAILED)
        found = list(exits.errors_in(error))
        if not found:
            raise
        for each in {(type(each), str(each)): each for each in found}.values():
            report(each)
        sys.exit(max(map(exits.code_of, found)))
