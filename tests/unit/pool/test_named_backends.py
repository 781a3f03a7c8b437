"""Several backends in one configuration: which one is taken, what counts more, and what is said of a wrong one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest

from hermes_exec import BackendUnavailable, ConfigError, SandboxPool
from hermes_exec.backends.base import Backend, ReapedSandbox
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.registry import config_types
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.known_backends import BackendSelection, ask_each, code_of_all, select_backends
from hermes_exec.cli.kit.pools import settings_of
from hermes_exec.config import pool_schema
from hermes_exec.pool.backend_entries import with_backend

FILE: dict[str, Any] = {
    "max_sandboxes": 3,
    "env": {"A": "pool", "B": "pool"},
    "limits": {"memory_mb": 64},
    "profiles": {"small": {"network": False}},
    "backends": {
        "here": {"type": "local", "base_dir": "/tmp", "env": {"B": "here"}, "limits": None},
        "sandboxes": {"type": "docker", "image": "x", "slots_per_sandbox": 8, "backend_options": {"shm_size_mb": 16}},
        "again": {"type": "docker", "image": "y", "profiles": {"big": {"backend_options": {"shm_size_mb": 64}}}},
        "gpu": {"type": "ssh", "hosts": ["a", "b"]},
    },
}


def test_an_entry_counts_more_than_what_stands_beside() -> None:
    pool = SandboxPool.from_config(FILE, backend="sandboxes")
    assert (pool.config.backend, pool.config.image, pool.config.slots_per_sandbox) == ("docker", "x", 8)
    assert (pool.config.max_sandboxes, pool.config.limits.memory_mb) == (3, 64)
    (config,) = pool._templates.backend_configs
    assert isinstance(config, DockerConfig)
    assert config.shm_size_mb == 16
    assert set(SandboxPool.from_config(FILE, backend="again").config.profiles) == {"small", "big"}


def test_the_names_of_mappings_are_joined_and_null_is_a_value() -> None:
    config = SandboxPool.from_config(FILE, backend="here").config
    assert config.env == {"A": "pool", "B": "here"}
    assert config.limits.memory_mb is None
    assert SandboxPool.from_config(FILE, backend="here", profile="small", env={"C": "call"}).config.env == {"C": "call"}
    assert not SandboxPool.from_config(FILE, backend="here", profile="small").config.network


def test_the_setting_backend_says_which_is_taken_by_itself() -> None:
    assert SandboxPool.from_config({**FILE, "backend": "gpu", "limits": {}}).config.backend == "ssh"
    assert SandboxPool.from_config({**FILE, "backend": "gpu"}, backend="here").config.backend == "local"


def test_types_and_objects_can_be_asked_for_beside_the_names() -> None:
    pool = SandboxPool.from_config({**FILE, "limits": {}}, backend="local")
    assert (pool.config.backend, pool.config.env) == ("local", {"A": "pool", "B": "pool"})
    assert SandboxPool.from_config({**FILE, "limits": {}}, backend=LocalConfig()).config.backend == "local"


def test_without_the_section_it_is_as_if_the_backend_stood_in_the_file() -> None:
    assert SandboxPool.from_config({"image": "x"}, backend="docker").config.backend == "docker"
    assert with_backend({"image": "x"}) == {"image": "x"}
    assert with_backend({"backends": {}, "backend": "docker"}) == {"backend": "docker"}


@pytest.mark.parametrize(
    ("values", "name", "said"),
    [
        ({}, None, "several backends here, choose one: .*one of here, sandboxes, again, gpu"),
        ({}, "sandboxs", "no backend 'sandboxs'; did you mean 'sandboxes'"),
        ({}, "dokcer", "no backend 'dokcer'; did you mean 'docker'"),
        ({"backend": "her"}, None, "no backend 'her'; did you mean 'here'"),
        ({"lease": 3}, "here", "no option 'lease'; did you mean 'lease_s'"),
        ({"shm_size_mb": 3}, "sandboxes", "shm_size_mb belongs to a backend: move it into an entry of backends"),
        ({"backend_options": {}}, "sandboxes", "backend_options belongs to a backend"),
        ({"backends": ["a"]}, None, "backends is a mapping of names"),
        ({"backends": {1: {"type": "local"}}}, None, "backends is a mapping of names"),
        ({"backends": {"a": "local"}}, "a", "backends.a: an entry is a mapping with `type`"),
        ({"backends": {"a": {"image": "x"}}}, "a", "backends.a: `type` names the backend type, one of docker, local"),
        ({"backends": {"a": {"type": "local", "backend": "b"}}}, "a", "backends.a: `type` names the backend"),
        ({"backends": {"a": {"type": "dokcer"}}}, "a", "backends.a: there is no backend 'dokcer'; did you mean 'docke"),
        ({"backends": {"a": {"type": "ssh", "hosst": "x"}}}, "a", "backends.a: .*'hosst'.*did you mean 'hosts'"),
        ({"backends": {"a": {"type": "ssh"}}}, "a", "backends.a: hosts: field required"),
        ({"backends": {"a": {"type": "local", "lease_s": -1}}}, "a", "backends.a: lease_s: "),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], name: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SandboxPool.from_config({**FILE, **values}, backend=name)


def test_every_line_about_an_entry_names_it() -> None:
    wrong = {"backends": {"a": {"type": "docker", "image": "x", "imge": "y", "shm_size_mb": -1}}}
    with pytest.raises(ConfigError) as caught:
        with_backend(wrong, "a")
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("backends.a: ") for line in lines)


def test_the_variables_of_the_environment_count_more_than_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path)
    for name, value in {"CONFIG": str(file), "BACKEND": "sandboxes", "IMAGE": "z", "SHM_SIZE_MB": "24"}.items():
        monkeypatch.setenv(f"HERMES_EXEC_{name}", value)
    pool = SandboxPool.from_env()
    assert (pool.config.backend, pool.config.image, pool.config.slots_per_sandbox) == ("docker", "z", 8)
    (config,) = pool._templates.backend_configs
    assert isinstance(config, DockerConfig)
    assert config.shm_size_mb == 24
    monkeypatch.delenv("HERMES_EXEC_SHM_SIZE_MB")
    monkeypatch.delenv("HERMES_EXEC_IMAGE")
    assert SandboxPool.from_env(backend="here").config.backend == "local"


def test_options_count_more_than_the_entry(tmp_path: Path) -> None:
    settings = settings_of("sandboxes", "z", written(tmp_path), ["slots_per_sandbox=2", "env={B: call}"], environ={})
    assert (settings["backend"], settings["image"], settings["slots_per_sandbox"]) == ("docker", "z", 2)
    assert settings["env"] == {"B": "call"}
    assert settings_of(None, None, written(tmp_path), ["backend=gpu"], environ={})["backend"] == "ssh"


def test_the_schema_knows_the_section() -> None:
    schema = pool_schema(config_types())
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    checker.validate({**FILE, "backend": "gpu", "backends": {**FILE["backends"], "here": {"type": "local"}}})
    for wrong in (
        {"backends": {"a": {"image": "x"}}},
        {"backends": {"a": {"type": "dokcer"}}},
        {"backends": {"a": {"type": "ssh"}}},
        {"backends": {"a": {"type": "local", "shm_size_mb": 3}}},
        {"backends": {"a": {"type": "docker", "imge": "x"}}},
        {"backends": {"a": {"type": "local", "backend": "b"}}},
        {"backends": {"a": {"type": "docker"}}, "backend": "docker", "shm_size_mb": 3},
        {"backends": [{"type": "docker"}]},
    ):
        assert not checker.is_valid(wrong), wrong


def written(directory: Path) -> Path:
    """The configuration as a file."""
    import json

    path = directory / "pool.json"
    path.write_text(json.dumps(FILE))
    return path


def test_commands_over_all_ask_those_of_the_file_first_and_the_others_once(tmp_path: Path) -> None:
    wanted = select_backends(None, written(tmp_path), None)
    assert wanted.names[:4] == ["here", "sandboxes", "again", "gpu"]
    assert {"local", "docker", "singularity"} <= set(wanted.names[4:])
    assert "ssh" not in wanted.names, "it cannot be had without options"
    assert select_backends("gpu", written(tmp_path), None) == BackendSelection(["gpu"], alone=True)
    with pytest.raises(ConfigError, match="--option needs --backend"):
        select_backends(None, written(tmp_path), ["lease_s=3"])


@pytest.mark.anyio
async def test_one_that_does_not_answer_or_is_wrong_holds_up_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(
        "backends:\n  silent: {type: local}\n  broken: {type: local}\n  wrong: {type: ssh, hosst: a}\n"
        "  good: {type: local}\n  same: {type: local}\n"
    )
    numbers = itertools.count()

    async def ask(_: Backend) -> list[ReapedSandbox]:
        match next(numbers):
            case 0:
                await anyio.sleep_forever()
            case 1:
                raise KeyError("of its own")
        return [ReapedSandbox("local-1", "local", "r", "because")]

    wanted = BackendSelection(["silent", "broken", "wrong", "good", "same"], frozenset({"silent"}))
    silent, broken, wrong, good, same = answers = await ask_each(wanted, path, None, ask, 0.5)
    assert isinstance(silent.error, BackendUnavailable)
    assert "no answer within 0.5 s" in str(silent.error)
    assert "KeyError: 'of its own'" in str(broken.error)
    assert isinstance(wrong.error, ConfigError)
    assert (len(good.sandboxes), same.sandboxes) == (1, []), "one engine, one sandbox"
    assert code_of_all(answers) == exits.OK
    assert code_of_all([silent, wrong]) == exits.INFRA
    assert code_of_all([wrong]) == exits.USAGE
    told = " ".join(capsys.readouterr().err.split())
    assert "silent is left out: no answer within 0.5 s" in told
    assert "left out: broken, wrong (see hermes-exec doctor)" in told
