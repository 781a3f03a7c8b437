"""Measures two ways in turns, so that the load of the machine meets both."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter


def measure(what: str, ours: Callable[[], object], theirs: Callable[[], object], repetitions: int) -> None:
    """Print the seconds of each repetition of both ways. The first repetition of each is not counted."""
    seconds: dict[str, list[float]] = {"ours_s": [], "theirs_s": []}
    for _ in range(repetitions + 1):
        for name, run in (("ours_s", ours), ("theirs_s", theirs)):
            start = perf_counter()
            run()
            seconds[name].append(perf_counter() - start)
    counted = {name: values[1:] for name, values in seconds.items()}
    sys.stdout.write(json.dumps({"what": what, **counted}) + "\n")
    sys.stdout.flush()
