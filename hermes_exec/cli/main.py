"""Entry point of the program `hermes-exec`: Ctrl-C ends it quietly even while modules are loading."""

from __future__ import annotations

import gc
import os
import signal

_YOUNG_OBJECTS = 50_000


def main() -> None:
    """Run the command line and end the process with its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # exits.INTERRUPTED: nothing was started yet
    gc.set_threshold(_YOUNG_OBJECTS)  # docs/why-not-obvious.md ("Fewer collections in the command line")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # docs/why-not-obvious.md ("Imports at first use")
    from hermes_exec.cli.app import run

    run()


if __name__ == "__main__":
    main()
