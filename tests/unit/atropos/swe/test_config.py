"""What the settings of the environment choose."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from pydantic import ValidationError

from hermes_atropos.envs.swe_smith_oracle import ENV, SweSmithOracleConfig, SweSmithOracleEnv
from hermes_atropos.envs.swe_smith_oracle.env import choose_instances, iterate_instances, select_tests
from hermes_atropos.envs.swe_smith_oracle.instance import Instance
from hermes_atropos.envs.swe_smith_oracle.workspace import problem_text
from hermes_exec.errors import ConfigError

ONE = Instance("0", "o/r", "0123abc", "problem", ("t.py::test_a",), ("t.py::test_b",), text="text")
MANY = [replace(ONE, instance_id=str(n)) for n in range(20)]


def ids(instances: list[Instance]) -> list[str]:
    return [one.instance_id for one in instances]


def test_the_class_is_exported() -> None:
    assert ENV is SweSmithOracleEnv
    assert ENV.name == "swe_smith_oracle"


def test_slots_have_no_network_unless_it_is_asked_for() -> None:
    """The packages of its instances are public."""
    assert not SweSmithOracleConfig(backend="docker").slots_network
    assert SweSmithOracleConfig(backend="docker", network=True).slots_network


@pytest.mark.anyio
async def test_wheels_that_slots_download_need_a_network() -> None:
    env = object.__new__(SweSmithOracleEnv)
    env.config = SweSmithOracleConfig(wheels="online")
    with pytest.raises(ConfigError, match=r"--env.wheels offline, or --env.network true"):
        await env.setup()


def test_as_many_as_are_asked_for_by_the_seed() -> None:
    assert ids(choose_instances(MANY, SweSmithOracleConfig())) == ids(MANY)
    assert ids(choose_instances(MANY, SweSmithOracleConfig(max_items=3, shuffle=False))) == ["0", "1", "2"]
    some = [ids(choose_instances(MANY, SweSmithOracleConfig(max_items=3, seed=seed))) for seed in (1, 1, 2)]
    assert some[0] == some[1] != some[2]


def test_instances_of_other_languages_are_left_out() -> None:
    other = replace(ONE, instance_id="js", pass_to_pass=("t.test.js",))
    assert ids(choose_instances([other, ONE], SweSmithOracleConfig())) == ["0"]
    assert len(choose_instances([other, ONE], SweSmithOracleConfig(python_only=False))) == 2
    with pytest.raises(ConfigError, match="python_only"):
        choose_instances([other], SweSmithOracleConfig())


def test_each_epoch_has_all_in_another_order() -> None:
    drawn = ids(list(islice(iterate_instances(MANY, SweSmithOracleConfig()), 40)))
    assert sorted(drawn[:20]) == sorted(drawn[20:]) == sorted(ids(MANY))
    assert drawn[:20] != drawn[20:]
    assert ids(list(islice(iterate_instances(MANY, SweSmithOracleConfig(shuffle=False)), 21))) == [*ids(MANY), "0"]


def test_what_is_demanded_and_shown() -> None:
    assert select_tests(ONE, SweSmithOracleConfig()) == ("t.py::test_a", "t.py::test_b")
    assert select_tests(ONE, SweSmithOracleConfig(score_include_fail_to_pass=False)) == ("t.py::test_b",)
    assert problem_text(ONE, "problem_statement") == "problem"
    assert problem_text(ONE, "problem_statement+text") == "problem\n\ntext"


def test_settings_are_those_of_the_flat_fields(tmp_path: Path) -> None:
    config = SweSmithOracleConfig(
        repo_cache_dir=str(tmp_path),
        test_requirements="pytest; hypothesis>=6",
        test_arguments="-p 'a b'",
        wheels="online",
    )
    settings = config.settings()
    assert (settings.cache, settings.wheels) == (tmp_path, "online")
    assert (settings.test_requirements, settings.test_arguments) == (("pytest", "hypothesis>=6"), ("-p", "a b"))
    with pytest.raises(ValidationError, match="wheels"):
        SweSmithOracleConfig(wheels="sometimes")
