"""The environments' own hooks: what they load, and which slot they ask for."""

from __future__ import annotations

import pytest

from hermes_atropos.envs.endless_terminals import EndlessTerminalsEnv
from hermes_atropos.envs.gsm8k_agent import Gsm8kAgentEnv
from hermes_atropos.envs.hermes_swe import HermesSweEnv
from hermes_atropos.envs.tblite import TBLiteEnv
from hermes_atropos.envs.terminalbench_2 import TerminalBench2Env
from hermes_exec import ConfigError
from tests.e2e.atropos.tasks.bare import bare

pytestmark = pytest.mark.anyio


async def test_endless_terminals_leaves_out_what_the_backend_cannot_have(caplog: pytest.LogCaptureFixture) -> None:
    names = []
    for _ in range(2):
        env = bare(EndlessTerminalsEnv, backend="local", network=False, use_dataset=False, eval_split_ratio=0)
        env.pool = env.config.make_pool()
        await env.setup()
        names.append([(await env.get_next_item()).task.name for _ in range(6)])
    assert names[0] == names[1]
    assert len(set(names[0][:3])) == len(set(names[0][3:])) == 3
    assert "leaving out 6 of 9 tasks" in caplog.text


async def test_endless_terminals_asks_for_the_machine_to_be_scored() -> None:
    env = bare(EndlessTerminalsEnv, backend="local", network=False, use_dataset=False)
    env.pool = env.config.make_pool()
    await env.setup()
    spec = env.sandbox_spec(await env.get_next_item())
    assert (spec.image, spec.workdir, spec.score_in, dict(spec.files), dict(spec.check_files)) == (
        None, None, "slot", {}, {},
    )  # fmt: skip


@pytest.mark.parametrize("kind", [EndlessTerminalsEnv, TerminalBench2Env])
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"backend": "docker", "slots_per_sandbox": 2}, "network false, or slots_per_sandbox 1"),
        ({"backend": "singularity", "slots_per_sandbox": 1, "network": True}, "set --env.network false"),
        ({"backend": "singularity", "slots_per_sandbox": 1}, None),
        ({"backend": "docker"}, None),
        ({"backend": "docker", "slots_per_sandbox": 2, "network": False}, None),
        ({"backend": "singularity", "network": False}, None),
    ],
)
async def test_slots_that_share_ports_are_refused(
    kind: type[EndlessTerminalsEnv | TerminalBench2Env], options: dict[str, object], why: str | None
) -> None:
    shipped = {"use_dataset": False} if kind is EndlessTerminalsEnv else {"dataset_name": "shipped"}
    env = bare(kind, **shipped, **options)
    if why is None:
        await env.setup()
    else:
        with pytest.raises(ConfigError, match=why):
            await env.setup()


@pytest.mark.parametrize("kind", [TerminalBench2Env, TBLiteEnv])
async def test_terminalbench_chooses_tasks(kind: type[TerminalBench2Env]) -> None:
    wanted = {"task_filter": "roman-numerals, roll-back-release", "skip_tasks": "roman-numerals"}
    env = bare(kind, backend="docker", dataset_name="shipped", **wanted)
    await env.setup()
    assert [task.name for task in env._tasks] == ["roll-back-release"]
    for options, why in (
        ({"task_filter": "roman"}, "unknown task roman"),
        ({"task_filter": "roman-numerals", "skip_tasks": "roman-numerals"}, "leave no task"),
        ({"backend": "local"}, "needs images"),
    ):
        with pytest.raises(ConfigError, match=why):
            await bare(kind, **{"backend": "docker", "dataset_name": "shipped", **options}).setup()


def test_tblite_is_terminalbench_with_another_data_set() -> None:
    config = TBLiteEnv.env_config_cls()
    assert (config.dataset_name, config.task_timeout, config.test_timeout) == (
        "NousResearch/openthoughts-tblite", 1200, 180,
    )  # fmt: skip


async def test_small_environments_have_their_own_sets() -> None:
    for kind, split in ((HermesSweEnv, "test"), (Gsm8kAgentEnv, "train")):
        env = bare(kind, dataset_name="shipped", dataset_split=split)
        await env.setup()
        item = await env.get_next_item()
        assert item is not None
        assert len(str(env.format_prompt(item))) > 50
