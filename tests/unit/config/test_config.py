"""Configuration: what is wrong is said in one sentence, before anything is started."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.config import (
    BackendConfig,
    Limits,
    PoolConfig,
    nearest,
    pool_schema,
    read_config,
    resolve_config,
    with_profile,
)
from hermes_exec.errors import ConfigError, ErrorCause

TYPES: dict[str, type[BackendConfig]] = {"local": LocalConfig, "docker": DockerConfig}


def test_defaults_are_those_of_the_public_face() -> None:
    pool = PoolConfig()
    assert (pool.backend, pool.min_sandboxes, pool.max_sandboxes, pool.min_isolation) == ("local", 0, None, None)
    assert (pool.acquire_timeout_s, pool.launch_timeout_s, pool.pull_timeout_s) == (300.0, 120.0, 600.0)
    assert (pool.shutdown_timeout_s, pool.lease_s, pool.idle_timeout_s, pool.max_lifetime_s) == (
        30.0,
        60.0,
        120.0,
        None,
    )
    assert pool.limits == Limits()
    assert pool.network


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"imge": "x"}, "did you mean 'image'?"),
        ({"lease": 3}, "did you mean 'lease_s'?"),
        ({"shm_size": 3}, "did you mean 'shm_size_mb'?"),
        ({"backend_options": {"capdrop": ["ALL"]}}, "did you mean 'cap_drop'?"),
        ({"imge": "x", "lease": 3}, "did you mean 'image'?\nthere is no option 'lease'"),
        ({"slots_per_sandbox": 0}, "slots_per_sandbox"),
        ({"slots_per_sandbox": 99_999_999}, "slots_per_sandbox"),
        ({"profiles": {"p": {"slots_per_sandbox": 10_001}}}, "slots_per_sandbox"),
        ({"acquire_timeout_s": -1}, "acquire_timeout_s"),
        ({"acquire_timeout_s": math.nan}, "acquire_timeout_s"),
        ({"min_isolation": "vm"}, "min_isolation"),
        ({"limits": {"memory": 3}}, "memory"),
        ({"limits": {"memory_mb": "lots"}}, "limits.memory_mb"),
        ({"limits": {"cpus": 0}}, "limits.cpus"),
        ({"min_sandboxes": 3, "max_sandboxes": 2}, "min_sandboxes 3 is above max_sandboxes 2"),
        ({"env": {"A=B": "x"}}, "'A=B'"),
        ({"env": {"A": "x\0"}}, "NUL"),
        ({"profiles": {"p": {"image": 3}}}, "profiles.p.image"),
        ({"pull_policy": "sometimes"}, "pull_policy"),
        ({"volumes": ["/x"]}, "'/x'"),
        ({"labels": {"hermes-exec.run": "x"}}, "own"),
        ({"run_id": "a b"}, "run_id"),
        ({"hostname": "h\udcff"}, "hostname: 'h\\udcff' is not valid Unicode"),
        ({"labels": {"\ud800": "x"}}, "labels: '\\ud800' is not valid Unicode"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_config({"backend": "docker", **values}, DockerConfig)
    assert said in str(caught.value)
    assert caught.value.cause is ErrorCause.CONFIG
    assert isinstance(caught.value, ValueError)


def test_objects_refuse_the_same() -> None:
    with pytest.raises(ConfigError, match="did you mean 'memory_mb'"):
        Limits(memory=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="did you mean 'security_opt'"):
        DockerConfig(security_opts=("x",))  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="absolute"):
        LocalConfig(readonly_paths=("relative",))


def test_secrets_are_never_shown() -> None:
    pool = PoolConfig.of({"secrets": {"TOKEN": "hush-hush"}})
    assert "hush" not in repr(pool)
    assert pool.secrets["TOKEN"].get_secret_value() == "hush-hush"
    with pytest.raises(ConfigError) as caught:
        PoolConfig.of({"secrets": {"TOKEN": ["hush-hush"]}})
    assert "hush" not in str(caught.value)


def test_options_go_to_the_pool_and_to_the_backend() -> None:
    pool, backend = resolve_config(
        {"backend": "docker", "image": "x", "network": False, "shm_size_mb": 64}, DockerConfig
    )
    assert (pool.image, pool.network) == ("x", False)
    assert isinstance(backend, DockerConfig)
    assert (backend.image, backend.shm_size_mb) == (None, 64)


def test_none_is_the_default() -> None:
    pool = PoolConfig.of({"profiles": None, "env": None, "setup": None, "limits": None})
    assert (pool.profiles, pool.env, pool.setup, pool.limits) == ({}, {}, (), Limits())


@pytest.mark.parametrize("checked", [False, True])
def test_profile_over_pool(checked: bool) -> None:
    given = {
        "image": "a",
        "env": {"A": "1", "B": "1"},
        "max_lifetime_s": 9.0,
        "profiles": {"p": {"image": "b", "env": {"B": "2"}, "network": False, "max_lifetime_s": None}},
    }
    values = dict(PoolConfig.of(given)) if checked else given
    mine = with_profile(values, "p")
    mine.pop("backend_options", None)
    pool = PoolConfig.of(mine)
    assert (pool.image, pool.env, pool.network, pool.lease_s) == ("b", {"A": "1", "B": "2"}, False, 60.0)
    assert pool.max_lifetime_s == 9.0
    with pytest.raises(ConfigError, match="did you mean 'p'"):
        with_profile(values, "P")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "backend: docker\nimage: x\nlimits:\n  cpus: 0.5\n"),
        ("c.toml", 'backend = "docker"\nimage = "x"\n[limits]\ncpus = 0.5\n'),
        ("c.json", '{"backend": "docker", "image": "x", "limits": {"cpus": 0.5}}'),
    ],
)
def test_files(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    values = read_config(path)
    jsonschema.validate(values, pool_schema(TYPES))
    pool, _ = resolve_config(values, DockerConfig)
    assert (pool.image, pool.limits.cpus) == ("x", 0.5)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.ini", "", "ends with"),
        ("c.yaml", "a: [", "c.yaml"),
        ("c.json", "[1]", "mapping"),
        ("c.toml", "a =", "c.toml"),
        ("c.yaml", "1: 2", "mapping"),
        ("c.json", "[" * 100_000, "nested too deeply"),
        ("c.yaml", "[" * 2_000, "nested too deeply"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_config(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "absent.yaml")


def test_schema_refuses_what_the_models_refuse() -> None:
    schema = pool_schema(TYPES)
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)
    checker = jsonschema.Draft202012Validator(schema)
    assert checker.is_valid({"backend": "docker", "shm_size_mb": 3, "image": "x"})
    assert checker.is_valid({"readonly_paths": ["/opt"]})
    assert not checker.is_valid({"backend": "local", "shm_size_mb": 3})
    assert not checker.is_valid({"backend": "docker", "imge": "x"})
    assert not checker.is_valid({"limits": {"memory": 3}})


def test_nearest() -> None:
    assert nearest("dokcer", ["docker", "local"]) == "did you mean 'docker'?"
    assert nearest("zzz", ["docker", "local"]) == "valid names are docker, local"
