"""Names of older systems: one table says what each became, or why it is gone, and the importer follows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import SandboxPool
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.registry import config_type, config_types
from hermes_exec.backends.ssh.config import SSHConfig
from hermes_exec.config import resolve_config
from hermes_exec.config.older_names import FIELDS, ROWS, find_older_names, import_file, import_names
from hermes_exec.errors import ConfigError

DOCS = Path(__file__).resolve().parents[3] / "docs" / "older-names.md"
PROFILE = "profile."
GIVEN = {
    "backend": ("modal", "modal"), "idle_timeout_s": ("90", 90), "max_lifetime_s": ("90.5", 90.5),
    "acquire_timeout_s": ("90", 90), "network": ("no", False), "min_isolation": ("true", "namespaces"),
    "environment.terminal_timeout_s": ("90", 90), "limits.cpus": ("1.5", 1.5), "limits.memory_mb": ("64", 64),
    "hosts.host": ("gpu1", "gpu1"), "hosts.port": ("2222", 2222), "volumes": ("a:/b,c:/d", ("a:/b", "c:/d")),
    "modal_secrets": ("a, b", ("a", "b")), "env": ("A=1;B=x=y", {"A": "1", "B": "x=y"}),
    "driver": ("raw_exec", "singularity"), "slots_per_sandbox": ("3", 3), "min_sandboxes": ("1", 1),
    "max_sandboxes": ("4", 4), "purge_on_start": ("on", True), "purge_on_shutdown": ("0", False),
    "address": ("http://h:1", "http://h:1"), "workdir": ("/w", "/w"), "profiles": ("a,b", None),
    "ca_cert": ("/c", "/c"), "client_key": ("/k", "/k"), "client_cert": ("/c", "/c"), "base_dir": ("/b", "/b"),
}  # fmt: skip
"""A text of each option that is not just any, and what is read of it."""


def backends_of(name: str) -> list[str]:
    of = ROWS[name].of
    return ["local"] if of == "every" else of.split()


@pytest.mark.parametrize("name", [name for name in ROWS if not name.startswith(PROFILE)])
def test_each_name_becomes_its_option(name: str) -> None:
    option = ROWS[name].option
    text, expected = GIVEN.get(option, ("x", "x"))
    for backend in backends_of(name):
        choosing = {
            "TERMINAL_SLOT_BACKEND": {"TERMINAL_ENV": "slot_pool"},
            "TERMINAL_NOMAD_APPTAINER_IMAGE": {"TERMINAL_NOMAD_DRIVER": "raw_exec"},
            "singularity_image": {"driver": "singularity"},
        }.get(name, {})
        found = import_names({**choosing, name: text}, None if option == "backend" else backend)
        if not option:
            assert (found.options, found.left_out) == ({}, [f"{name} is left out: {ROWS[name].gone}"])
            continue
        assert found.became[name] == option
        value: Any = found.options
        for part in option.split("."):
            value = value.get(part)
        assert value == expected, backend
        found.options.pop("environment", None)
        if not {"client_cert", "client_key", "hosts", "profiles_file"} & found.options.keys():  # not by themselves
            resolve_config({"hosts": "h"} | found.options if backend == "ssh" else found.options, config_type(backend))


@pytest.mark.parametrize("key", [name.removeprefix(PROFILE) for name in ROWS if name.startswith(PROFILE)])
def test_each_key_of_a_profile_becomes_its_option(key: str, tmp_path: Path) -> None:
    option = ROWS[PROFILE + key].option
    text, expected = GIVEN.get(option, ("x", "x"))
    file = tmp_path / "modal_profiles.yaml"
    file.write_text(f"profiles: {{gpu: {{{key}: '{text}'}}}}\n")
    by_file = import_file(file)
    by_variable = import_names(
        {f"ATROPOS_MODAL_PROFILE_GPU_{key.upper()}": text, "ATROPOS_MODAL_PROFILES": "gpu"}, "modal"
    )
    if not option:
        assert by_file.left_out == [f"{file}: gpu.{key} is left out: {ROWS[PROFILE + key].gone}"]
        assert by_variable.left_out == [f"profile gpu: {key} is left out: {ROWS[PROFILE + key].gone}"]
        return
    made = by_file.options["profiles"]["gpu"]
    assert made == by_variable.options["profiles"]["gpu"]
    pool, config = resolve_config(by_file.options, config_type("modal"))
    config.with_options(pool.profiles["gpu"].backend_options)
    value: Any = made
    for part in option.split("."):
        value = value.get(part) if part in value else value["backend_options"].get(part)
    assert value == expected


def test_variables_become_options() -> None:
    found = import_names(
        {
            "TERMINAL_ENV": "docker",
            "TERMINAL_DOCKER_IMAGE": "python:3.12",
            "TERMINAL_CONTAINER_MEMORY": "5120",
            "TERMINAL_CONTAINER_CPU": "0",
            "TERMINAL_CONTAINER_DISK": "51200",
            "TERMINAL_DOCKER_VOLUMES": '["/a:/b"]',
            "TERMINAL_DOCKER_ENV": '{"A": "1"}',
            "TERMINAL_MODAL_IMAGE": "not for docker",
            "TERMINAL_OF_THE_FUTURE": "1",
            "HOME": "/root",
        }
    )
    assert found.options == {
        "backend": "docker",
        "image": "python:3.12",
        "limits": {"memory_mb": 5120, "cpus": None},
        "volumes": ("/a:/b",),
        "env": {"A": "1"},
    }
    assert found.left_out == [
        "TERMINAL_MODAL_IMAGE is left out: it is about modal, not docker",
        "TERMINAL_CONTAINER_DISK is left out: engines do not limit it: `slot_limits.disk_mb` limits a slot",
        "TERMINAL_OF_THE_FUTURE is left out: it means nothing here",
    ]
    resolve_config(found.options, DockerConfig)


def test_a_host_of_ssh() -> None:
    given = {"TERMINAL_ENV": "ssh", "TERMINAL_SSH_HOST": "gpu1", "TERMINAL_SSH_USER": "me", "TERMINAL_SSH_PORT": "2222"}
    _, config = resolve_config(import_names({**given, "TERMINAL_SSH_KEY": "/k"}).options, SSHConfig)
    assert isinstance(config, SSHConfig)
    assert ([host.name for host in config.hosts], config.identity_file) == (["me@gpu1:2222"], "/k")


def test_the_slot_pool_and_the_cluster() -> None:
    found = import_names(
        {
            "TERMINAL_ENV": "slot_pool",
            "TERMINAL_SLOT_BACKEND": "nomad",
            "TERMINAL_NOMAD_SLOTS": "10",
            "TERMINAL_NOMAD_DRIVER": "raw_exec",
            "TERMINAL_NOMAD_APPTAINER_IMAGE": "a.sif",
            "TERMINAL_NOMAD_IMAGE": "hermes-sandbox:local",
            "TERMINAL_MODAL_SLOTS": "5",
            "NOMAD_ADDR": "http://localhost:4646",
            "NOMAD_TOKEN": "hush-hush",
            "NOMAD_ALLOC_DIR": "/alloc",
        }
    )
    assert found.options == {
        "backend": "nomad",
        "slots_per_sandbox": 10,
        "driver": "singularity",
        "image": "a.sif",
        "address": "http://localhost:4646",
    }
    assert "hush-hush" not in repr(found)
    assert import_names({"TERMINAL_ENV": "slot_pool"}).options == {"backend": "modal"}


@pytest.mark.parametrize(("driver", "image"), [("", "img:1"), ("docker", "img:1"), ("singularity", "/x.sif")])
def test_each_driver_of_nomad_has_its_image(driver: str, image: str) -> None:
    given = {
        "TERMINAL_NOMAD_IMAGE": "img:1",
        "TERMINAL_NOMAD_APPTAINER_IMAGE": "/x.sif",
        "TERMINAL_NOMAD_DRIVER": driver,
    }
    assert import_names(given, "nomad").options["image"] == image
    fields = {"sandbox_image": "img:1", "singularity_image": "/x.sif", "driver": driver}
    assert import_names(fields, "nomad").options["image"] == image


@pytest.mark.parametrize("driver", ["", "docker", "Docker"])
def test_image_of_apptainer_is_left_out_for_docker(driver: str) -> None:
    imported = import_names({"singularity_image": "/x.sif", "driver": driver}, "nomad")
    assert "image" not in imported.options
    assert imported.left_out == ["singularity_image is left out: it is for driver=singularity"]
    imported = import_names({"sandbox_image": "img:1", "singularity_image": "/x.sif", "driver": driver}, "nomad")
    assert imported.options["image"] == "img:1"


def test_profiles_of_variables() -> None:
    found = import_names(
        {
            "ATROPOS_MODAL_IMAGE": "python:3.11",
            "ATROPOS_MODAL_MEMORY": "64",
            "ATROPOS_MODAL_SECRETS": "one, two",
            "ATROPOS_MODAL_PROFILES": "default,pytorch-gpu",
            "ATROPOS_MODAL_PROFILE_DEFAULT_CPU": "2",
            "ATROPOS_MODAL_PROFILE_PYTORCH_GPU_GPU": "T4",
            "ATROPOS_MODAL_PROFILE_PYTORCH_GPU_MAX_LIFETIME": "600",
            "TERMINAL_MODAL_PROFILE_small_MAX_POOL": "2",
        },
        "modal",
    )
    assert found.options == {
        "image": "python:3.11",
        "modal_secrets": ("one", "two"),
        "limits": {"memory_mb": 64, "cpus": 2},
        "profiles": {
            "pytorch-gpu": {"backend_options": {"gpus": "T4"}, "max_lifetime_s": 600},
            "small": {"max_sandboxes": 2},
        },
    }
    left_out = import_names({"ATROPOS_MODAL_PROFILE_X_CPU": "2"}, "docker").left_out
    assert left_out == ["ATROPOS_MODAL_PROFILE_X_CPU is left out: it is about modal, not docker"]


def test_a_backend_that_was_chosen_otherwise_counts_more() -> None:
    given = {"TERMINAL_ENV": "daytona", "TERMINAL_SSH_HOST": "gpu1", "TERMINAL_DOCKER_IMAGE": "x"}
    found = import_names(given, "docker")
    assert found.options == {"image": "x"}
    assert "TERMINAL_ENV=daytona is left out: the backend is docker" in found.left_out
    fields = {"tool_pool_mode": "default", "terminal_backend": "apptainer", "modal_image": "x"}
    assert import_names(fields).options == {"backend": "singularity"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"TERMINAL_ENV": "daytona"}, "TERMINAL_ENV='daytona' has no counterpart; the backends are apptainer, docker"),
        ({"TERMINAL_ENV": "slot_pool", "TERMINAL_SLOT_BACKEND": "x"}, "TERMINAL_SLOT_BACKEND='x' has no counterpart"),
        (
            {"TERMINAL_ENV": "docker", "TERMINAL_CONTAINER_CPU": "many"},
            "CONTAINER_CPU cannot be read: 'many' is no num",
        ),
        ({"TERMINAL_ENV": "docker", "TERMINAL_DOCKER_VOLUMES": "[1]"}, "TERMINAL_DOCKER_VOLUMES cannot be read"),
        ({"TERMINAL_ENV": "docker", "TERMINAL_DOCKER_ENV": "{"}, "TERMINAL_DOCKER_ENV cannot be read"),
        ({"TERMINAL_ENV": "docker", "TERMINAL_DOCKER_ENV": "A"}, "'A' is not NAME=VALUE"),
        ({"TERMINAL_ENV": "docker", "TERMINAL_DOCKER_NETWORK": "perhaps"}, "neither true nor false"),
        ({"tool_pool_mode": "modal", "modal_secrets": 3}, "modal_secrets cannot be read: it is no list"),
    ],
)
def test_what_cannot_be_read_names_the_variable(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        import_names(given)


def test_from_env_reads_none_and_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    older = {"TERMINAL_ENV": "ssh", "TERMINAL_SSH_HOST": "gpu1", "TERMINAL_EMULATOR": "another program's"}
    for name, value in {**older, "NOMAD_ADDR": "http://h:1", "ATROPOS_MODAL_PROFILE_X_CPU": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(RuntimeWarning) as caught:
        assert SandboxPool.from_env().config.backend == "local"
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message) == (
        "ATROPOS_MODAL_PROFILE_X_CPU, TERMINAL_ENV, TERMINAL_SSH_HOST: not read; `hermes-exec config import` prints a "
        "configuration from them"
    )


def test_every_variable_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """But those that Nomad's client reads, and that of an option of the same name."""
    variables = {name for name in ROWS if name.isupper()}
    found = set(find_older_names(dict.fromkeys(variables, "1")))
    assert variables - found == {
        f"NOMAD_{n}" for n in ("ADDR", "TOKEN", "NAMESPACE", "REGION", "CLIENT_CERT", "CLIENT_KEY")
    }
    for name in found - {"HERMES_EXEC_ASK"}:
        with monkeypatch.context() as only:
            only.setenv(name, "1")
            with pytest.warns(RuntimeWarning, match=f"^{name}: not read"):
                SandboxPool.from_env()


def rows() -> dict[str, str]:
    """The tables of the docs: what is said of each name of a setting. The flags of a program come after them."""
    found: dict[str, str] = {}
    for line in DOCS.read_text("utf-8").partition("\n## The batch runner")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2:
            for name in re.findall(r"`([A-Za-z_.]+)`", cells[0]):
                assert name not in found, f"{name} twice"
                found[name] = cells[1]
    return found


@pytest.mark.parametrize("name", ROWS)
def test_the_docs_have_every_name_and_what_it_became(name: str) -> None:
    option, gone, _ = ROWS[name]
    assert rows()[name] == (f"`{option}`" if option else f"gone: {gone}")


def test_the_docs_have_no_other_names() -> None:
    assert rows().keys() == ROWS.keys()
    assert {of for row in ROWS.values() for of in row.of.split()} <= {"every", *config_types()}
    assert len(FIELDS) == 34
