"""`python -m tests.fuzz.guided NAME RUNS DIRECTORY` fuzzes one decoder with atheris, guided by what it covers.

What it finds goes to DIRECTORY: inputs that cover more, and a file `crash-…`, `timeout-…` or `oom-…` for what went
wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import atheris

LONGEST_BYTES = 4096
SLOWEST_S = 5
MOST_MEMORY_MB = 1024

with atheris.instrument_imports(include=["hermes_exec", "tarfile", "json.decoder"]):
    from tests.fuzz import mutate
    from tests.fuzz.decoders import DECODERS

CORPUS = Path(__file__).parent / "corpus"


def _in_json(data: bytes, most: int, seed: int) -> bytes:
    """Mostly a change of one value: of changes of bytes nearly all are no JSON any more."""
    rng = Random(seed)
    return mutate.json_text(rng, data)[:most] if rng.random() < 0.8 else atheris.Mutate(data, most)


def main() -> None:
    """Fuzz until the runs are done or something is found; the exit code says which."""
    name, runs, directory = sys.argv[1:]
    grown = Path(directory) / name
    grown.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_len={LONGEST_BYTES}", f"-timeout={SLOWEST_S}", f"-rss_limit_mb={MOST_MEMORY_MB}"]
    asked = [f"-runs={runs}", f"-artifact_prefix={grown}/", "-print_final_stats=1"]
    options = {"custom_mutator": _in_json} if name in ("messages", "answers") else {}
    atheris.Setup([sys.argv[0], *limits, *asked, str(grown), str(CORPUS / name)], DECODERS[name], **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
