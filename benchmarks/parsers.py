"""Parsers of tool calls: a megabyte of ordinary calls, and a megabyte of openings without an end."""

from __future__ import annotations

import json
import time

from benchmarks.measurements import Discipline, Measurements, Sample, progress
from benchmarks.options import Options
from hermes_agent.messages import ToolCall
from hermes_agent.parsers import FORMATS

MEGABYTE = 1_000_000
ORDINARY, BROKEN = "1 MB of ordinary calls", "1 MB of openings"
ALIASES = {"qwen", "llama4_json", "deepseek_v3_1", "deepseek_dsml"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {"properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
        },
    }
]
ARGUMENTS = {"path": "src/main.py", "content": 'def main() -> None:\n    print("hello")\n' * 8}
CALL = ToolCall("", "write_file", json.dumps(ARGUMENTS))


def render_calls(name: str) -> str:
    """Return a megabyte of calls."""
    count = MEGABYTE // len(FORMATS[name].render([CALL]))
    return FORMATS[name].render([CALL] * count)


def render_openings(name: str) -> str:
    """Return a megabyte of the text before the arguments of a call."""
    text = FORMATS[name].render([CALL])
    head = text[: text.index("src/main.py")]
    return head * (MEGABYTE // len(head))


def time_parse(name: str, text: str) -> float:
    """Return the processor time for one text in seconds."""
    begin = time.process_time()
    FORMATS[name].parse(text, TOOLS)
    return time.process_time() - begin


async def measure(options: Options) -> Measurements:
    """Measure all formats in each round."""
    measurements = Measurements()
    names = [name for name in FORMATS if name not in ALIASES]
    for label, render in ((ORDINARY, render_calls), (BROKEN, render_openings)):
        discipline = Discipline(label, "times", {})
        texts = {name: render(name) for name in names}
        for round_number in range(options.rounds):
            for name in names:
                progress(f"{label}, round {round_number + 1}: {name}")
                sample: Sample = discipline.sample(name)
                sample.add_one(time_parse(name, texts[name]))
        measurements.disciplines.append(discipline)
    return measurements


def main() -> None:
    """Print the table of docs/parsers.md."""
    print(f"| format | {ORDINARY} | {BROKEN} |\n|---|---|---|")
    for name in FORMATS:
        if name not in ALIASES:
            best = [
                min(time_parse(name, text) for _ in range(3)) * 1000
                for text in (render_calls(name), render_openings(name))
            ]
            print(f"| `{name}` | {best[0]:.0f} ms | {best[1]:.0f} ms |")


if __name__ == "__main__":
    main()
