"""Batch runs of a harness: the recipe `script` in slots of `local`, its records, and what is refused beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Completion, Message, TokenUsage
from hermes_agent.models.scripted import ScriptedModel, call
from hermes_batch import BatchConfig, load, read_records, resume_batch, run_batch
from hermes_batch.settings import read_settings
from hermes_exec import ConfigError
from tests.e2e.agent.test_commands import model, run
from tests.unit.agent.endpoint import endpoint, ok, refusal

pytestmark = pytest.mark.anyio
TWO_CONVERSATIONS = """
import os
from harness import ask, work
work(os.environ["HERMES_TASK"])
ask([{"role": "user", "content": "a title"}])
"""
HARNESS = Path(__file__).with_name("harness.py").read_text("utf-8")


def answer(messages: Sequence[Message]) -> Completion:
    """Run one command, and answer."""
    (name, command) = ("bash", "pwd; echo right > answer")
    usage = TokenUsage(10, 3, 1, 0.25)
    if messages[-1]["role"] == "user" and "title" not in str(messages[-1]["content"]):
        return Completion("", (call(name, {"command": command}),), usage=usage)
    return Completion("Done.", usage=usage)


def config(
    directory: Path, *rows: dict[str, Any], program: str | tuple[str, ...] = "script", **more: Any
) -> BatchConfig:
    prompts = directory / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({**({} if "messages" in row else {"prompt": "go"}), **row}) + "\n" for row in rows)
    )
    settings: dict[str, Any] = {"model": ScriptedModel(repeat(answer)), "backend_options": {"network": False}, **more}
    return BatchConfig(dataset=prompts, out=directory / "run", program=program, **settings)


async def test_program_records_are_complete_and_resumed(tmp_path: Path) -> None:
    rows = [
        {"id": f"r{n}", "prompt": f"- go {n}", "check": "grep -q right answer", "keep": ["answer"]} for n in range(3)
    ]
    batch = config(tmp_path, *rows, samples=2, temperature=0.5)
    result = await run_batch(batch)
    assert (result.solved, result.total) == (6, 6)
    stored = read_settings(batch.out)["config"]["program"]
    assert stored == "script"
    resumed = await resume_batch(batch.out, samples=3, model=ScriptedModel(repeat(answer)))
    assert (resumed.solved, resumed.kept) == (9, 6)
    for record in read_records(batch.out):
        assert (record["program"], record["roots"], record["sequences"]) == ("script", 1, 1)
        assert (record["turns"], record["api_calls"], record["toolsets_used"]) == (2, 2, [])
        assert (record["program_exit_code"], record["program_output"]) == (0, "Done.\n")
        # The harness ran its call itself: whether it succeeded is unknown.
        assert (record["tool_calls"], record["calls"], record["tool_stats"]) == (1, "[]", "{}")
        assert [turn["from"] for turn in record["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
        assert (record["exportable"], record["completion_tokens"], record["cost"]) == (True, 6, 0.5)
        assert json.loads(record["sampling"]) == {"temperature": 0.5}
    table = load(batch.out)
    assert table.column("program").to_pylist() == ["script"] * 9
    assert {str(table.schema.field(name).type) for name in ("roots", "sequences")} == {"int64"}


async def test_conversations_beside_the_main_one_are_counted(tmp_path: Path) -> None:
    row = {"files": {"harness.py": HARNESS, "two.py": TWO_CONVERSATIONS}}
    batch = config(tmp_path, row, program="python3 two.py")
    await run_batch(batch)
    (record,) = read_records(batch.out)
    assert (record["program"], record["roots"], record["sequences"], record["turns"]) == ("python3 two.py", 2, 2, 3)
    assert len(json.loads(record["usage"])) == 3
    assert [message["role"] for message in json.loads(record["messages"])] == ["user", "assistant", "tool", "assistant"]


async def test_program_that_failed_after_an_answer_is_in_its_record(tmp_path: Path) -> None:
    failing = "from harness import ask\nask([{'role': 'user', 'content': 'a title'}])\nraise KeyError('the harness')"
    row = {"files": {"harness.py": HARNESS, "failing.py": failing}, "check": "false"}
    batch = config(tmp_path, row, program="python3 failing.py")
    result = await run_batch(batch)
    (record,) = read_records(batch.out)
    assert (record["finish"], record["solved"], record["program_exit_code"]) == ("answered", "unsolved", 1)
    assert "KeyError: 'the harness'" in record["program_output"]
    assert result.tally.failed_programs == 1


async def test_rows_bound_their_program(tmp_path: Path) -> None:
    forever = ScriptedModel(repeat(Completion("", (call("sh", {"command": "true"}),))))
    files = {"harness.py": HARNESS}
    rows = [{"max_turns": 3, "files": files}, {"prompt": "wait", "deadline_s": 1, "files": files}]
    program = ("sh", "-c", "if [ $0 = wait ]; then sleep 60; fi; python3 harness.py $0", "{task}")
    batch = config(tmp_path, *rows, model=forever, program=program)
    await run_batch(batch)
    records = sorted(read_records(batch.out), key=lambda record: record["prompt_index"])
    ends = [(record["finish"], record["turns"], record["cause"]) for record in records]
    assert ends == [("max_turns", 3, "budget"), ("deadline", 0, "budget")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"system": "be brief"}, "line 2: system: a program has its own system message"),
        ({"toolsets": ["terminal"]}, "line 2: toolsets: a program has its own tools"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                       {"role": "user", "content": "c"}]}, "line 2: messages: a program gets one text"),
        ({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]},
         "line 2: messages: a program gets one text"),
    ],
)  # fmt: skip
async def test_row_for_the_agent_loop_is_refused_beside_a_program(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    batch = config(tmp_path, {}, row)
    with pytest.raises(ConfigError, match=message):
        await run_batch(batch)
    assert not batch.out.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"toolsets": ("file",)}, "toolsets: for the agent loop"),
        ({"system_prompt": "be brief", "parallel_calls": "all"}, "system_prompt, parallel_calls: for the agent loop"),
        ({"context": "shorten", "context_tokens": 4000}, "context: for the agent loop"),
        ({"max_tokens_total": 5}, "max_tokens_total: for the agent loop"),
        ({"program": ""}, "program is empty"),
        ({"program": "mini 'x"}, "cannot be split"),
    ],
)
def test_setting_for_the_agent_loop_is_refused_beside_a_program(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, {}, **settings)


async def test_program_that_is_missing_is_named_in_each_record(tmp_path: Path) -> None:
    batch = config(tmp_path, {}, program="no-such-program {task}")
    assert (await run_batch(batch)).unscored == 1
    (record,) = read_records(batch.out)
    assert (record["finish"], record["cause"], record["trainable"]) == ("infra", "task", False)
    assert "no-such-program" in json.loads(record["errors"])[-1]["message"]


async def test_run_stops_if_no_program_gets_an_answer(tmp_path: Path) -> None:
    batch = config(tmp_path, *({"prompt": f"p{n}"} for n in range(20)), program="no-such-program {task}", workers=1)
    with pytest.raises(ConfigError, match=r"none of the first 8 programs got an answer: .*no-such-program.*resume"):
        await run_batch(batch)
    assert len([*read_records(batch.out)]) == 8


async def test_run_goes_on_after_an_answer_to_a_program(tmp_path: Path) -> None:
    """Some rows may have an image without the program."""
    program = ("sh", "-c", "[ $0 != p0 ] || exec python3 harness.py $0", "{task}")
    rows = [{"prompt": f"p{n}", "files": {"harness.py": HARNESS}} for n in range(12)]
    result = await run_batch(config(tmp_path, *rows, program=program, workers=1))
    assert (result.records, result.unscored) == (12, 11)


async def test_endpoint_that_answered_a_program_is_known(tmp_path: Path) -> None:
    """After an answer a refused prompt is only a record, and does not stop the run."""
    replies = [ok({"content": "done"}), *[refusal(400, "bad prompt") for _ in range(9)]]
    with endpoint(*replies) as server:
        batch = config(
            tmp_path, *({"prompt": f"p{n}"} for n in range(10)), model="m", base_url=server.base_url, workers=1
        )
        result = await run_batch(batch)
    assert (result.records, result.unscored) == (10, 9)


def test_command_line_runs_a_program(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "go", "check": "grep -q right answer"}\n')
    bash = {
        "id": "c",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "echo right > answer"}'},
    }
    with endpoint(ok({"content": None, "tool_calls": [bash]}), ok({"content": "Done."})) as server:
        options = ("--program", "script", "-b", "local", "--deadline", "60", *model(server.base_url))
        done = run("batch", "run", str(prompts), "--out", str(tmp_path / "run"), *options)
    assert done.returncode == 0, done.stderr
    assert [record["solved"] for record in read_records(tmp_path / "run")] == ["solved"]
