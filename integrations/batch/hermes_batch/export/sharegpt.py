"""ShareGPT turns in the Hermes format, with the schemas of the tools."""

from __future__ import annotations

from hermes_agent.parsers.json_text import dump
from hermes_agent.trajectories.sharegpt import ShareGPTTurn, sharegpt
from hermes_agent.trajectories.sharegpt_reader import export_problem
from hermes_batch.export.example import FormatProblem, TrainingExample
from hermes_batch.export.writers import LineWriter


class ShareGPTWriter(LineWriter):
    """Writes `id`, `conversations` and `tools`, which is JSON text, as LLaMA-Factory and others read it.

    Turns are text: a record with images, or with other content that would be read differently, is left out.
    """

    def render(self, example: TrainingExample) -> dict[str, object]:
        """Return the line of a record."""
        example.check_answers()
        turns = self._turns(example)
        while turns[-1]["from"] != "gpt":
            turns.pop()
        return {"id": f"{example.id}/{example.number}", "conversations": turns, "tools": dump(example.tools)}

    def _turns(self, example: TrainingExample) -> list[ShareGPTTurn]:
        if self._options.reasoning:
            turns: list[ShareGPTTurn] = list(example.record["conversations"])
            problem = str(example.record.get("export_problem") or "")
        else:
            messages = example.clean_messages(reasoning=False)
            turns = sharegpt(messages, example.tools)
            problem = export_problem(messages, turns)
        if problem:
            raise FormatProblem(problem)
        return turns
