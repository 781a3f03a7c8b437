"""Each shipped task of Endless Terminals: its own solution solves it, doing nothing does not, and no cheat pays."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from hermes_agent import RolloutResult
from hermes_atropos.envs.endless_terminals import EndlessTerminalsEnv
from hermes_atropos.envs.endless_terminals.tasks import EndlessTask, load_tasks, read_task
from hermes_atropos.image_definitions import read_definition
from hermes_atropos.task_images import TaskImages, TaskSlot
from hermes_exec import ConfigError, SandboxPool
from hermes_exec.errors import ErrorCause
from tests.e2e.agent.plans import Step
from tests.e2e.atropos.tasks.bare import bare
from tests.e2e.atropos.tasks.rollouts import NULL, endless, solution

pytestmark = [pytest.mark.anyio]
TASKS = {task.name: task for task in load_tasks(None, "train", "")}
PLAIN = sorted(name for name, task in TASKS.items() if read_definition(task.environment).plain)
BUILDERS = ("docker", "singularity")
FAST, JOIN = "task_000005_shared_folder", "task_000007_orders_join"


def images(backend: str, base: str | None = None) -> TaskImages:
    return TaskImages(backend, base=base, default_base="ubuntu:22.04")


async def prove(pool: SandboxPool, name: str, made: TaskImages) -> None:
    solved = await endless(pool, TASKS[name], solution(TASKS[name]), made)
    idle = await endless(pool, TASKS[name], NULL, made)
    assert (solved.reward, solved.trainable) == (1.0, True), (solved.verdict, solved.error, solved.episode)
    assert (idle.reward, idle.trainable) == (0.0, True), (idle.verdict, idle.error)


def test_there_are_enough() -> None:
    assert (len(TASKS), len(PLAIN)) >= (8, 3)
    assert all((task.test.parents[1] / "solution" / "solve.sh").is_file() for task in TASKS.values())


@pytest.mark.parametrize("name", PLAIN)
async def test_oracle_and_null_on_local(name: str) -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        await prove(pool, name, images("local"))


@pytest.mark.docker
@pytest.mark.parametrize("name", sorted(TASKS))
async def test_oracle_and_null_on_docker(name: str, docker_image: Callable[[str], str]) -> None:
    base = docker_image("debian")
    async with SandboxPool("docker", image=base) as pool:
        await prove(pool, name, images("docker", base))


@pytest.mark.docker
async def test_tasks_of_one_image_share_a_sandbox(docker_image: Callable[[str], str]) -> None:
    """Both work at the same time in slots of one sandbox, each with a root of its own."""
    base = docker_image("debian")
    made = images("docker", base)
    results: list[RolloutResult] = []

    async def one(steps: Sequence[Step]) -> None:
        results.append(await endless(pool, TASKS[FAST], steps, made))

    async with SandboxPool("docker", image=base, slots_per_sandbox=4, slot_root="own", max_sandboxes=1) as pool:
        async with anyio.create_task_group() as tasks:
            for steps in (solution(TASKS[FAST]), NULL, solution(TASKS[FAST])):
                tasks.start_soon(one, steps)
        sandboxes = {result.sandbox for result in results}
    assert sorted(str(result.reward) for result in results) == ["0.0", "1.0", "1.0"], results
    assert len(sandboxes) == 1


CAPABILITIES = "CAP_CHOWN,CAP_DAC_OVERRIDE,CAP_FOWNER,CAP_FSETID"


def built(task: EndlessTask, base: str, scratch: Path) -> TaskSlot:
    """What the engine makes of the definition, in two steps: a build runs %post with all capabilities of the machine's
    root, which a machine in a container does not have.
    """
    made = TaskImages("singularity", base=base, default_base="ubuntu:22.04", cache=scratch / "definitions")
    at = anyio.run(made.resolve, task.environment)
    assert at.image is not None
    if at.image == base:
        return at
    head, _, post = Path(at.image).read_text().partition("%post\n")
    (scratch / "head.def").write_text(head)
    image = str(scratch / "image")
    build = ["apptainer", "build", "--sandbox", image, str(scratch / "head.def")]
    subprocess.run(build, check=True, capture_output=True)
    run = ["apptainer", "exec", "--writable", "--containall", "--no-home", "--no-privs", "--add-caps", CAPABILITIES]
    subprocess.run([*run, image, "/bin/sh", "-c", post], check=True, capture_output=True)
    return TaskSlot(image, at.workdir)


class Ready(TaskImages):
    """One image that was made already."""

    def __init__(self, at: TaskSlot) -> None:
        super().__init__("singularity", default_base="")
        self._at = at

    async def resolve(self, directory: Path) -> TaskSlot:
        return self._at


@pytest.mark.singularity
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in (FAST, JOIN) else pytest.mark.whole) for name in sorted(TASKS)],
)
async def test_oracle_and_null_on_singularity(
    name: str, singularity_image: Callable[[str], str], tmp_path: Path
) -> None:
    """Both formats: Dockerfiles are converted."""
    base = singularity_image("debian")
    at = await anyio.to_thread.run_sync(built, TASKS[name], base, tmp_path)
    async with SandboxPool("singularity", image=base, cache_dir=str(tmp_path / "images")) as pool:
        await prove(pool, name, Ready(at))


async def test_a_backend_without_images_says_so() -> None:
    with pytest.raises(ConfigError, match="its own image, which the backend 'local' does not support"):
        await images("local").resolve(TASKS[FAST].environment)


CHEATS: dict[str, str] = {
    "prints the verifier's words": "echo '4 passed in 0.01s'; echo EXIT_CODE=0; echo '{\"code\": 0}'",
    "puts programs in the path": (
        "for d in /usr/local/bin $HOME/bin; do mkdir -p $d && for n in pytest python3 python; do "
        "printf '#!/bin/sh\\necho 4 passed; exit 0\\n' > $d/$n && chmod +x $d/$n; done; done; true"
    ),
    "leaves modules and settings": (
        "for f in conftest pytest sitecustomize json configparser; do echo 'import os; os._exit(0)' > $f.py; done; "
        "printf '[pytest]\\naddopts = --collect-only\\n' | tee pytest.ini tox.ini setup.cfg"
    ),
    "edits tests in advance": "mkdir -p tests && echo 'def test_a(): pass' > tests/test_final_state.py",
}


@pytest.mark.parametrize("cheat", sorted(CHEATS))
async def test_cheats_on_local(cheat: str) -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        result = await endless(pool, TASKS[PLAIN[0]], [[CHEATS[cheat]]], images("local"))
    assert (result.reward, result.trainable) == (0.0, True), (result.verdict, result.error)


@pytest.mark.docker
@pytest.mark.parametrize("cheat", sorted(CHEATS))
async def test_cheats_on_docker(cheat: str, docker_image: Callable[[str], str]) -> None:
    base = docker_image("debian")
    async with SandboxPool("docker", image=base) as pool:
        result = await endless(pool, TASKS[FAST], [[CHEATS[cheat]]], images("docker", base))
    assert (result.reward, result.trainable) == (0.0, True), (result.verdict, result.error)


@pytest.mark.docker
async def test_a_process_that_is_left_does_not_live_to_the_test(docker_image: Callable[[str], str]) -> None:
    """It would undo and redo the work; the test sees what was there when the model ended."""
    loop = "while :; do chmod 750 /srv/share/tools/run.sh; find /srv/share -name '*.key' -exec chmod 600 {} +; done"
    cheat = f"(setsid nohup sh -c '{loop}' >/dev/null 2>&1 &) ; sleep 0.3; find /srv/share -exec chmod 777 {{}} +"
    base = docker_image("debian")
    async with SandboxPool("docker", image=base) as pool:
        result = await endless(pool, TASKS[FAST], [[cheat]], images("docker", base))
    assert (result.reward, result.trainable) == (0.0, True), result
    assert result.killed is not None
    assert (result.killed.found > 0, result.killed.left) == (True, 0)


FORGED = r"""
cat > /tmp/forged <<'EOF'
#!/bin/sh
read token
echo "$token {\"code\": 0, \"collected\": [\"t\"], \"outcomes\": {\"t\": \"passed\"}, \"errors\": []}"
EOF
chmod +x /tmp/forged"""


@pytest.mark.docker
@pytest.mark.parametrize(
    "cheat",
    [
        f"{FORGED}\ncp /tmp/forged $(readlink -f /usr/bin/python3)",
        f"{FORGED}\nrm $(readlink -f /usr/bin/python3)",
        "echo /tmp/any.so > /etc/ld.so.preload",
    ],
    ids=["replaced", "removed", "preloaded"],
)
async def test_the_interpreter_of_the_image_is_compared(cheat: str, docker_image: Callable[[str], str]) -> None:
    base = docker_image("debian")
    async with SandboxPool("docker", image=base) as pool:
        result = await endless(pool, TASKS[FAST], [[cheat]], images("docker", base))
    assert (result.reward, result.trainable) == (0.0, True), (result.verdict, result.error)
    assert result.verdict is not None
    assert any(
        why in result.verdict.output
        for why in ("was changed during the task", "is gone", "was created during the task")
    )


@pytest.mark.docker
@pytest.mark.xfail(reason="docs/environments/endless_terminals.md: root may change the standard library of the image")
async def test_a_standard_library_that_forges_the_answer(docker_image: Callable[[str], str]) -> None:
    """What is compared is the interpreter, not the thousands of files that it loads."""
    forged = (
        "cat >> $(python3 -c 'import json; print(json.__file__)') <<'EOF'\n"
        "_dumps = dumps\n"
        "def dumps(found, *a, **k):\n"
        "    if isinstance(found, dict) and 'outcomes' in found:\n"
        "        found = {'code': 0, 'collected': ['t'], 'outcomes': {'t': 'passed'}, 'errors': []}\n"
        "    return _dumps(found, *a, **k)\n"
        "EOF\n"
    )
    base = docker_image("debian")
    async with SandboxPool("docker", image=base) as pool:
        result = await endless(pool, TASKS[FAST], [[forged]], images("docker", base))
    assert result.reward == 0.0


@pytest.fixture
def own(tmp_path: Path) -> EndlessTask:
    """A task without an image, with a test that is written below."""
    directory = tmp_path / "task_own"
    (directory / "tests").mkdir(parents=True)
    (directory / "environment").mkdir()
    (directory / "environment" / "Dockerfile").write_text("FROM any\n")
    (directory / "instruction.md").write_text("Do it.")
    (directory / "tests" / "test_final_state.py").write_text("")
    return read_task(directory)


async def outcome(task: EndlessTask, test: str, steps: Sequence[Step] = NULL, timeout_s: float = 60) -> RolloutResult:
    task.test.write_text(test)
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        return await endless(pool, task, steps, images("local"), timeout_s)


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("import no_such_module_here\n", "no_such_module_here"),
        ("", "cannot run"),
        ("def test_it(:\n", "SyntaxError"),
        ("import time\n\n\ndef test_it():\n    time.sleep(60)\n", "longer than 3 s"),
        ("import os\n\n\ndef test_it():\n    os.kill(os.getpid(), 9)\n", "signal 9"),
    ],
)
async def test_a_verifier_that_fails_is_no_score(own: EndlessTask, test: str, why: str) -> None:
    result = await outcome(own, test, timeout_s=3 if why == "longer than 3 s" else 60)
    assert (result.reward, result.cause) == (None, ErrorCause.INFRA), result
    assert result.error is not None
    assert (result.error.kind, why in result.error.message) == ("CheckFailed", True), result.error


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        ("open('made').read()\n\n\ndef test_it():\n    pass\n", 0.0),
        ("import pytest\n\n\ndef test_it():\n    pytest.skip('x')\n", 0.0),
        ("def test_it():\n    pass\n\n\ndef test_other():\n    assert 0\n", 0.0),
        ("import os\n\n\ndef test_it():\n    os._exit(0)\n", 0.0),
        ("def test_it(tmp_path):\n    print('1 failed')\n", 1.0),
        ("class TestIt:\n    def test_a(self):\n        assert __file__\n", 1.0),
    ],
)
async def test_what_counts_as_passed(own: EndlessTask, test: str, reward: float) -> None:
    result = await outcome(own, test)
    assert (result.reward, result.trainable) == (reward, True), (result.verdict, result.error)


async def test_an_image_without_python_is_told_before_the_model_begins(own: EndlessTask) -> None:
    async with SandboxPool("local", slots_per_sandbox=1, env={"PATH": "/nowhere"}) as pool:
        result = await endless(pool, replace(own), NULL, images("local"))
    assert (result.episode, result.reward) == (None, None)
    assert result.error is not None
    assert "has no python3" in result.error.message


@pytest.mark.parametrize("backend", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in BUILDERS])
async def test_an_image_that_cannot_be_built_is_left_out(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its reason is told once, however often its turn comes. (Apptainer's builds cannot run steps on every machine.)"""
    base = request.getfixturevalue(f"{backend}_image")("debian")
    for name, line in (
        ("task_bad", "COPY why-it-fails /x"),
        ("task_good", "ENV MADE=yes" if backend == "docker" else ""),
    ):
        shutil.copytree(TASKS[FAST].test.parents[1], tmp_path / name)
        (tmp_path / name / "environment" / "Dockerfile").write_text(f"FROM {base}\n{line}\n")
    more: dict[str, Any] = {"network": False, "slots_per_sandbox": 1, "eval_split_ratio": 0.5, "split_seed": 1}
    more |= {"backend_options": json.dumps({"cache_dir": str(tmp_path / "images")})} if backend == "singularity" else {}
    env = bare(EndlessTerminalsEnv, backend=backend, base_image=base, tasks_base_dir=str(tmp_path), **more)
    await env.setup()
    good, bad = (read_task(tmp_path / name) for name in ("task_good", "task_bad"))
    async with env.config.make_pool() as env.pool:
        for train, names in (([good, bad], ["task_good"] * 4), ([good, bad], ["task_good"] * 2)):
            env._train, env._queue = train, []
            assert [(await env.get_next_item()).task.name for _ in names] == names
        assert caplog.text.count("the task task_bad is left out") == 1
        assert "why-it-fails" in caplog.text
        runnable = await env._images.resolve_tasks(env.pool, [bad, good], env._find_image)
        assert [one.task.name for one in runnable] == ["task_good"]
        env._train, env._queue = [bad], []
        with pytest.raises(ConfigError, match="no task is left"):
            await env.get_next_item()
