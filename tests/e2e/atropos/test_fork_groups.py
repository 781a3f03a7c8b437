"""Groups in forks of one slot: one set-up for each group, and none of its failures is a reward."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import Episode
from hermes_atropos import EnvironmentStopped, ExecTool, SandboxAgentEnv, SandboxSpec
from hermes_exec import ConfigError
from tests.e2e.atropos.inference_server import PolicyServer, call, load, make_env, process, serving

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
WORK = call("terminal", command="cat data >> work && echo mine >> work && echo spoilt > /etc/tool")
CHECK = "cat work && cat /etc/tool && wc -l < set-ups"


def policy(prompt: str) -> str:
    return "done" if "<|im_start|>tool" in prompt else WORK


class Prepared(SandboxAgentEnv[int]):
    """The set-up writes into the working directory and outside of it; the check counts the set-ups of its slot."""

    name = "prepared"
    spec = SandboxSpec(keep=["work"])

    async def setup(self) -> None:
        self.items = itertools.count()
        self.set_ups: list[str] = []
        self.scored: Counter[str] = Counter()

    async def get_next_item(self) -> int:
        return next(self.items)

    def format_prompt(self, item: int) -> str:
        return f"work ({item})"

    def sandbox_spec(self, item: int) -> SandboxSpec:
        return self.spec

    async def setup_trajectory_workspace(
        self, item: int, *, trajectory_id: str, exec_tool: ExecTool
    ) -> Mapping[str, Any] | None:
        self.set_ups.append(trajectory_id)
        command = f"echo data-{item} > data && echo tool > /etc/tool && echo {trajectory_id} >> set-ups"
        assert (await exec_tool("bash", {"command": command})).success
        return {"item": item, "seen": []}

    async def verify_and_score_trajectory(
        self,
        item: int,
        result: Episode,
        *,
        trajectory_id: str,
        exec_tool: ExecTool,
        workspace_meta: Mapping[str, Any],
    ) -> tuple[float, Mapping[str, Any]]:
        self.scored[trajectory_id] += 1
        workspace_meta["seen"].append(trajectory_id)
        assert workspace_meta == {"item": item, "seen": [trajectory_id]}, "the copy of another rollout"
        output = (await exec_tool("bash", {"command": CHECK})).output
        return float(output.split() == [f"data-{item}", "mine", "tool", "1"]), {}


@pytest.fixture
def make(docker_image: Image, tokenizer: Path, tmp_path: Path) -> Callable[..., Any]:
    def made(kind: type[Any], url: str, **settings: Any) -> Any:  # noqa: ANN401
        given = {"slots_per_sandbox": 4, "max_sandboxes": 1, "group_size": 4, "fork_groups": True, **settings}
        return make_env(
            kind, tokenizer, url, backend="docker", image=docker_image("debian"), network=False,
            data_path_to_save_groups=str(tmp_path / "groups.jsonl"), **given,
        )  # fmt: skip

    return made


@pytest.fixture
def server(tokenizer: Path) -> Any:  # noqa: ANN401
    with serving(PolicyServer(load(tokenizer), policy)) as running:
        yield running


@pytest.mark.parametrize("keep", [["work"], None], ids=["keep", "whole"])
async def test_group_is_set_up_once_and_its_rollouts_are_apart(make: Any, server: PolicyServer, keep: Any) -> None:  # noqa: ANN401
    class Env(Prepared):
        spec = SandboxSpec(keep=keep)

    env = make(Env, server.url)
    groups = await process(env, 2)
    assert [group["scores"] for group in groups] == [[1.0] * 4] * 2
    assert len(env.set_ups) == len(set(env.set_ups)) == 2
    assert len(env.scored) == 8
    assert set(env.scored.values()) == {1}, "each rollout has an id of its own"
    assert not set(env.scored) & set(env.set_ups)
    assert len(server.bodies) == 2 * 4 * 2


async def test_group_may_fork_into_several_sandboxes(make: Any, server: PolicyServer) -> None:  # noqa: ANN401
    env = make(Prepared, server.url, slots_per_sandbox=2, max_sandboxes=2)
    groups = await process(env, 1)
    assert groups[0]["scores"] == [1.0] * 4
    assert len(env.set_ups) == 1


async def test_rollout_that_runs_again_forks_again(make: Any, server: PolicyServer) -> None:  # noqa: ANN401
    class Env(Prepared):
        fails = itertools.count(1)

        async def verify_and_score_trajectory(self, *args: Any, **kwargs: Any) -> tuple[float, Mapping[str, Any]]:
            if next(self.fails) % 3 == 0:
                raise RuntimeError("the verifier broke")
            return await super().verify_and_score_trajectory(*args, **kwargs)

    env = make(Env, server.url)
    groups = await process(env, 1)
    assert groups[0]["scores"] == [1.0] * 4
    assert len(env.set_ups) == 1
    assert next(env.fails) - 1 == 5, "one check failed"


@pytest.mark.parametrize("when", ["set-up", "check"])
async def test_sandbox_that_ends_costs_another_set_up(make: Any, server: PolicyServer, when: str) -> None:  # noqa: ANN401
    ended = threading.Event()

    class Env(Prepared):
        async def end_once(self, exec_tool: Any) -> None:  # noqa: ANN401
            if not ended.is_set():
                ended.set()
                await anyio.run_process(["docker", "kill", exec_tool.__self__.slot.sandbox])

        async def setup_trajectory_workspace(self, *args: Any, **kwargs: Any) -> Mapping[str, Any] | None:
            facts = await super().setup_trajectory_workspace(*args, **kwargs)
            if when == "set-up":
                await self.end_once(kwargs["exec_tool"])
            return facts

        async def verify_and_score_trajectory(self, *args: Any, **kwargs: Any) -> tuple[float, Mapping[str, Any]]:
            if when == "check":
                await self.end_once(kwargs["exec_tool"])
            return await super().verify_and_score_trajectory(*args, **kwargs)

    env = make(Env, server.url)
    groups = await process(env, 1)
    assert groups[0]["scores"] == [1.0] * 4
    assert len(env.set_ups) == 2


class Fails(Prepared):
    async def setup_trajectory_workspace(self, *args: Any, **kwargs: Any) -> Mapping[str, Any] | None:
        await super().setup_trajectory_workspace(*args, **kwargs)
        raise OSError("no such dataset")


class Serves(Prepared):
    async def setup_trajectory_workspace(
        self, item: int, *, trajectory_id: str, exec_tool: ExecTool
    ) -> Mapping[str, Any] | None:
        await exec_tool("bash", {"command": "sleep 1000 > /dev/null 2>&1 &"})
        return None


class Uncopied(Prepared):
    async def setup_trajectory_workspace(self, *args: Any, **kwargs: Any) -> Mapping[str, Any] | None:
        return {"lock": threading.Lock()}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Fails, "no such dataset"),
        (Serves, "the set-up leaves a process running, which forks would not have: .*sleep 1000"),
        (Uncopied, "a value that cannot be copied for each rollout of its group"),
    ],
)
async def test_failed_set_up_fails_the_group_without_a_reward(
    make: Any,  # noqa: ANN401
    server: PolicyServer,
    kind: type[Prepared],
    message: str,
    tmp_path: Path,
) -> None:
    env = make(kind, server.url, max_failed_groups=2)
    with pytest.raises(EnvironmentStopped, match=message):
        await process(env, 2)
    assert not (tmp_path / "groups.jsonl").exists()
    assert server.bodies == [], "the model worked in vain"
    assert not env.scored


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots_per_sandbox": 1, "max_sandboxes": 4}, "fork_groups: a checkpoint .* set slot_root='own'"),
        ({"group_size": 5}, "a group of 5 needs 5 slots, but the pool has at most 4: set max_sandboxes"),
    ],
)
async def test_groups_without_forks_or_slots_are_refused_at_the_start(
    make: Any,  # noqa: ANN401
    server: PolicyServer,
    settings: dict[str, Any],
    message: str,
) -> None:
    env = make(Prepared, server.url, **settings)
    with pytest.raises(ConfigError, match=message):
        await process(env, 1)
    assert not hasattr(env, "set_ups") or not env.set_ups
