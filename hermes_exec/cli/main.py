"""Starts the program `hermes-exec`: Ctrl-C ends it quietly also while its parts are being loaded."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line and end the process with its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # cli.exits.INTERRUPTED: nothing was begun yet
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for them is a tenth of the start
    from hermes_exec.cli.app import run

    run()


if __name__ == "__main__":
    main()
