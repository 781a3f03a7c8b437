"""`python -m tests.fuzz.unguided NAME RUNS` gives a decoder changed inputs of its corpus, where there is no atheris."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzz import mutate
from tests.fuzz.decoders import DECODERS

CORPUS = Path(__file__).parent / "corpus"


def corpus(name: str) -> list[tuple[str, bytes]]:
    """The inputs that are kept for a decoder, by name."""
    return [(path.name, path.read_bytes()) for path in sorted((CORPUS / name).iterdir())]


def changed(name: str, seed: int) -> Iterator[bytes]:
    """Inputs made of kept ones, without end."""
    rng = Random(seed)
    kept = [data for _, data in corpus(name)]
    while True:
        data = rng.choice(kept)
        for _ in range(rng.randint(1, 4)):
            data = mutate.json_text(rng, data) if name in ("answers", "messages") else mutate.flipped(rng, data)
        yield data


def main() -> None:
    """Stops with the traceback of what was found."""
    name, runs = sys.argv[1], int(sys.argv[2])
    for number, data in enumerate(changed(name, 0)):
        if number == runs:
            break
        try:
            DECODERS[name](data)
        except BaseException:
            (CORPUS / name / "crash").write_bytes(data)
            raise
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({"name": name, "inputs": runs, "memory_mb": memory_mb}))


if __name__ == "__main__":
    main()
