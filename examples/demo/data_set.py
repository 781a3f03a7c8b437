"""Makes a data set of the solved samples of a run, with the commands that a user would type."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

_SHOWN_CHARACTERS = 160


def make_data_set(console: Console, run: Path, out: Path) -> bool:
    """Print the results of a run, export its solved samples for trainers, load them with `datasets` and print them.

    Returns whether every step worked. A run without a solved sample has no data set, which is no failure.
    """
    _run_command(console, "batch", "show", str(run))
    exported = _run_command(
        console, "batch", "export", str(run), "--to", "openai", "--only", "solved", "--overwrite", "-o", str(out)
    )
    if not (out / "train.jsonl").exists():
        _print(console, "the model solved no sample: there is no data set to load")
        return exported == 1
    if exported:
        return False
    rows = _load(out)
    _print(
        console, f'\ndatasets.load_dataset("{out}", split="train"): {len(rows)} rows of {list(rows[0])}; the first one:'
    )
    for message in rows[0]["messages"]:
        _print(console, f"  {message['role']:9} {_describe_message(message)}")
    _print(console, f"{out / 'train.jsonl'}\n{out / 'README.md'}")
    return True


def _load(directory: Path) -> list[dict[str, Any]]:
    import datasets  # type: ignore[import-untyped]

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        return list(datasets.load_dataset(str(directory), split="train", cache_dir=cache))


def _describe_message(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()]
    text = " ".join(f"{message.get('content') or ''} {' '.join(calls)}".split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def _run_command(console: Console, *arguments: str) -> int:
    """Run `hermes-exec` with arguments and return its exit code."""
    _print(console, f"\n$ hermes-exec {shlex.join(arguments)}")
    console.file.flush()
    return subprocess.run([str(Path(sys.executable).with_name("hermes-exec")), *arguments], check=False).returncode


def _print(console: Console, text: str) -> None:
    console.print(escape(text), soft_wrap=True)
