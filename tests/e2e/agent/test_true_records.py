"""A batch on Docker whose endpoint writes everything that once gave an untrue record: records and slots are compared.

Every record is replayed: its calls are made again, one after another, in a fresh slot. The results must be those that
the record has, and the files those that its check saw.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import Completion, Message, OpenAIModel
from hermes_agent.scoring import put_files
from hermes_batch import BatchConfig, read_records, run_batch
from hermes_exec import SandboxPool, Slot
from hermes_exec.tools import Toolbox
from tests.e2e.agent.true_inputs import FILES, SCENARIOS, Scenario
from tests.unit.agent.endpoint import Answer, endpoint, ok

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

PROMPTS, FEW = 300, 88
"""All of them run with --whole."""
LISTING = "find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum"
_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
_PROMPT = re.compile(r"(\d+)/(.+)")
_TOOLS = ("terminal", "file")


def reply(body: Mapping[str, Any]) -> Answer:
    """The turn of the scenario that the first message of the user names."""
    scenario = _scenario(body["messages"])
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    if turn >= len(scenario.turns):
        return ok({"content": "done"})
    return ok(scenario.turns[turn].message, scenario.turns[turn].finish_reason)


def _scenario(messages: Sequence[Message]) -> Scenario:
    prompt = str(next(message["content"] for message in messages if message["role"] == "user"))
    found = _PROMPT.fullmatch(prompt)
    assert found is not None
    return _BY_NAME[found[2]]


class ModelByFormat:
    """Asks one endpoint for all prompts, each with the parser of its scenario."""

    model = "by-format"

    def __init__(self, base_url: str) -> None:
        self._models = {
            parser: OpenAIModel("m", base_url=base_url, parser=parser)
            for parser in {scenario.parser for scenario in SCENARIOS}
        }

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        return await self._models[_scenario(messages).parser].complete(messages, tools, **sampling)

    async def aclose(self) -> None:
        for model in self._models.values():
            await model.aclose()


def row(number: int) -> dict[str, Any]:
    scenario = SCENARIOS[number % len(SCENARIOS)]
    return {
        "prompt": f"{number}/{scenario.name}",
        "files": FILES,
        "check": scenario.check or LISTING,
        "check_files": scenario.check_files,
    }


async def test_records_are_what_happened_in_the_slots(
    tmp_path: Path, docker_image: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    prompts = PROMPTS if request.config.getoption("--whole") else FEW
    image = docker_image("debian")
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text("".join(json.dumps(row(number)) + "\n" for number in range(prompts)), "utf-8")
    with endpoint(reply=reply) as server:
        model = ModelByFormat(server.base_url)
        config = BatchConfig(
            dataset=dataset,
            out=tmp_path / "out",
            model=model,
            backend="docker",
            image=image,
            workers=16,
            slots_per_sandbox=16,
            toolsets=_TOOLS,
        )
        result = await run_batch(config)
        await model.aclose()
    assert result.complete
    records = sorted(read_records(config.out), key=lambda record: int(record["prompt_index"]))
    assert len(records) == prompts
    wrong: Counter[str] = Counter()
    for record in records:
        if problem := _claims_wrong(record):
            wrong[problem] += 1
    async with SandboxPool("docker", image=image, slots_per_sandbox=8) as pool, anyio.create_task_group() as group:
        limiter = anyio.Semaphore(8)

        async def compare(record: Mapping[str, Any]) -> None:
            async with limiter, pool.slot() as slot:
                if problem := await _differs(slot, record):
                    wrong[problem] += 1

        for record in records:
            group.start_soon(compare, record)
    assert not wrong, "\n".join(f"{count} x {problem}" for problem, count in wrong.items())


def _claims_wrong(record: Mapping[str, Any]) -> str | None:
    """What a record claims that its scenario does not allow; None where it is right."""
    scenario = SCENARIOS[int(record["prompt_index"]) % len(SCENARIOS)]
    ran = tuple(name for name, arguments, result in _calls(record) if not _refused(result))
    kinds = [error["kind"] for error in json.loads(record["errors"])]
    if ran != scenario.ran:
        return f"{scenario.name}: ran {ran}, not {scenario.ran}"
    if missing := [kind for kind in scenario.errors if kind not in ("*", *kinds)] or (scenario.errors and not kinds):
        return f"{scenario.name}: the errors {kinds} lack {missing}"
    if record["trainable"] != scenario.trainable:
        return f"{scenario.name}: trainable is {record['trainable']}"
    if scenario.exportable is not None and record["exportable"] != scenario.exportable:
        return f"{scenario.name}: exportable is {record['exportable']}"
    if scenario.check is not None and record["solved"] != "unsolved":
        return f"{scenario.name}: {record['solved']}"
    return None


async def _differs(slot: Slot, record: Mapping[str, Any]) -> str | None:
    """What differs when the calls of a record are made again in a fresh slot, one after another."""
    scenario = SCENARIOS[int(record["prompt_index"]) % len(SCENARIOS)]
    await put_files(slot, FILES)
    toolbox = Toolbox(slot, _TOOLS)
    for name, arguments, recorded in _calls(record):
        if not name or recorded.get("error_kind") == "malformed_call":
            continue
        again = json.loads((await toolbox.call(name, arguments)).content)
        if again != recorded:
            return f"{scenario.name}: {name} gave {again}, and the record has {recorded}"
    for path, content in {**FILES, **scenario.files}.items():
        there = await slot.files.read_text(path) if await slot.files.exists(path) else None
        if there != content:
            return f"{scenario.name}: {path} holds {there!r}"
    listing = await slot.run(LISTING)
    if scenario.check is None and scenario.trainable and listing.stdout != record["check"]["output"]:
        return f"{scenario.name}: the check saw other files"
    return None


def _calls(record: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, arguments and result of each call of a record, in order."""
    messages = json.loads(record["messages"])
    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    return [
        (call["function"]["name"], call["function"]["arguments"], json.loads(results[call["id"]]))
        for message in messages
        for call in message.get("tool_calls") or ()
    ]


def _refused(result: Mapping[str, Any]) -> bool:
    """Whether a call was answered without being begun."""
    return result.get("error_kind") in {"malformed_call", "malformed_json", "missing_argument", "bad_value"}
