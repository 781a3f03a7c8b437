"""Rollouts of programs: a harness in a slot asks the driver's model, and every end of it has a cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import (
    CommandCheck,
    Completion,
    ContextExceeded,
    Episode,
    Message,
    Model,
    ModelError,
    Rollout,
    RolloutResult,
    Scoring,
    ScriptedModel,
    TokenUsage,
    Verdict,
)
from hermes_agent.gateway import Gateway
from hermes_agent.models.scripted import ScriptStep, call
from hermes_agent.rollout_result import Stage
from hermes_agent.scoring import ScoreIn
from hermes_agent.tokens import TokenModel, sequence
from hermes_exec import SandboxPool, Slot
from hermes_exec.errors import ErrorCause
from tests.unit.agent.tokens.families import FAMILIES
from tests.unit.agent.tokens.server import SHAPES, Script, joined, served

pytestmark = pytest.mark.anyio
HARNESS = Path(__file__).with_name("harness.py")
PROGRAM = ["python3", "harness.py", "{task}"]
RIGHT = Scoring(check=CommandCheck("grep -q right answer"))


def sh(command: str) -> Completion:
    return Completion("", (call("sh", {"command": command}),), usage=TokenUsage(10, 5, 1))


def rollout(**more: Any) -> Rollout:
    return Rollout(**{"messages": "Write the answer.", "program": PROGRAM, "files": {"harness.py": HARNESS}, **more})


class ModelOf:
    """A model that answers with a function of the messages."""

    model = "function"

    def __init__(self, answer: Callable[[Sequence[Message]], Any]) -> None:
        self._answer = answer

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        answer = self._answer(messages)
        return Completion(answer if isinstance(answer, str) else await answer)


async def run_locally(model: Model | TokenModel, **more: Any) -> RolloutResult:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        return await rollout(**more).run(pool, model)


def python(*lines: str) -> list[str]:
    """A program that has the functions of the harness."""
    return ["python3", "-c", "\n".join(["from harness import *", *lines])]


@pytest.mark.parametrize("engine", ["local", pytest.param("docker", marks=pytest.mark.docker)])
@pytest.mark.parametrize("score_in", ["sealed", "live"])
async def test_harness_solves_a_task_without_a_network(
    engine: str, score_in: ScoreIn, docker_image: Callable[[str], str]
) -> None:
    options: dict[str, Any] = {"image": docker_image("debian")} if engine == "docker" else {}
    model = ScriptedModel([sh("echo right > answer"), sh("cat answer"), Completion("Done.")])
    scoring = Scoring(check=CommandCheck("grep -q right answer"), score_in=score_in)
    stages: list[Stage] = []
    async with SandboxPool(engine, network=False, **options) as pool:
        result = await rollout(scoring=scoring, on_stage=stages.append).run(pool, model)
    assert (result.reward, result.finish, result.cause, result.error) == (1.0, "answered", ErrorCause.POLICY, None)
    episode = result.episode
    assert episode is not None
    assert episode.program is not None
    assert episode.captured is not None
    assert (episode.program.exit_code, episode.program.output) == (0, "Done.\n")
    assert [message["role"] for message in episode.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert episode.messages[4]["content"] == "right\n"
    assert (episode.turns, len(model.requests), len(episode.reasoning)) == (3, 3, 3)
    assert [tool["function"]["name"] for tool in episode.tools] == ["sh"]
    assert (episode.usage.prompt_tokens, episode.usage.requests, episode.tool_calls) == (20, 3, ())
    assert stages == ["queue", "setup", "tools", *["model", "tools"] * 3, "check"]
    assert 0 < result.timings.model_s < episode.duration_s
    assert result.timings.tools_s > 0
    assert (result.killed is None) == (score_in == "live")


async def test_program_has_its_task_directory_and_variables() -> None:
    seen: list[str] = []

    def note(messages: Sequence[Message]) -> str:
        seen.append(str(messages[-1]["content"]))
        return "Done."

    lines = "ask([{'role': 'user', 'content': ' '.join((sys.argv[1], os.environ['HERMES_TASK'], os.getcwd(), MORE))}])"
    program = [*python(lines.replace("MORE", "os.environ['OPENAI_BASE_URL'][:9], os.environ['NAME']")), "<{task}>"]
    result = await run_locally(
        ScriptedModel([note]), program=program, messages="a 'quoted' task", files={"in/harness.py": HARNESS}, cwd="in",
        env={"NAME": "value", "NO_PROXY": "*"},
    )  # fmt: skip
    assert result.finish == "answered", result.failure
    assert seen[0].startswith("<a 'quoted' task> a 'quoted' task /")
    assert seen[0].endswith("/in http://12 value")


async def test_shell_text_has_the_task_in_a_variable() -> None:
    result = await run_locally(ScriptedModel(["Done."]), program='python3 harness.py "$HERMES_TASK, {task}"')
    assert result.episode is not None
    assert result.episode.messages[0] == {"role": "user", "content": "Write the answer., {task}"}


ENDS: Mapping[str, tuple[Sequence[ScriptStep], dict[str, Any], tuple[str, ErrorCause, bool]]] = {
    "answered": (["Done."], {}, ("answered", ErrorCause.POLICY, True)),
    "answered, then failed": (
        ["Done."],
        {"program": python("work('go')", "sys.exit(3)")},
        ("answered", ErrorCause.POLICY, True),
    ),
    "no such program": ([], {"program": ["no-such-program"]}, ("infra", ErrorCause.TASK, False)),
    "no such command": ([], {"program": "no-such-command {task}"}, ("infra", ErrorCause.TASK, False)),
    "no such directory": ([], {"cwd": "nowhere"}, ("infra", ErrorCause.TASK, False)),
    "never asks": ([], {"program": ["true"]}, ("infra", ErrorCause.TASK, False)),
    "only refused requests": ([], {"program": python("ask([], n=2)")}, ("infra", ErrorCause.TASK, False)),
    "only images": (
        [],
        {"program": python("ask([{'role': 'user', 'content': [{'type': 'image_url'}]}])")},
        ("infra", ErrorCause.TASK, False),
    ),
    "wrong key": (
        [],
        {"program": python("os.environ['OPENAI_API_KEY'] = 'hx-other'", "work('go')")},
        ("infra", ErrorCause.TASK, False),
    ),
    "unknown path": (
        [],
        {"program": python("os.environ['OPENAI_BASE_URL'] += '/v2'", "work('go')")},
        ("infra", ErrorCause.TASK, False),
    ),
    "answered, then refused": (
        ["Done."],
        {"program": python("work('go')", "ask([], n=2)")},
        ("answered", ErrorCause.POLICY, True),
    ),
    "hangs": ([], {"program": ["sleep", "60"], "deadline_s": 1.0}, ("deadline", ErrorCause.BUDGET, False)),
    "impossible argument": ([], {"program": ["echo", "\0"]}, ("infra", ErrorCause.CONFIG, False)),
    "sampler fails": ([ModelError("gone")], {}, ("model_error", ErrorCause.PROVIDER, False)),
    "model refuses": (
        [sh("true"), ModelError("no such model", cause=ErrorCause.CONFIG)],
        {},
        ("model_error", ErrorCause.CONFIG, False),
    ),
    "bug of a model": ([ValueError("a bug")], {}, ("model_error", ErrorCause.INFRA, False)),
    "retry of a failure is answered": (
        [ModelError("gone"), "Done."],
        {"program": python("try: work('go')", "except OSError: work('go')")},
        ("answered", ErrorCause.POLICY, True),
    ),
    "deadline": ([sh("sleep 60")], {"deadline_s": 2.0}, ("deadline", ErrorCause.BUDGET, False)),
    "requests used up": (
        [sh("true")] * 9,
        {"gateway": Gateway(max_requests=2)},
        ("max_turns", ErrorCause.BUDGET, True),
    ),
    "requests used up exactly": (
        [sh("true"), "Done."],
        {"gateway": Gateway(max_requests=2)},
        ("answered", ErrorCause.POLICY, True),
    ),
    "tokens used up": ([sh("true")] * 9, {"gateway": Gateway(max_tokens=10)}, ("budget", ErrorCause.BUDGET, True)),
    "roots used up": (
        ["Done."] * 9,
        {"program": python("for n in range(9): work(f'go {n}')"), "gateway": Gateway(max_roots=2)},
        ("budget", ErrorCause.BUDGET, True),
    ),
    "context": ([sh("true"), ContextExceeded("too long")], {}, ("context", ErrorCause.BUDGET, True)),
    "context at once": ([ContextExceeded("too long")], {}, ("context", ErrorCause.BUDGET, False)),
    "context, then compacted": (
        [sh("true"), ContextExceeded("too long"), "Done."],
        {"program": python("try: work('go')", "except OSError: work('shorter')")},
        ("answered", ErrorCause.POLICY, True),
    ),
    "kills its processes": (["Done."], {"program": python("work('go')", "os.kill(os.getpid(), 9)")},
        ("answered", ErrorCause.POLICY, True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
async def test_end_has_its_cause(end: str) -> None:
    steps, options, (finish, cause, trainable) = ENDS[end]
    result = await run_locally(ScriptedModel(steps), scoring=Scoring(check=CommandCheck("true")), **options)
    episode = result.episode
    assert episode is not None, result.error
    assert (episode.finish, episode.cause, episode.trainable) == (finish, cause, trainable), episode
    assert result.reward == (1.0 if trainable else None)
    assert (result.failure is None) == (trainable or finish == "deadline"), result.failure


@pytest.mark.parametrize("answers_again", [False, True])
async def test_harness_that_gives_up_on_a_slow_model_gets_no_reward(answers_again: bool) -> None:
    """Its own time limit is over, and it fails. If it goes on and is answered, the answer counts."""
    after = "work('shorter')" if answers_again else "sys.exit(1)"

    async def stall() -> str:
        await anyio.sleep(60)
        return "Late."

    model = ModelOf(lambda messages: "Done." if "shorter" in str(messages) else stall())
    attempt = "try: ask([{'role': 'user', 'content': 'go'}], timeout_s=1)"
    program = python(attempt, f"except OSError: {after}", "sys.exit(1)")
    result = await run_locally(model, program=program, scoring=Scoring(check=CommandCheck("true")))
    episode = result.episode
    assert episode is not None, result.error
    assert episode.program is not None
    assert episode.program.exit_code == 1
    if answers_again:
        assert (episode.finish, result.reward) == ("answered", 1.0)
    else:
        assert (episode.finish, episode.cause, result.reward) == ("model_error", ErrorCause.INFRA, None)
        assert "the program gave up 1 s after its last request" in episode.errors[-1].message


@pytest.mark.parametrize("has_calls", [False, True])
async def test_harness_that_gives_up_between_calls_and_reports_no_failure_gets_no_reward(has_calls: bool) -> None:
    """The results of its calls got no answer. After an answer without calls, its work may be done."""

    class Stalling:
        model = "stalling"

        async def complete(
            self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
        ) -> Completion:
            if len(messages) > 1:
                await anyio.sleep(60)
            return sh("true") if has_calls else Completion("Done.")

    program = python(
        "first = [{'role': 'user', 'content': 'go'}]",
        "answer = ask(first)",
        "ids = [call['id'] for call in answer.get('tool_calls', ())]",
        "results = [{'role': 'tool', 'tool_call_id': each, 'content': ''} for each in ids]",
        "try: ask([*first, answer, *(results or [{'role': 'user', 'content': 'a title'}])], timeout_s=1)",
        "except OSError: print('no answer')",
    )
    result = await run_locally(Stalling(), program=program, scoring=Scoring(check=CommandCheck("true")))
    episode = result.episode
    assert episode is not None, result.error
    assert episode.program is not None
    assert (episode.program.exit_code, episode.program.output) == (0, "no answer\n"), episode.program
    if has_calls:
        assert (episode.finish, episode.cause, result.reward) == ("model_error", ErrorCause.INFRA, None)
        assert "the program gave up 1 s after its last request" in episode.errors[-1].message
    else:
        assert (episode.finish, episode.cause, result.reward) == ("answered", ErrorCause.POLICY, 1.0)


async def test_refusal_of_a_request_is_named() -> None:
    """The record says why a program got no answer, also if no request was valid."""
    for more, reason in (("n=2", "n must be 1"), ("response_format={'type': 'json_object'}", "JSON mode")):
        program = python(f"ask([{{'role': 'user', 'content': 'go'}}], {more})")
        result = await run_locally(ScriptedModel([]), program=program)
        assert result.episode is not None
        assert reason in result.episode.errors[-1].message


async def test_first_request_that_a_program_leaves_is_named() -> None:
    program = python("try: ask([{'role': 'user', 'content': 'go'}], timeout_s=1)", "except OSError: pass")
    result = await run_locally(ModelOf(lambda _: anyio.sleep_forever()), program=program)
    assert result.episode is not None
    assert (result.finish, result.cause) == ("infra", ErrorCause.TASK)
    assert "it left its last request after 1 s; the program ended with exit code 0" in result.episode.errors[-1].message


@pytest.mark.parametrize("name", FAMILIES)
async def test_ids_of_the_main_conversation_are_those_of_the_server(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    says = [(family.says("thought", [f"echo {n} é"]), family.call_end) for n in range(3)]
    script = Script(tokenizer, [*says, (family.says("answer", []), family.answer_end)], 1)
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    program = python(f"TOOLS[0]['function'] |= {{'name': 'do', 'parameters': {schema}}}", "work('go')")
    with served(script, SHAPES["sglang"]) as url:
        sampler = SHAPES["sglang"].sampler(f"{url}/v1")
        model = TokenModel(sampler, family.chat_template(tokenizer), parser=family.parser)
        result = await run_locally(model, program=program, gateway=Gateway(sampling={"max_tokens": 2000}))
        await model.aclose()
    episode = result.episode
    assert episode is not None
    assert episode.captured is not None
    assert episode.tokens is not None, result.failure
    assert (result.finish, episode.turns, len(script.log)) == ("answered", 4, 4)
    assert sequence(episode.tokens) == joined(script.log)
    (captured,) = episode.captured.sequences()
    assert captured[:3] == joined(script.log)
    assert [message["content"] for message in episode.messages if message["role"] == "tool"] == [
        f"{n} é\n" for n in range(3)
    ]


@pytest.mark.parametrize(("options", "sampled"), [({"max_requests": 3}, 3), ({"max_tokens": 15}, 3)])
async def test_budget_is_exact(options: dict[str, Any], sampled: int) -> None:
    """Eight requests at once, and then as many again: no more than the budget is sampled."""
    lines = (
        "from concurrent.futures import ThreadPoolExecutor",
        "def one(n):",
        "    try: ask([{'role': 'user', 'content': str(n)}]); return 'answered'",
        "    except urllib.error.HTTPError as error: return str(error.code)",
        "for n in range(2): print(sorted(ThreadPoolExecutor(8).map(one, range(n * 8, n * 8 + 8))))",
    )
    model = ScriptedModel([sh("true")] * 99)
    result = await run_locally(model, program=python(*lines), gateway=Gateway(**options))
    assert len(model.requests) == sampled
    assert result.episode is not None
    assert result.episode.program is not None
    output = result.episode.program.output
    assert (output.count("answered"), output.count("429")) == (sampled, 16 - sampled), output


async def test_slots_at_once_are_never_mixed() -> None:
    """Each model hears only of its own task, although all slots of this host may share a loopback."""
    models = [ScriptedModel([sh(f"echo right {n} > answer"), f"Done {n}."]) for n in range(6)]
    results: dict[int, RolloutResult] = {}

    async def one(pool: SandboxPool, number: int) -> None:
        scoring = Scoring(check=CommandCheck(f"grep -qx 'right {number}' answer"))
        results[number] = await rollout(messages=f"task {number}", scoring=scoring).run(pool, models[number])

    async with SandboxPool("local", slots_per_sandbox=6) as pool, anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(one, pool, number)
    for number, model in enumerate(models):
        assert results[number].reward == 1.0, results[number]
        assert {str(request.messages[0]["content"]) for request in model.requests} == {f"task {number}"}


LEFTOVER = (
    "def note(text): print(text, file=open('asked', 'a'), flush=True)",
    "if not os.fork():",
    "    os.setsid()",
    "    while True:",
    "        try: ask([{'role': 'user', 'content': 'and now?'}]); note('ANSWERED')",
    "        except OSError: note('refused')",
    "        time.sleep(0.05)",
    "work(sys.argv[1])",
)


async def test_process_that_is_left_gets_no_answer_during_the_check() -> None:
    """It goes on to ask in a check in the living slot, and all that it gets is refused."""
    begun = anyio.Event()
    answers = 0

    async def answer(messages: Sequence[Message]) -> str:
        nonlocal answers
        if messages[-1]["content"] == "and now?":
            answers += 1
            begun.set()
            if answers > 1:
                await anyio.sleep_forever()
        else:
            await begun.wait()
        return "Done."

    async def check(slot: Slot, _: Episode) -> Verdict:
        before = answers
        await slot.run("echo; until grep -q refused asked; do sleep 0.05; done", check=True, timeout_s=60)
        text = await slot.files.read_text("asked")
        assert answers == before
        return Verdict(1.0, text.count("ANSWERED") <= 1)

    model = ModelOf(answer)
    program = [*python("import time", *LEFTOVER), "{task}"]
    result = await run_locally(model, program=program, scoring=Scoring(check=check, score_in="live"))
    assert (result.reward, result.solved) == (1.0, True), result


async def test_processes_that_are_left_are_ended_before_a_sealed_check() -> None:
    model = ModelOf(lambda _: "Done.")
    program = [*python("import time", *LEFTOVER), "{task}"]
    check = CommandCheck("rm -f asked; sleep 0.5; test ! -e asked")
    result = await run_locally(model, program=program, scoring=Scoring(check=check))
    assert result.reward == 1.0
    assert result.killed is not None
    assert (result.killed.found > 0, result.killed.left) == (True, 0)


async def test_key_is_masked_in_the_record() -> None:
    keys: list[str] = []

    def note(messages: Sequence[Message]) -> Completion:
        keys.append(str(messages[-1]["content"]).rpartition(" ")[2])
        return Completion("Done.", reasoning=f"The key is {keys[0]}.")

    lines = (
        "key = os.environ['OPENAI_API_KEY']",
        "TOOLS[0]['function']['description'] = key",
        "ask([{'role': 'user', 'content': 'my key is ' + key}])",
        "print(os.environ)",
    )
    episode = (await run_locally(ScriptedModel([note]), program=python(*lines))).episode
    assert episode is not None
    assert episode.program is not None
    assert (keys[0][:3], len(keys[0])) == ("hx-", 35)
    assert keys[0] not in repr(replace(episode, captured=None))
    assert "OPENAI_API_KEY" in episode.program.output
    assert episode.reasoning == ("The key is ***.",)


async def test_key_is_masked_in_the_error_of_a_record() -> None:
    program = python("ask([{'role': 'user', 'content': 'a'}], model=os.environ['OPENAI_API_KEY'])")
    model = ScriptedModel([])
    result = await run_locally(model, program=program, gateway=Gateway(models={"policy": model}))
    assert result.episode is not None
    assert result.failure is not None
    assert "hx-" not in repr((result.failure, replace(result.episode, captured=None)))
    assert "there is no model '***'" in result.failure.message


def test_blocking_pool_runs_a_program() -> None:
    with SandboxPool("local") as pool:
        result = rollout(scoring=RIGHT).run(pool, ScriptedModel([sh("echo right > answer"), "Done."]))
    assert (result.reward, result.finish) == (1.0, "answered")
