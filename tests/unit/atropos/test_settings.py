"""Settings of environments: flags over files over defaults, older names, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_atropos import SandboxEnvConfig
from hermes_atropos.cli.commands import ENVIRONMENTS, load_environment
from hermes_atropos.cli.settings import read_settings
from hermes_atropos.envs.gsm8k_agent import Gsm8kAgentEnv
from hermes_atropos.envs.terminal_test import TerminalTestEnv
from hermes_exec import ConfigError
from hermes_exec.config.older_names import FIELDS
from tests.support.guarded import install


def read(*flags: str, command: str = "serve") -> tuple[SandboxEnvConfig, list[Any]]:
    return read_settings(TerminalTestEnv, command, flags, "env")


def test_flags_win_over_the_file_and_that_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "env: {group_size: 3, total_steps: 7, enabled_toolsets: [terminal]}\n"
        "openai: {base_url: http://a/v1, model_name: m}\ntinker: {anything: 1}\n"
    )
    config, (server,) = read("--config", str(path), "--env.total_steps", "9", "--openai.model_name=n")
    assert (config.group_size, config.total_steps, config.enabled_toolsets) == (3, 9, "terminal")
    assert (server.base_url, server.model_name, server.api_key) == ("http://a/v1", "n", "x")
    assert (config.wandb_name, config.use_wandb, server.health_check) == ("terminal_test", False, False)


def test_several_servers(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("openai: [{base_url: http://a/v1}, {base_url: http://b/v1}]\n")
    assert [server.base_url for server in read("--config", str(path))[1]] == ["http://a/v1", "http://b/v1"]
    with pytest.raises(ConfigError, match="several servers"):
        read("--config", str(path), "--openai.base_url", "http://c/v1")


@pytest.mark.parametrize("flags", [("--env.max_num_workers", "-1"), ("--env.max_num_workers=-1",)])
def test_a_negative_number_is_a_value(flags: tuple[str, ...]) -> None:
    assert read(*flags)[0].max_num_workers == -1


@pytest.mark.parametrize(("text", "value"), [("safe", "safe"), ("all", "all"), ("3", 3)])
def test_parallel_calls_is_a_flag(text: str, value: object) -> None:
    assert read()[0].parallel_calls == "safe"
    assert read("--env.parallel_calls", text)[0].parallel_calls == value
    with pytest.raises(ConfigError, match=r"env\.parallel_calls: parallel_calls is 'safe', 'all' or a number from 1"):
        read("--env.parallel_calls", "0")


def test_process_writes_to_a_file_and_asks_for_no_wandb() -> None:
    config, _ = read(command="process")
    assert config.data_path_to_save_groups == "data/terminal_test.jsonl"
    assert (config.use_wandb, config.include_messages, config.ensure_scores_are_not_same) == (False, True, False)
    assert read("--env.use_wandb", "true", command="process")[0].use_wandb
    assert read("--env.wandb_name", "None")[0].wandb_name is None


def test_several_servers_are_checked_only_if_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("openai: [{base_url: http://a/v1}, {base_url: http://b/v1, health_check: true}]\n")
    assert [server.health_check for server in read("--config", str(path))[1]] == [False, True]


def test_variable_with_an_address_keeps_the_server_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATROPOS_SERVER_BASE_URL", "http://e/v1")
    (server,) = read()[1]
    assert (server.base_url, server.server_type) == ("http://e/v1", "vllm")
    assert read("--openai.server_type", "openai")[1][0].server_type == "openai"


def test_variables_of_older_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATROPOS_SERVER_BASE_URL", "http://e/v1")
    monkeypatch.setenv("ATROPOS_SERVER_API_KEY", "k")
    monkeypatch.setenv("ATROPOS_TOKENIZER_NAME", "t")
    config, (server,) = read()
    assert (server.base_url, server.api_key, server.server_type, config.tokenizer_name) == (
        "http://e/v1", "k", "vllm", "t",
    )  # fmt: skip
    assert read("--openai.base_url", "http://f/v1")[1][0].base_url == "http://f/v1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("env: {group_sise: 3}", "has no 'group_sise'; did you mean 'group_size'"),
        ("env: {group_size: many}", r"env\.group_size"),
        ("env: [1]", "the section env must be a mapping"),
        ("[1]", "must be a mapping with sections"),
        ("openai: {base_ur: x}", "did you mean 'base_url'"),
        ("env: {enabled_toolsets: [termnal]}", "termnal"),
        ("env: {sampling: '[1]'}", "is not a JSON object"),
        ("env: {distribution: defualt}", "default"),
        ("env: {terminal_timeout: long}", "terminal_timeout cannot be read: 'long' is no number"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read("--config", str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read("--config", str(tmp_path / "none.yaml"))


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read("--env.group_sise", "3")
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "--env.group_sise 3; did you mean --env.group_size?" in told
    assert len(told) < 300


def test_the_help_begins_with_what_is_the_environments_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(Gsm8kAgentEnv, "process", ["--help"], "program")
    told = capsys.readouterr().out
    places = [told.index(title) for title in ("settings of this environment", "of every environment", "of atroposlib")]
    assert places == sorted(places)
    assert "--env.tool_pool_mode" not in told


def test_older_names_are_read_as_what_they_became(caplog: pytest.LogCaptureFixture) -> None:
    """The seed's command line; E5: backend, timeout and lifetime were process-wide variables."""
    config, _ = read(
        "--env.tool_pool_mode", "modal", "--env.modal_image", "python:3.11", "--env.modal_slots_per_sandbox", "10",
        "--env.modal_min_sandboxes", "1", "--env.modal_secrets", "a,b", "--env.terminal_timeout", "90",
        "--env.tool_pool_size", "128", "--env.acquire_timeout_s", "30",
    )  # fmt: skip
    assert (config.backend, config.image, config.slots_per_sandbox, config.min_sandboxes) == (
        "modal", "python:3.11", 10, 1,
    )  # fmt: skip
    assert (config.terminal_timeout_s, config.acquire_timeout_s) == (90, 30)
    assert json.loads(config.backend_options) == {"modal_secrets": ["a", "b"]}
    assert config.tool_options.terminal_timeout_s == 90
    for told in (
        "modal_image is now image\n",
        "secrets is now modal_secrets, in backend_",
        "tool_pool_size is left out",
    ):
        assert told in caplog.text


def test_purging_is_an_option_of_nomad_alone(caplog: pytest.LogCaptureFixture) -> None:
    config, _ = read("--env.tool_pool_mode", "nomad", "--env.purge_job_on_start", "true", "--env.sandbox_image", "i")
    assert (config.image, json.loads(config.backend_options)) == ("i", {"purge_on_start": True})
    read("--env.purge_job_on_start", "true")
    assert "purge_job_on_start is left out: it is about nomad, not local" in caplog.text


def test_all_older_names_are_fields_and_flags() -> None:
    """In Python and with everything that a flag takes; extra keys of a mapping go on to the backend's options."""
    config = SandboxEnvConfig(
        terminal_backend="modal", modal_cpu=2, modal_memory=64, modal_env_vars="A=1", extra_body={"top_p": 0.5},
        require_sandbox=True, allow_network=False, backend_options={"region": "eu"},
    )  # fmt: skip
    assert (config.backend, config.cpus, config.memory_mb, config.network) == ("modal", 2, 64, False)
    assert (config.min_isolation, config.further_sampling) == ("namespaces", {"top_p": 0.5})
    assert json.loads(config.backend_options) == {"region": "eu", "env": {"A": "1"}}
    for name in FIELDS - {"tool_pool_mode", "terminal_backend", "extra_body"}:
        assert read(f"--env.{name}", "1")[0].backend == "local"
    assert read("--env.tool_pool_mode", "default", "--env.backend", "docker")[0].backend == "docker"


def test_toolsets_of_groups() -> None:
    config = SandboxEnvConfig(enabled_toolsets="terminal, file", disabled_toolsets="file")
    assert config.toolsets(0) == ("terminal",)
    drawn = [SandboxEnvConfig(distribution="mixed_tasks", toolset_seed=1).toolsets(number) for number in range(20)]
    assert drawn == [SandboxEnvConfig(distribution="mixed_tasks", toolset_seed=1).toolsets(n) for n in range(20)]
    assert len(set(drawn)) > 1


def test_a_chat_template_is_a_text_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ 1 }}")
    assert SandboxEnvConfig(chat_template=str(path)).template_text == "{{ 1 }}"
    assert SandboxEnvConfig(chat_template="{{ 2 }}").template_text == "{{ 2 }}"
    with pytest.raises(ConfigError, match="chat_template"):
        _ = SandboxEnvConfig(chat_template="nowhere").template_text


def test_environments_are_found_by_name() -> None:
    assert all(load_environment(name).name == name for name in ENVIRONMENTS)
    with pytest.raises(ConfigError, match="did you mean 'swe_smith_oracle'"):
        load_environment("swe-smith-oracl")


def test_a_backend_may_be_a_name_in_the_file_of_the_pool(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(
        "backends:\n  here: {type: local, slots_per_sandbox: 3}\n"
        "  sandboxes: {type: docker, image: x, max_sandboxes: 2}\n"
    )
    config, _ = read("--env.pool_config", str(path), "--env.backend", "sandboxes", "--env.slots_per_sandbox", "5")
    pool = config.make_pool().config
    assert (pool.backend, pool.image, pool.max_sandboxes, pool.slots_per_sandbox) == ("docker", "x", 2, 5)
    assert (config.backend, config.backend_type) == ("sandboxes", "docker")
    here, _ = read("--env.pool_config", str(path), "--env.backend", "here")
    assert (here.make_pool().config.backend, here.backend_type) == ("local", "local")
    with pytest.raises(ConfigError, match=r"several backends here, choose one: .*one of here, sandboxes"):
        read("--env.pool_config", str(path))[0].make_pool()
    assert read("--env.backend", "docker")[0].backend_type == "docker"


def test_secrets_of_a_backend_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path)))
    options = {"token": "s3cret", "lease_s": 9, "profiles": {"p": {"backend_options": {"token": "s3cret-too"}}}}
    config, _ = read("--env.backend", "guarded", "--env.backend_options", json.dumps(options))
    told = config.model_dump_json()
    assert "s3cret" not in told
    assert json.loads(json.loads(told)["backend_options"])["lease_s"] == 9
    assert config.make_pool().mask("s3cret, s3cret-too") == "***, ***"


@pytest.mark.parametrize(
    ("flags", "has_network"),
    [
        ((), False),
        (("--env.backend", "ssh"), False),
        (("--env.backend", "singularity"), False),
        (("--env.backend", "docker"), True),
        (("--env.backend", "modal"), True),
        (("--env.backend", "nomad"), True),
        (("--env.backend", "nomad", "--env.backend_options", '{"driver": "singularity"}'), False),
        (("--env.backend", "docker", "--env.backend_options", '{"network_mode": "host"}'), False),
        (("--env.backend_options", '{"network": true}'), True),
        (("--env.network", "true"), True),
        (("--env.backend", "docker", "--env.network", "false"), False),
        (("--env.pool_config", "LOCAL"), False),
        (("--env.pool_config", "SAYS"), True),
        (("--env.pool_config", "SAYS", "--env.network", "false"), False),
        (("--env.pool_config", "NAMED", "--env.backend", "here"), True),
        (("--env.pool_config", "NAMED", "--env.backend", "there"), False),
    ],
)
def test_slots_have_no_network_of_their_host_unless_it_is_asked_for(
    flags: tuple[str, ...], has_network: bool, tmp_path: Path
) -> None:
    files = {
        "LOCAL": "backend: local\n",
        "SAYS": "backend: local\nnetwork: true\n",
        "NAMED": "backends:\n  here: {type: local, network: true}\n  there: {type: local}\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    config = read(*(str(tmp_path / f"{flag}.yaml") if flag in files else flag for flag in flags))[0]
    assert config.slots_network is has_network
    if config.backend_type == "local":
        assert config.make_pool().config.network is has_network


def test_an_environment_may_need_the_network() -> None:
    class Needs(SandboxEnvConfig):
        needs_network = True

    assert Needs().slots_network
    assert not Needs(network=False).slots_network
