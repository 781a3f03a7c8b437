"""Rollouts in real slots: what is put in, how the model's work is scored, and whose doing an end was."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

from hermes_agent import (
    CheckFailed,
    CommandCheck,
    Completion,
    Episode,
    ModelError,
    Rollout,
    RolloutResult,
    Scoring,
    ScriptedModel,
    Verdict,
)
from hermes_agent.models.scripted import call
from hermes_agent.rollout_result import Stage
from hermes_agent.scoring import ScoreIn
from hermes_exec import SandboxPool, Slot
from hermes_exec.errors import ConfigError, ErrorCause
from tests.conftest import BackendCase
from tests.e2e.agent.plans import PlanModel, Step

pytestmark = pytest.mark.anyio
INFINITE: Any = np.float32("-inf")
BOTH: tuple[ScoreIn, ScoreIn] = ("sealed", "slot")


async def done(pool: SandboxPool, steps: Sequence[Step], check: str | None, **more: Any) -> RolloutResult:
    names = ("score_in", "keep", "seal_limit_bytes", "seal_timeout_s")
    scoring: dict[str, Any] = {name: more.pop(name) for name in names if name in more}
    scoring["files"] = more.pop("check_files", {})
    made = None if check is None else Scoring(check=CommandCheck(check, more.pop("timeout_s", 60)), **scoring)
    return await Rollout(messages="go", scoring=made, **more).run(pool, PlanModel({"go": [*steps, "done"]}))


@pytest.mark.parametrize("place", ["prepare", "check"])
async def test_function_that_awaits_what_was_cancelled_spoils_its_rollout_only(place: str) -> None:
    async def function(*_: object) -> Any:  # noqa: ANN401
        raise asyncio.CancelledError

    more = {"prepare": function} if place == "prepare" else {"scoring": Scoring(check=function)}
    results: list[RolloutResult] = []

    async def one(pool: SandboxPool) -> None:
        results.append(await Rollout(messages="go", **more).run(pool, ScriptedModel(["done"])))

    async with SandboxPool("local") as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(one, pool)
    (result,) = results
    assert (result.reward, result.cause) == (None, ErrorCause.INFRA)
    assert result.error is not None
    assert "raised CancelledError: something that it awaited was cancelled" in result.error.message


@pytest.mark.loops
@pytest.mark.parametrize("score_in", BOTH)
async def test_the_check_decides(backend: BackendCase, score_in: ScoreIn) -> None:
    async with SandboxPool(backend.backend, **backend.options) as pool:
        check = "grep -q right out/answer && echo found it"
        work = ["mkdir out && cp given out/answer && chmod 640 out/answer && ln -s answer out/link"]
        good = await done(pool, [work], check, files={"given": "right\n"}, score_in=score_in)
        bad = await done(pool, [work], check, files={"given": b"wrong\n"}, score_in=score_in)
        modes = await done(pool, [work], "ls -l out | cut -c 1-10", files={"given": "x"}, score_in=score_in)
    assert (good.solved, good.reward, good.trainable, good.finish) == (True, 1.0, True, "answered")
    assert good.verdict == Verdict(1.0, solved=True, exit_code=0, output="found it\n")
    assert (bad.solved, bad.reward, bad.trainable, bad.cause) == (False, 0.0, True, ErrorCause.POLICY)
    assert modes.verdict is not None
    assert modes.verdict.output.split()[-2:] == ["-rw-r-----", "lrwxrwxrwx"]


@pytest.mark.parametrize(("score_in", "reward"), [("live", 1.0), ("slot", 0.0), ("sealed", 0.0)])
async def test_service_of_the_model_answers_a_live_check(score_in: ScoreIn, reward: float) -> None:
    """A server that was started in the background, on a UNIX socket: other tests of this machine use its ports."""
    serve = "import socketserver as s\ns.UnixStreamServer('sock', s.BaseRequestHandler).serve_forever()"
    start = call("terminal", {"command": "exec python3 serve.py", "background": True})
    wait = call("terminal", {"command": "until [ -S sock ]; do sleep 0.05; done"})
    check = "import socket; socket.socket(socket.AF_UNIX).connect('sock')"
    rollout = Rollout(
        messages="go",
        files={"serve.py": serve},
        toolsets=["terminal"],
        scoring=Scoring(check=CommandCheck(["python3", "-c", check]), score_in=score_in),
    )
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        model = ScriptedModel([Completion("", (start,)), Completion("", (wait,)), "done"])
        result = await rollout.run(pool, model)
    assert result.reward == reward, result.verdict
    assert (result.killed is None) == (score_in == "live")


@pytest.mark.docker
@pytest.mark.parametrize("score_in", ["sealed", "slot", "live"])
async def test_sandbox_that_the_model_ended_scores_zero(docker_image: Callable[[str], str], score_in: ScoreIn) -> None:
    async with SandboxPool("docker", image=docker_image("busybox"), slots_per_sandbox=1) as pool:
        result = await done(pool, [["kill -9 -1"]], "true", score_in=score_in)
    assert (result.error, result.trainable, result.reward, result.cause) == (None, True, 0.0, ErrorCause.POLICY)


async def test_sealed_takes_only_the_work_to_the_check(backend: BackendCase) -> None:
    """A home, a program in /tmp and a process that the model left are not there when the check runs."""
    writes = 'sh -c "(while :; do echo right > answer; sleep 0.05; done) >/dev/null 2>&1 &"'
    left = [
        'echo "export CHEAT=1" > ~/.bashrc; mkdir -p ~/bin; echo "exit 0" > ~/bin/grep; touch "$TMPDIR/flag"',
        f"{writes}; until [ -e answer ]; do sleep 0.05; done; mv answer mine",
    ]
    check = '[ ! -e ~/.bashrc ] && [ ! -e ~/bin ] && [ ! -e "$TMPDIR/flag" ]'
    check += " && rm -f answer && sleep 0.3 && [ ! -e answer ]"
    async with SandboxPool(backend.backend, **backend.options) as pool:
        sealed = await done(pool, [[step] for step in left], f"{check} && [ -e mine ]")
        open_ = await done(pool, [[left[0]]], 'test -e ~/bin/grep && test -e "$TMPDIR/flag"', score_in="slot")
    assert (sealed.solved, open_.solved) == (True, True), (sealed.verdict, open_.verdict)
    assert sealed.killed is not None
    assert (sealed.killed.found > 0, sealed.killed.left) == (True, 0)


@pytest.mark.parametrize("score_in", BOTH)
@pytest.mark.parametrize(
    "prank",
    [
        "mkdir tests && echo 'exit 0' > tests/check.sh && chmod -w tests/check.sh",
        "mkdir elsewhere && echo 'exit 0' > elsewhere/check.sh && ln -s elsewhere tests",
        "ln -s /nowhere tests",
        "echo 'exit 0' > tests",
        "mkdir -p tests/check.sh/deep",
        "mkdir tests && ln -s /bin/true tests/check.sh",
        "mkdir tests && mkfifo tests/check.sh",
        "mkdir tests && chmod 000 tests",
    ],
)
async def test_check_files_are_put_in_over_what_the_model_left(score_in: ScoreIn, prank: str) -> None:
    files = {"tests/check.sh": "grep -q right answer\n"}
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await done(pool, [[prank]], "sh tests/check.sh", check_files=files, score_in=score_in)
    assert (result.solved, result.trainable) == (False, True), result


async def test_check_has_the_variables_that_the_task_set() -> None:
    async def prepare(slot: Slot) -> None:
        slot.extra_env = {"FROM_TASK": "yes"}

    check = '[ "$FROM_TASK" = yes ] && [ -n "$PYTHONPYCACHEPREFIX" ]'
    async with SandboxPool("local", slots_per_sandbox=1) as pool, pool.slot() as slot:
        scoring = Scoring(check=CommandCheck(check))
        rollout = Rollout(messages="go", prepare=prepare, scoring=scoring)
        result = await rollout.run_in(slot, PlanModel({"go": ["done"]}))
        assert (result.reward, dict(slot.extra_env)) == (1.0, {"FROM_TASK": "yes"})


async def test_keep_brings_the_named_files_into_the_task_as_it_was(tmp_path: Path) -> None:
    tree = tmp_path / "repo"
    (tree / "tests").mkdir(parents=True)
    (tree / "tests" / "test.sh").write_text('[ "$(cat src/answer)" = right ]\n')
    (tree / "src").mkdir()
    (tree / "src" / "gone").write_text("x")
    prepared: list[str] = []

    async def prepare(slot: Slot) -> None:
        prepared.append(slot.id)
        await slot.files.write_text("made", "by prepare")

    cheat = "echo right > src/answer; rm src/gone; echo true > tests/test.sh; echo exit > made; touch conftest"
    check = "sh tests/test.sh && [ ! -e src/gone ] && [ ! -e conftest ] && grep -q prepare made"
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        keep = ["src/answer", "src/gone"]
        result = await done(pool, [[cheat]], check, files={".": tree}, prepare=prepare, keep=keep)
    assert result.solved, result.verdict
    assert len(prepared) == 2


@pytest.mark.parametrize(
    ("work", "check"),
    [
        ("mkdir v1 && echo x > v1/f && ln -s $PWD/v1 current", "grep -q x current/f"),
        (
            "python3 -m venv --without-pip .venv && ln -s bin .venv/scripts && ln -s ../x .venv/out",
            ".venv/scripts/python -c 'pass' && [ -L .venv/scripts ] && [ ! -L .venv/out ]",
        ),
        (
            "mkdir -p a/b && echo x > a/b/f && ln a/b/f hard && chmod 500 a/b",
            "[ hard -ef a/b/f ] && [ ! -w a/b/f ] || true",
        ),
        ("mkdir d && touch d/x && chmod 000 d", "[ -d d ]"),
        (
            "echo x > f && chmod 750 f && touch -d 2001-02-03 f",
            '[ "$(stat -c %a:%Y f)" = "750:$(date -d 2001-02-03 +%s)" ]',
        ),
    ],
)
async def test_links_modes_and_times_of_the_work_survive_sealing(work: str, check: str) -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await done(pool, [[work]], check)
    assert result.reward == 1.0, result.verdict


@pytest.mark.parametrize(
    "odd",
    [
        "mkfifo answer",
        "ln -s answer answer",
        "ln -s /nowhere answer",
        "mkdir -p answer/deep",
        "echo x > answer; chmod 000 answer",
        "mkdir answer; chmod 000 answer",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"answer\")'",
        "ln -s /dev/zero answer",
    ],
)
async def test_what_is_odd_in_the_place_of_a_kept_file_is_the_models_doing(odd: str) -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await done(pool, [[odd]], "grep -q right answer", keep=["answer"])
    assert (result.reward, result.trainable) == (0.0, True), result


@pytest.mark.parametrize(("made", "keep"), [("3M big", None), ("700K a b", ["a", "b"])])
async def test_work_that_is_too_large_is_the_models_doing(made: str, keep: list[str] | None) -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await done(pool, [[f"truncate -s {made}"]], "true", seal_limit_bytes=1 << 20, keep=keep)
    assert (result.solved, result.trainable) == (False, True)
    assert result.verdict is not None
    assert "OutputLimitExceeded" in result.verdict.output


MANY = "for d in $(seq 100); do mkdir $d; (cd $d; seq 300 | xargs touch); done"


async def test_work_that_takes_too_long_is_the_models_doing_and_may_be_called_off() -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await done(pool, [[MANY]], "true", seal_timeout_s=0.2)
        assert (result.reward, result.trainable) == (0.0, True), result
        assert result.verdict is not None
        assert result.verdict.output == "the model's files could not be copied out within 0.2 s"
        more: dict[str, Any] = {"score_in": "slot", "check_files": {"test": "true"}, "seal_timeout_s": 0.01}
        result = await done(pool, [[f"mkdir test; cd test; {MANY}"]], "true", **more)
        assert (result.reward, result.trainable) == (0.0, True), result
        assert result.verdict is not None
        assert result.verdict.output == "the model's files could not be removed within 0.01 s"
        with anyio.move_on_after(1) as called_off:
            await done(pool, [[MANY]], "true")
    assert called_off.cancelled_caught


@pytest.mark.parametrize(
    ("check", "timeout_s", "why"),
    [("echo begun; sleep 60", 5, "longer than 5 s; it printed: begun"), ("kill -9 $$", 60, "was killed")],
)
async def test_a_check_that_comes_to_no_verdict_is_infra(check: str, timeout_s: float, why: str) -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await done(pool, [["true"]], check, timeout_s=timeout_s)
    assert (result.finish, result.cause, result.trainable) == ("infra", ErrorCause.INFRA, False)
    assert (result.solved, result.reward) == (None, None)
    assert result.error is not None
    assert (result.error.kind, why in result.error.message) == ("CheckFailed", True)


async def test_output_of_a_check_keeps_its_beginning_and_its_end() -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await done(pool, [["true"]], "echo begin; seq 100000; echo '1 failed'; exit 1")
    assert result.verdict is not None
    assert result.verdict.output.startswith("begin\n")
    assert result.verdict.output.endswith("1 failed\n")
    assert len(result.verdict.output) < 10_000


@pytest.mark.loops
async def test_a_full_pool_scores_all_of_its_slots() -> None:
    async with SandboxPool("local", slots_per_sandbox=8, acquire_timeout_s=20) as pool:
        results: list[RolloutResult] = []

        async def one() -> None:
            results.append(await done(pool, [["echo x > made"]], "[ -e made ]"))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(16):
                    group.start_soon(one)
        assert pool.stats().slots_quarantined == 0
    assert [result.solved for result in results] == [True] * 16


async def test_a_scorer_of_ones_own_gives_any_reward() -> None:
    async def half(slot: Slot, episode: Episode) -> Verdict:
        lines = (await slot.files.read_text("made")).count("\n")
        return Verdict(lines / 10, solved=False, output=f"{episode.turns} turns")

    rollout = Rollout(messages="go", scoring=Scoring(check=half))
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await rollout.run(pool, PlanModel({"go": [["seq 5 > made"], "done"]}))
    assert (result.reward, result.solved) == (0.5, False)


@pytest.mark.parametrize("score_in", BOTH)
@pytest.mark.parametrize(
    ("work", "kind"),
    [
        ("true", "FileNotFoundError"),
        ("mkdir out", "IsADirectoryError"),
        ("echo > out; chmod 0 out", "PermissionError"),
        ("ln -s out out", "OSError"),
        ("mkfifo out", "OSError"),
        ("printf '\\377' > out", "UnicodeDecodeError"),
        ("echo many > out", "ValueError"),
    ],
)
async def test_check_that_cannot_read_the_work_is_its_authors_error(score_in: ScoreIn, work: str, kind: str) -> None:
    async def check(slot: Slot, episode: Episode) -> Verdict:
        return Verdict(int(await slot.files.read_text("out")), solved=True)

    scoring = Scoring(check=check, score_in=score_in)
    async with SandboxPool("local") as pool:
        result = await Rollout(messages="go", scoring=scoring).run(pool, PlanModel({"go": [[work], "done"]}))
    assert (result.finish, result.reward, result.cause) == ("infra", None, ErrorCause.CONFIG)
    assert result.error is not None
    left_out = score_in == "sealed" and work.startswith(("mkfifo", "ln", "echo >"))
    assert result.error.kind == ("FileNotFoundError" if left_out else kind)
    assert "must return a Verdict, not raise" in result.error.message


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("too long"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        OSError(errno.ENOSPC, "full", "/tmp/a"),
        CheckFailed("killed"),
        RuntimeError("broken"),
    ],
)
async def test_error_of_a_check_that_is_not_about_the_work_is_infra(error: Exception) -> None:
    async def check(slot: Slot, episode: Episode) -> Verdict:
        raise error

    async with SandboxPool("local") as pool:
        result = await Rollout(messages="go", scoring=Scoring(check=check)).run(pool, PlanModel({"go": ["done"]}))
    assert (result.exception, result.reward, result.cause) == (error, None, ErrorCause.INFRA)


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (Verdict(float("nan"), solved=False), "a finite reward: nan is not a finite number"),
        (Verdict(INFINITE, solved=False), "a finite reward: np.float32(-inf) is not a finite number"),
        (Verdict(1.0, solved="no"), "a solved of True or False: 'no' is not a number"),  # type: ignore[arg-type]
        (0.5, "a check returns a Verdict, not 0.5"),
    ],
)
async def test_scorer_without_a_finite_reward_is_its_authors_error(verdict: Any, why: str) -> None:  # noqa: ANN401
    async def check(slot: Slot, episode: Episode) -> Verdict:
        return verdict  # type: ignore[no-any-return]

    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await Rollout(messages="go", scoring=Scoring(check=check)).run(pool, PlanModel({"go": ["done"]}))
    assert (result.finish, result.reward, result.cause) == ("infra", None, ErrorCause.CONFIG)
    assert result.error is not None
    assert result.error.kind == "ConfigError"
    assert why in result.error.message


async def test_scorer_with_scalars_of_numpy_gives_plain_values() -> None:
    async def check(slot: Slot, episode: Episode) -> Verdict:
        reward: Any = np.float32(0.5)
        solved: Any = np.bool_(True)
        return Verdict(reward, solved)

    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await Rollout(messages="go", scoring=Scoring(check=check)).run(pool, PlanModel({"go": ["done"]}))
    assert (result.reward, result.solved) == (0.5, True)
    assert (type(result.reward), type(result.solved)) == (float, bool)


async def test_what_is_not_trainable_is_not_scored() -> None:
    rollout = Rollout(messages="go", scoring=Scoring(check=CommandCheck("true")))
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await rollout.run(pool, ScriptedModel([ModelError("down")]))
    assert (result.finish, result.verdict, result.reward, result.error) == ("model_error", None, None, None)


@pytest.mark.parametrize(
    ("more", "cause", "kind"),
    [
        ({"cwd": "absent"}, ErrorCause.TASK, "NotADirectoryError"),
        ({"files": {"a": Path("/no/such/file")}}, ErrorCause.TASK, "FileNotFoundError"),
        ({"toolsets": ["termnal"]}, ErrorCause.CONFIG, "ConfigError"),
        ({"loop": {"max_turns": 0}}, ErrorCause.CONFIG, "ConfigError"),
        ({"loop": {"deadline_s": "5"}}, ErrorCause.CONFIG, "ConfigError"),
        ({"profile": "absent"}, ErrorCause.CONFIG, "ConfigError"),
    ],
)
async def test_what_keeps_a_rollout_from_beginning(more: dict[str, Any], cause: ErrorCause, kind: str) -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await done(pool, [["true"]], None, **more)
        assert (await done(pool, [["true"]], "true")).solved
    assert (result.cause, result.trainable, result.finish) == (cause, False, "infra")
    assert result.error is not None
    assert result.error.kind == kind


async def test_blocking_pool_and_slot() -> None:
    rollout = Rollout(messages="go", scoring=Scoring(check=CommandCheck("[ -e made ]")))
    model = PlanModel({"go": [["touch made"], "done"]})

    def work() -> list[RolloutResult]:
        with SandboxPool("local", slots_per_sandbox=2) as pool:
            first = rollout.run(pool, model)
            with pool.slot() as slot:
                return [first, rollout.run_in(slot, model)]

    results = await anyio.to_thread.run_sync(work)
    assert [result.reward for result in results] == [1.0, 1.0]


def test_arguments_that_the_loop_does_not_have_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="no 'max_turn'; did you mean 'max_turns'"):
        Rollout(messages="go", loop={"max_turn": 3})


async def test_a_slot_that_is_held_already() -> None:
    rollout = Rollout(messages="go", scoring=Scoring(check=CommandCheck("[ -e made ]")))
    async with SandboxPool("local", slots_per_sandbox=2) as pool, pool.slots(2) as slots:
        model = PlanModel({"go": [["touch made"], "done"]})
        results = [await rollout.run_in(slot, model) for slot in slots]
        assert await slots[0].files.exists("made")
    assert [result.solved for result in results] == [True, True]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"score_in": "seald"}, "'sealed', 'slot', 'fork' or 'live'"),
        ({"keep": "src"}, "a list of paths"),
        ({"keep": ["../src"]}, "not a path inside"),
        ({"keep": ["/src"]}, "not a path inside"),
        ({"keep": ["."]}, "not a path inside"),
        ({"files": {".": Path("checks")}}, "not a path inside"),
        ({"keep": ["src"], "score_in": "slot"}, "no work is copied out"),
        ({"keep": ["src"], "score_in": "live"}, "no work is copied out"),
        ({"files": {"/etc/passwd": "x"}}, "not a path inside"),
    ],
)
def test_settings_of_a_scoring_are_checked(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Scoring(check=CommandCheck("true"), **wrong)


async def test_timings_are_the_seconds_of_each_part_of_a_rollout() -> None:
    async def wait(*_: object) -> None:
        await anyio.sleep(0.1)

    async def answer(_: object) -> Completion:
        await wait()
        return Completion("", (call("terminal", {"command": "sleep 0.1"}),))

    async def check(*_: object) -> Verdict:
        await wait()
        return Verdict(1.0, solved=True)

    async def run(pool: SandboxPool, number: int) -> None:
        rollout = Rollout(messages="go", prepare=wait, toolsets=["terminal"], scoring=Scoring(check=check))
        rollout = dataclasses.replace(rollout, on_stage=stages[number].append)
        results.append(await rollout.run(pool, ScriptedModel([answer, "done"])))

    results: list[RolloutResult] = []
    stages: tuple[list[Stage], list[Stage]] = ([], [])
    async with SandboxPool("local", slots_per_sandbox=1, max_sandboxes=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(run, pool, 0)
        tasks.start_soon(run, pool, 1)
    assert stages[0] == stages[1] == ["queue", "setup", "model", "tools", "model", "model", "check"]
    for result in results:
        timings = dataclasses.asdict(result.timings)
        assert min(timings[name] for name in ("setup_s", "model_s", "tools_s", "check_s")) >= 0.1, timings
        assert sum(timings.values()) <= result.seconds
        assert result.started is not None
        assert result.ended is not None
        assert (result.ended - result.started).total_seconds() >= 0.4
    assert results[1].timings.queue_s >= sum(dataclasses.astuple(results[0].timings)[1:])


async def test_timings_of_a_rollout_that_got_no_slot() -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        pass
    result = await Rollout(messages="go").run(pool, ScriptedModel(["done"]))
    assert (result.episode, result.timings.setup_s, result.timings.check_s) == (None, 0.0, 0.0)
    assert 0 < result.timings.queue_s <= result.seconds
