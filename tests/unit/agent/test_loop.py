"""The agent loop: order, parallelism, budgets, errors and what an episode says of them."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from hermes_agent import (
    AgentLoop,
    Completion,
    ContextExceeded,
    Episode,
    Hooks,
    ModelError,
    ScriptedModel,
    TokenUsage,
    ToolCall,
)
from hermes_agent.models.scripted import call
from hermes_agent.turn import ParallelCalls
from hermes_exec.errors import ChannelLost, ConfigError, ErrorCause, SandboxDied
from hermes_exec.tools import ToolResult
from tests.unit.agent.toolboxes import FunctionTools, ask, echo, result, results

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
R = TypeVar("R")


async def test_answer_ends_the_episode() -> None:
    model = ScriptedModel([ask(1, reasoning="hm"), Completion("done", usage=TokenUsage(20, 2, 1))])
    episode = await AgentLoop(model, FunctionTools(echo)).run([{"role": "user", "content": "go"}])
    assert (episode.finish, episode.turns, episode.answer) == ("answered", 2, "done")
    assert (episode.cause, episode.trainable) == (ErrorCause.POLICY, True)
    assert episode.reasoning == ("hm", None)
    assert episode.messages[1]["reasoning_content"] == "hm"
    assert episode.usage == TokenUsage(30, 7, 2)
    assert [(r.turn, r.name, r.ok, r.state) for r in episode.tool_calls] == [(1, "do", True, "ended")]
    assert episode.errors == ()


async def test_history_is_append_only() -> None:
    model = ScriptedModel([ask(1), ask(2, 3), "done"])
    begin = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]
    before = deepcopy(begin)
    episode = await AgentLoop(model, FunctionTools(echo)).run(begin)
    assert begin == before
    seen = [request.messages for request in model.requests]
    for shorter, longer in zip([before, *seen], [*seen, episode.messages], strict=True):
        assert longer[: len(shorter)] == shorter


@pytest.mark.parametrize(("name", "parallel_calls"), [("look", "safe"), ("do", "all"), ("do", 3)])
async def test_calls_side_by_side_have_results_in_order(name: str, parallel_calls: ParallelCalls) -> None:
    gate = {name: anyio.Event() for name in "abc"}

    async def one_after_another_backwards(arguments: dict[str, Any]) -> str:
        name = arguments["x"]
        if name != "c":
            await gate[chr(ord(name) + 1)].wait()
        gate[name].set()
        return str(name)

    tools = FunctionTools(one_after_another_backwards)
    with anyio.fail_after(5):
        model = ScriptedModel([ask("a", "b", "c", name=name), "done"])
        episode = await AgentLoop(model, tools, parallel_calls=parallel_calls).run("go")
    assert results(episode) == [f'{{"output": "{name}"}}' for name in "abc"]
    assert [m["tool_call_id"] for m in episode.messages if m["role"] == "tool"] == ["ca", "cb", "cc"]
    assert [json.loads(arguments)["x"] for _, arguments, _ in tools.calls] == ["a", "b", "c"]


class Recorder:
    """Notes when calls begin and end. Reads side by side wait for each other."""

    def __init__(self, side_by_side: Sequence[set[int]] = ()) -> None:
        self.log: list[str] = []
        self._meets = [(set(numbers), anyio.Event()) for numbers in side_by_side]

    async def __call__(self, arguments: dict[str, Any]) -> str:
        number = arguments["x"]
        self.log.append(f"+{number}")
        await anyio.lowlevel.checkpoint()
        for waited_for, all_there in self._meets:
            if number in waited_for:
                waited_for.discard(number)
                if not waited_for:
                    all_there.set()
                await all_there.wait()
        self.log.append(f"-{number}")
        return str(number)


@pytest.mark.parametrize(
    ("names", "side_by_side"),
    [
        ("do do do do", []),
        ("do look do look", []),
        ("look look do look look", [{0, 1}, {3, 4}]),
        ("look broken look do", [{0, 2}]),
        ("do do look look unknown look", [{2, 3}]),
    ],
)
async def test_safe_runs_neighbouring_reads_side_by_side_and_all_else_alone(
    names: str, side_by_side: list[set[int]]
) -> None:
    calls = tuple(
        call(name, {"x": number})._replace(error="not understood" if name == "broken" else None)
        for number, name in enumerate(names.split())
    )
    recorder = Recorder(side_by_side)
    with anyio.fail_after(60):
        episode = await AgentLoop(ScriptedModel([Completion("", calls), "ok"]), FunctionTools(recorder)).run("x")
    beside = {number: group for group in side_by_side for number in group}
    under_way: set[int] = set()
    for sign, number in ((entry[0], int(entry[1:])) for entry in recorder.log):
        if sign == "+":
            assert under_way <= beside.get(number, set()), recorder.log
            under_way.add(number)
        else:
            under_way.discard(number)
    begun = [int(entry[1:]) for entry in recorder.log if entry[0] == "+"]
    assert begun == [number for number, name in enumerate(names.split()) if name != "broken"]
    assert [record.arguments for record in episode.tool_calls] == [made.arguments for made in calls]
    assert [record.ok for record in episode.tool_calls] == [name != "broken" for name in names.split()]


async def test_toolbox_without_reads_only_reads_nothing() -> None:
    class Plain(FunctionTools):
        reads_only = None  # type: ignore[assignment]

    recorder = Recorder()
    await AgentLoop(ScriptedModel([ask(1, 2, name="look"), "ok"]), Plain(recorder)).run("x")
    assert recorder.log == ["+1", "-1", "+2", "-2"]


@pytest.mark.parametrize("parallel_calls", ["all", 8])
async def test_calls_at_once_begin_in_order_whatever_their_hooks_take(parallel_calls: ParallelCalls) -> None:
    asked_last = anyio.Event()

    async def before_call(made: ToolCall) -> str | None:
        number = json.loads(made.arguments)["x"]
        if number == 5:
            asked_last.set()
        if number < 3:
            await asked_last.wait()
        return "no" if number == 4 else None

    recorder = Recorder([{0, 1, 2, 3, 5}])
    with anyio.fail_after(60):
        loop = AgentLoop(
            ScriptedModel([ask(*range(6)), "ok"]),
            FunctionTools(recorder),
            parallel_calls=parallel_calls,
            hooks=Hooks(before_call=before_call),
        )
        await loop.run("x")
    assert recorder.log[:5] == ["+0", "+1", "+2", "+3", "+5"]


@pytest.mark.parametrize("given", [0, -1, 1.5, True, None, "", "none", "0", "-1", "SAFE"])
async def test_parallel_calls_that_is_none_of_its_values_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="parallel_calls is 'safe', 'all' or a number from 1"):
        AgentLoop(ScriptedModel([]), FunctionTools(echo), parallel_calls=given)  # type: ignore[arg-type]


async def test_parse_failure_on_the_last_call_is_not_a_natural_finish() -> None:
    model = ScriptedModel(["<tool_call>{broken}</tool_call>", "sorry"])
    tools = FunctionTools(echo)
    episode = await AgentLoop(model, tools).run("go")
    assert tools.calls == []
    assert (episode.finish, episode.turns) == ("answered", 2)
    told = json.loads(results(episode)[0])
    assert told["error_kind"] == "malformed_call"
    assert "<tool_call>" in told["error"]
    assert [(e.turn, e.where, e.kind) for e in episode.errors] == [(1, "call", "malformed_call")]
    only = await AgentLoop(ScriptedModel(["<tool_call>{broken}</tool_call>"]), tools, max_turns=1).run("go")
    assert only.finish == "max_turns"


async def test_broken_call_beside_a_good_one() -> None:
    good = '<tool_call>{"name": "do", "arguments": {"x": 1}}</tool_call>'
    tools = FunctionTools(echo)
    episode = await AgentLoop(ScriptedModel([f"<tool_call>{{oops</tool_call>{good}", "ok"]), tools).run("go")
    assert len(tools.calls) == 1
    assert [record.ok for record in episode.tool_calls] == [False, True]


async def test_cut_answer_is_max_tokens() -> None:
    episode = await AgentLoop(ScriptedModel([Completion("I thi", finish_reason="length")]), FunctionTools(echo)).run(
        "x"
    )
    assert (episode.finish, episode.cause, episode.trainable) == ("max_tokens", ErrorCause.BUDGET, True)


async def test_cut_call_is_reported_to_the_model() -> None:
    cut = ToolCall("c", "", '{"name": "do", "argu', "This tool call was cut off before its end.")
    model = ScriptedModel([Completion("", (cut,), finish_reason="length"), "ok"])
    episode = await AgentLoop(model, FunctionTools(echo)).run("x")
    assert episode.finish == "answered"
    assert "cut off" in results(episode)[0]


@pytest.mark.parametrize(
    ("error", "finish", "cause", "trainable"),
    [
        (ModelError("down"), "model_error", ErrorCause.PROVIDER, False),
        (ModelError("key", cause=ErrorCause.CONFIG), "model_error", ErrorCause.CONFIG, False),
        (ContextExceeded("too long"), "context", ErrorCause.BUDGET, True),
        (KeyError("bug"), "model_error", ErrorCause.INFRA, False),
    ],
)
async def test_model_errors(error: Exception, finish: str, cause: ErrorCause, trainable: bool) -> None:
    episode = await AgentLoop(ScriptedModel([ask(1), error]), FunctionTools(echo)).run("x")
    assert (episode.finish, episode.cause, episode.trainable) == (finish, cause, trainable)
    assert [(e.where, e.kind) for e in episode.errors] == [("model", type(error).__name__)]
    assert episode.turns == 1
    assert len(episode.messages) == 3


@pytest.mark.parametrize(
    "given",
    [
        *(None, "text", {}, Completion(5), Completion("a", None), Completion("a", usage=None)),  # type: ignore[arg-type]
        *(Completion("a", ({"id": "1"},)), Completion("a", usage=TokenUsage("1", 2))),  # type: ignore[arg-type]
        Completion("a", usage=TokenUsage(1, 2, cost=math.nan)),
        Completion("a", (ToolCall("1", "do", {}),)),  # type: ignore[arg-type]
        Completion("a", problems=("text was cut",)),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("last", [False, True])
async def test_a_model_that_gives_no_completion_ends_its_episode_only(given: object, last: bool) -> None:
    class Wrong:
        async def complete(self, messages: object, tools: object, **sampling: object) -> Completion:
            return cast(Completion, given) if "tool_choice" in sampling or not last else ask(1)

    episode = await AgentLoop(Wrong(), FunctionTools(echo), max_turns=1, final_answer=last).run("x")
    assert episode.finish == ("max_turns" if last else "model_error")
    assert [(e.where, e.kind) for e in episode.errors] == [("model", "TypeError")]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ChannelLost("gone"), ErrorCause.INFRA),
        (RuntimeError("bug"), ErrorCause.INFRA),
        (ConfigError("x"), ErrorCause.CONFIG),
    ],
)
async def test_infra_ends_the_episode_unscored_and_ends_the_siblings(error: Exception, cause: ErrorCause) -> None:
    waiting = anyio.Event()
    ended: list[object] = []

    async def tool(arguments: dict[str, Any]) -> str:
        if arguments["x"] == 2:
            await waiting.wait()
            raise error
        if arguments["x"] == 1:
            return "first"
        waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(arguments["x"])
        return ""

    with anyio.fail_after(5):
        loop = AgentLoop(ScriptedModel([ask(1, 2, 3)]), FunctionTools(tool), parallel_calls="all")
        episode = await loop.run("x")
    assert (episode.finish, episode.cause, episode.trainable) == ("infra", cause, False)
    assert ended == [3]
    assert [(record.ok, record.state) for record in episode.tool_calls] == [
        (True, "ended"),
        (False, "begun"),
        (False, "begun"),
    ]
    assert [e.kind for e in episode.errors if e.where == "infra"] == [type(error).__name__]


async def test_failure_leaves_later_calls_not_begun() -> None:
    async def tool(arguments: dict[str, Any]) -> str:
        if arguments["x"] == 2:
            raise ChannelLost("gone")
        return "first"

    model = ScriptedModel([ask(1, 2, 3)])
    episode = await AgentLoop(model, FunctionTools(tool)).run("x")
    assert [record.state for record in episode.tool_calls] == ["ended", "begun", "not_begun"]
    assert [(e.where, e.kind) for e in episode.errors] == [
        ("infra", "ChannelLost"),
        ("call", "interrupted"),
        ("call", "not_begun"),
    ]


async def test_sandbox_that_its_tenant_ended_is_the_models_doing() -> None:
    async def tool(arguments: dict[str, Any]) -> str:
        raise SandboxDied("the tenant ended the sandbox", cause=ErrorCause.POLICY)

    episode = await AgentLoop(ScriptedModel([ask(1), "oh"]), FunctionTools(tool)).run("x")
    assert (episode.finish, episode.trainable) == ("answered", True)
    assert [(e.where, e.kind) for e in episode.errors] == [("tool", "SandboxDied")]
    assert [record.state for record in episode.tool_calls] == ["ended"]


async def test_failing_tool_is_a_result() -> None:
    async def tool(arguments: dict[str, Any]) -> ToolResult:
        return result('{"error": "no such file"}', ok=False, error_kind="not_found")

    episode = await AgentLoop(ScriptedModel([ask(1), "ok"]), FunctionTools(tool)).run("x")
    assert (episode.finish, episode.trainable) == ("answered", True)
    assert (episode.tool_calls[0].ok, episode.tool_calls[0].error_kind) == (False, "not_found")


async def test_cancel_ends_with_an_episode() -> None:
    started = anyio.Event()

    async def tool(arguments: dict[str, Any]) -> str:
        started.set()
        await anyio.sleep_forever()
        return ""

    loop = AgentLoop(ScriptedModel([ask(1, 2)]), FunctionTools(tool))
    episodes: list[Episode] = []

    async def run() -> None:
        episodes.append(await loop.run("x"))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await started.wait()
            loop.cancel()
    assert [(e.finish, e.cause, e.trainable) for e in episodes] == [("cancelled", ErrorCause.CANCELLED, False)]
    assert episodes[0].messages[-1]["role"] == "tool"
    assert [record.state for record in episodes[0].tool_calls] == ["begun", "not_begun"]
    loop.cancel()


async def test_cancellation_from_outside_passes_through() -> None:
    async def tool(arguments: dict[str, Any]) -> str:
        await anyio.sleep_forever()
        return ""

    loop = AgentLoop(ScriptedModel([ask(1), ask(2)]), FunctionTools(tool))
    finished = False
    with anyio.move_on_after(0.05) as scope:
        await loop.run("x")
        finished = True
    assert scope.cancelled_caught
    assert not finished


async def test_ids_are_unique_within_an_episode() -> None:
    twice = '<tool_call>{"name": "do", "arguments": {"x": 1}}</tool_call>'
    episode = await AgentLoop(ScriptedModel([twice, twice, ask(1, 1), "ok"]), FunctionTools(echo)).run("x")
    ids = [record.call_id for record in episode.tool_calls]
    assert len(set(ids)) == len(ids) == 4
    asked = [c["id"] for m in episode.messages for c in m.get("tool_calls", ())]
    assert asked == ids


async def test_results_of_a_turn_are_fitted_together() -> None:
    class Fitting(FunctionTools):
        async def fit_turn(self, results: Sequence[ToolResult]) -> list[ToolResult]:
            return [result(f"{len(results)}:{one.content}") for one in results]

    episode = await AgentLoop(ScriptedModel([ask(1, 2), "ok"]), Fitting(echo)).run("x")
    assert results(episode) == ['2:{"output": "1"}', '2:{"output": "2"}']


async def test_sampling_reaches_the_model() -> None:
    model = ScriptedModel(["ok"])
    await AgentLoop(model, FunctionTools(echo), temperature=0.3, max_tokens=7, sampling={"top_p": 0.9}).run("x")
    assert model.requests[0].sampling == {"temperature": 0.3, "max_tokens": 7, "top_p": 0.9}


async def test_what_is_no_model_and_no_toolbox_is_refused() -> None:
    with pytest.raises(ConfigError, match="model must have a method 'complete' "):
        AgentLoop("qwen3", FunctionTools(echo))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="toolbox must have a method 'call', and list has none"):
        AgentLoop(ScriptedModel([]), ["terminal"])  # type: ignore[type-var]


async def test_parallel_calls_bounds_the_calls_at_a_time() -> None:
    at_once = most = 0

    async def tool(arguments: dict[str, Any]) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await anyio.sleep(0.01)
        at_once -= 1
        return ""

    await AgentLoop(ScriptedModel([ask(*range(9)), "ok"]), FunctionTools(tool), parallel_calls=3).run("x")
    assert most == 3


async def test_blocking_toolbox_gives_a_blocking_run() -> None:
    class Blocking:
        def __init__(self, portal: BlockingPortal) -> None:
            self._portal = portal
            self.wrapped = FunctionTools(echo)

        def run_async(self, work: Callable[[], Awaitable[R]]) -> R:
            return self._portal.call(work)

    def work() -> Episode:
        with start_blocking_portal() as portal:
            return AgentLoop(ScriptedModel([ask(1), "done"]), Blocking(portal)).run("x")

    episode = await anyio.to_thread.run_sync(work)
    assert (episode.finish, episode.answer) == ("answered", "done")
