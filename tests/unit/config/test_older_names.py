"""Variables of older tools: each is told once, as what it became, or why it is gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import SandboxPool
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.registry import config_type, config_types
from hermes_exec.backends.ssh.config import SSHConfig
from hermes_exec.config import PoolConfig, import_older_names, resolve_config
from hermes_exec.config.older_names import RULES
from hermes_exec.errors import ConfigError

DOCS = Path(__file__).resolve().parents[3] / "docs" / "older-names.md"


def test_they_become_options_with_a_warning_each() -> None:
    found = import_older_names(
        {
            "TERMINAL_ENV": "docker",
            "TERMINAL_DOCKER_IMAGE": "python:3.12",
            "TERMINAL_CONTAINER_MEMORY": "5120",
            "TERMINAL_CONTAINER_CPU": "1.5",
            "TERMINAL_CONTAINER_DISK": "51200",
            "TERMINAL_DOCKER_VOLUMES": '["/a:/b"]',
            "TERMINAL_MODAL_IMAGE": "not for docker",
            "TERMINAL_PERSISTENT_SHELL": "true",
            "TERMINAL_OF_THE_FUTURE": "1",
            "HOME": "/root",
        }
    )
    assert found.options == {
        "backend": "docker",
        "image": "python:3.12",
        "limits": {"memory_mb": 5120, "cpus": 1.5},
        "volumes": ("/a:/b",),
    }
    assert sorted(warning.split("=")[0].split()[0] for warning in found.warnings) == [
        "TERMINAL_CONTAINER_CPU", "TERMINAL_CONTAINER_DISK", "TERMINAL_CONTAINER_MEMORY", "TERMINAL_DOCKER_IMAGE",
        "TERMINAL_DOCKER_VOLUMES", "TERMINAL_ENV", "TERMINAL_OF_THE_FUTURE", "TERMINAL_PERSISTENT_SHELL",
    ]  # fmt: skip
    resolve_config(found.options, DockerConfig)


def test_a_host_of_ssh() -> None:
    given = {"TERMINAL_ENV": "ssh", "TERMINAL_SSH_HOST": "gpu1", "TERMINAL_SSH_USER": "me", "TERMINAL_SSH_PORT": "2222"}
    found = import_older_names({**given, "TERMINAL_SSH_KEY": "/k", "TERMINAL_CONTAINER_CPU": "2"})
    _, config = resolve_config(found.options, SSHConfig)
    assert isinstance(config, SSHConfig)
    assert ([host.name for host in config.hosts], config.identity_file) == (["me@gpu1:2222"], "/k")
    assert len(found.warnings) == 5


def test_the_slot_pool_and_the_cluster() -> None:
    found = import_older_names(
        {
            "TERMINAL_ENV": "slot_pool",
            "TERMINAL_SLOT_BACKEND": "nomad",
            "TERMINAL_NOMAD_SLOTS": "10",
            "TERMINAL_NOMAD_DRIVER": "raw_exec",
            "TERMINAL_NOMAD_APPTAINER_IMAGE": "a.sif",
            "TERMINAL_NOMAD_IMAGE": "hermes-sandbox:local",
            "TERMINAL_NOMAD_JOB_ID": "hermes-sandbox",
            "TERMINAL_MODAL_SLOTS": "5",
            "NOMAD_ADDR": "http://localhost:4646",
            "NOMAD_TOKEN": "hush-hush",
            "NOMAD_ALLOC_DIR": "/alloc",
            "TOOL_EXECUTOR_ALLOW_NETWORK": "no",
        }
    )
    assert found.options == {
        "backend": "nomad",
        "slots_per_sandbox": 10,
        "driver": "singularity",
        "image": "a.sif",
        "address": "http://localhost:4646",
        "token": "hush-hush",
        "network": False,
    }
    resolve_config(found.options, config_type("nomad"))
    assert "TERMINAL_NOMAD_IMAGE is read as image; write that instead" in found.warnings
    assert not [w for w in found.warnings if "NOMAD_TOKEN" in w], "a name of Nomad's own client"
    assert "hush-hush" not in repr(found.warnings)
    assert [w for w in found.warnings if w.startswith("TERMINAL_NOMAD_JOB_ID is left out: every box is a job")]
    assert not [w for w in found.warnings if "NOMAD_ALLOC_DIR" in w], "Nomad's own, in every task"


@pytest.mark.parametrize(("driver", "image"), [({}, "img:1"), ({"TERMINAL_NOMAD_DRIVER": "docker"}, "img:1")])
def test_each_driver_of_nomad_has_its_image(driver: dict[str, str], image: str) -> None:
    images = {"TERMINAL_NOMAD_IMAGE": "img:1", "TERMINAL_NOMAD_APPTAINER_IMAGE": "/x.sif"}
    assert import_older_names({"TERMINAL_ENV": "nomad", **images, **driver}).options["image"] == image


def test_profiles_of_modal() -> None:
    found = import_older_names(
        {
            "ATROPOS_MODAL_IMAGE": "python:3.11",
            "ATROPOS_MODAL_SECRETS": "one, two",
            "ATROPOS_MODAL_PROFILES": "default,pytorch-gpu",
            "ATROPOS_MODAL_PROFILE_DEFAULT_CPU": "2",
            "ATROPOS_MODAL_PROFILE_PYTORCH_GPU_GPU": "T4",
            "ATROPOS_MODAL_PROFILE_PYTORCH_GPU_MAX_LIFETIME": "600",
            "ATROPOS_MODAL_PROFILE_PYTORCH_GPU_ENV_VARS": "A=1; B=x=y",
            "TERMINAL_MODAL_PROFILE_small_MAX_POOL": "2",
            "TERMINAL_MODAL_PROFILE_small_USE_DOTENV": "true",
        },
        "modal",
    )
    assert found.options == {
        "image": "python:3.11",
        "modal_secrets": ("one", "two"),
        "limits": {"cpus": 2.0},
        "profiles": {
            "pytorch-gpu": {"backend_options": {"gpus": "T4"}, "max_lifetime_s": 600.0, "env": {"A": "1", "B": "x=y"}},
            "small": {"max_sandboxes": 2},
        },
    }
    assert len(found.warnings) == 9
    pool, config = resolve_config(found.options, config_type("modal"))
    for own in pool.profiles.values():
        config.with_options(own.backend_options)


@pytest.mark.parametrize("name", RULES)
def test_what_a_name_became_is_an_option(name: str) -> None:
    rule = RULES[name]
    option = rule.option.split(".")[0]
    for backend in rule.backends & {*config_types()} if option else ():
        assert option in {*PoolConfig.model_fields, *config_type(backend).model_fields}, (name, backend)


def test_a_backend_that_was_chosen_otherwise_counts_more() -> None:
    given = {"TERMINAL_ENV": "daytona", "TERMINAL_SSH_HOST": "gpu1", "TERMINAL_DOCKER_IMAGE": "x"}
    found = import_older_names(given, "docker")
    assert found.options == {"image": "x"}
    assert "TERMINAL_ENV=daytona is left out: the backend is 'docker'" in found.warnings
    assert import_older_names({"PATH": "/bin", "ATROPOS_MODAL_IMAGE": "x"}) == ({}, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"TERMINAL_ENV": "daytona"}, "daytona"),
        ({"TERMINAL_ENV": "docker", "TERMINAL_CONTAINER_CPU": "many"}, "TERMINAL_CONTAINER_CPU"),
        ({"TERMINAL_ENV": "docker", "TERMINAL_DOCKER_VOLUMES": "[1]"}, "TERMINAL_DOCKER_VOLUMES"),
        ({"TERMINAL_ENV": "docker", "TERMINAL_DOCKER_ENV": "{"}, "TERMINAL_DOCKER_ENV"),
        ({"TERMINAL_ENV": "docker", "TERMINAL_DOCKER_NETWORK": "perhaps"}, "neither true nor false"),
    ],
)
def test_what_cannot_be_read_names_the_variable(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        import_older_names(given)


def test_the_file_and_the_environment_choose_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("backends: {boxes: {type: docker, image: x}, here: {type: local}}\n")
    older = {"TERMINAL_ENV": "ssh", "TERMINAL_SSH_HOST": "gpu1", "TERMINAL_DOCKER_ENV": "A=1", "HERMES_EXEC_ASK": "1"}
    for name, value in {**older, "HERMES_EXEC_CONFIG": str(path), "HERMES_EXEC_BACKEND": "boxes"}.items():
        monkeypatch.setenv(name, value)
    pool = SandboxPool.from_env()
    assert (pool.config.backend, pool.config.env) == ("docker", {"A": "1"})
    told = [record.message.split()[0] for record in caplog.records]
    assert told == ["TERMINAL_ENV=ssh", "TERMINAL_DOCKER_ENV", "HERMES_EXEC_ASK"]


def rows() -> dict[str, str]:
    """The table of the docs: what is said of each name."""
    found: dict[str, str] = {}
    for line in DOCS.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]
        if len(cells) == 2:
            for name in re.findall(r"`([A-Z_]{6,})`", cells[0]):
                assert name not in found, f"{name} twice"
                found[name] = cells[1]
    return found


@pytest.mark.parametrize("name", RULES)
def test_the_docs_have_every_name_and_what_it_became(name: str) -> None:
    rule: Any = RULES[name]
    assert f"`{rule.option}`" in rows()[name] if rule.option else rows()[name].startswith("gone: ")


def test_the_docs_have_no_other_names() -> None:
    assert rows().keys() == RULES.keys()
