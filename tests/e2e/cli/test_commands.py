"""The other commands: help, doctor, config, tools, bench, conformance."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import pytest

from hermes_exec import SandboxPool
from hermes_exec.backends.registry import BUILT_IN
from hermes_exec.tools import SHIPPED
from tests.conftest import BackendCase
from tests.e2e.cli.conftest import Cli

COMMANDS = (
    ["run"], ["shell"], ["doctor"], ["ps"], ["reap"], ["conformance"], ["bench"], ["config", "show"],
    ["config", "schema"], ["config", "check"], ["config", "import"], ["tools", "list"], ["tools", "schema"],
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example(cli: Cli, command: list[str]) -> None:
    done = cli.run(*command, "--help")
    assert done.returncode == 0
    assert f"hermes-exec {' '.join(command)}" in " ".join(done.stdout.split())
    assert "Example" in done.stdout


def test_help_names_all_backends(cli: Cli) -> None:
    words = cli.run("run", "--help").stdout.replace(",", " ").split()
    assert set(BUILT_IN) <= set(words)


@pytest.mark.parametrize("command", ["agent", "batch"])
def test_commands_of_other_packages_are_there(cli: Cli, command: str) -> None:
    assert cli.run(command, "--help").returncode == 0


def test_version(cli: Cli) -> None:
    assert cli.run("--version").stdout.startswith("hermes-exec 0.")


def test_doctor_tries_the_backend(cli: Cli, backend: BackendCase) -> None:
    arguments = ["--image", str(backend.options["image"])] if backend.id == "docker-debian" else []
    (finding,) = cli.json("doctor", "--json", "--backend", backend.backend, *arguments)
    assert finding["status"] == "ok", finding
    assert finding["isolation"]["level"] in {"landlock", "uid", "namespaces", "exclusive"}
    assert finding["launch_ms"] > 0
    assert finding["call_ms"] > 0
    assert set(finding["limits"]) >= {"memory_mb", "pids"}
    if arguments:
        assert f"none in {arguments[1]}: `hermes-exec image browser` prints" in finding["browser"]


@pytest.mark.whole
def test_doctor_says_how_long_a_browser_takes(cli: Cli, docker_image: Callable[[str], str]) -> None:
    image = docker_image("browser")
    (finding,) = cli.json("doctor", "--json", "--backend", "docker", "--image", image)
    assert re.fullmatch(rf"a page is open in \d+\.\d s, in {re.escape(image)}", finding["browser"])


@pytest.mark.parametrize(("form", "first"), [("dockerfile", "FROM my/base"), ("apptainer", "From: my/base")])
def test_recipes_of_images_with_a_browser(cli: Cli, form: str, first: str) -> None:
    lines = cli.run("image", "browser", "--format", form, "--from", "my/base").stdout.splitlines()
    assert first in lines
    assert any("apt-get install -y --no-install-recommends chromium " in line for line in lines)


def test_doctor_says_what_mends_an_unavailable_backend(cli: Cli) -> None:
    arguments = ("doctor", "--json", "--backend", "docker", "--image", "x", "-o", "base_url=unix:///nonexistent.sock")
    (finding,) = cli.json(*arguments, code=3)
    assert finding["status"] == "unavailable"
    assert finding["detail"]


def test_an_engine_that_does_not_answer_hides_no_other_sandboxes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with SandboxPool("local", run_id="beside-docker") as pool, pool.slot() as slot:
        listed = cli.run("ps", "--json")
        assert (listed.returncode, "left out: docker" in listed.stderr) == (0, True)
        assert slot.sandbox in {sandbox["sandbox"] for sandbox in json.loads(listed.stdout)}
    assert cli.json("reap", "--json", "--run-id", "beside-docker") == []
    assert cli.json("ps", "--json", "--backend", "docker", code=3)["error"]["kind"] == "BackendUnavailable"


def test_ps_shows_user_host_and_note(cli: Cli) -> None:
    user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname()
    with SandboxPool("local", note="nightly <run> 3") as pool, pool.slot() as slot:
        rows = {row["sandbox"]: row["labels"] for row in cli.json("ps", "--json", "--backend", "local")}
        assert slot.sandbox is not None
        labels = rows[slot.sandbox]
        assert (labels["user"], labels["note"]) == (user, "nightly <run> 3")
        table = cli.run("ps", "--backend", "local").stdout
        (line,) = [line for line in table.splitlines() if slot.sandbox in line]
        assert f"{user}@{host}" in line
        assert "nightly <run> 3" in line


def test_reap_wants_exactly_one_choice(cli: Cli) -> None:
    assert cli.run("reap").returncode == 2
    assert cli.run("reap", "--orphans", "--all").returncode == 2
    assert cli.run("reap", "--run-id", "").returncode == 2


def test_config_file_is_checked_shown_and_matches_its_schema(cli: Cli, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("backend: docker\nimage: x\nslots_per_sandbox: 4\nsecrets: {KEY: hidden}\npull_policy: never\n")
    bad.write_text("backend: docker\nslots: 4\nmemory_mb: 9\nvolumes: /a:/b\nprofiles: {p: {workdir: there}}\n")
    assert cli.json("config", "check", "--json", str(good))["ok"]
    wrong = cli.run("config", "check", str(bad))
    assert wrong.returncode == 2
    for told in ("'slots_per_sandbox'", "limits={memory_mb: …}", "volumes: ", "profiles.p.workdir: "):
        assert told in wrong.stderr
    bad.write_text("backend: docker\n")
    assert "needs an image" in cli.run("config", "check", str(bad)).stderr
    shown = cli.run("config", "show", "--json", "--config", str(good))
    assert "hidden" not in shown.stdout
    settings = json.loads(shown.stdout)
    assert (settings["slots_per_sandbox"], settings["backend_options"]["pull_policy"]) == (4, "never")
    schema = cli.json("config", "schema")
    jsonschema.validate({"backend": "docker", "image": "x", "pull_policy": "never"}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"backend": "docker", "slots_per_sandbx": 4}, schema)


OLDER_FILES = {
    "profiles: {default: {image: x, cpu: 2}, gpu: {gpu: T4}}": "modal",
    "env: {tool_pool_mode: nomad, sandbox_image: x, group_size: 4, terminal_timeout: 9}": "nomad",
    "{terminal_backend: local, terminal_lifetime: 600}": "local",
}


def test_config_is_imported_from_older_names(cli: Cli, tmp_path: Path) -> None:
    variables = {"TERMINAL_ENV": "docker", "TERMINAL_DOCKER_IMAGE": "x", "TERMINAL_TIMEOUT": "9"}
    done = cli.run("config", "import", env=variables)
    assert (done.returncode, done.stdout) == (0, "backend: docker\nimage: x\n")
    assert "TERMINAL_TIMEOUT is left out: a command has a timeout of its own" in " ".join(done.stderr.split())
    pool = tmp_path / "pool.yaml"
    pool.write_text(done.stdout)
    assert SandboxPool.from_config(pool).config.image == "x"
    assert cli.run("config", "import", "-b", "singularity", env=variables).stdout == "backend: singularity\n"
    older = tmp_path / "older.yaml"
    for text, backend in OLDER_FILES.items():
        older.write_text(text)
        done = cli.run("config", "import", "--json", str(older))
        options = json.loads(done.stdout)
        assert options.pop("backend") == backend
        SandboxPool.from_config(options, backend=backend)
        if "group_size" in text:
            assert done.stderr.split("\n")[:2] == [
                "the environment keeps group_size",
                "terminal_timeout is left out: it is terminal_timeout_s of the RL environment",
            ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "while parsing a flow node"),
        ("a: 3", "has neither profiles of Modal nor fields of an older environment"),
        ("env: {group_size: 4}", "has neither profiles of Modal nor fields of an older environment"),
        ("env: {terminal_backend: ssh}", "hosts: field required"),
        ("env: {tool_pool_mode: daytona}", "tool_pool_mode='daytona' has no counterpart; the backends are apptainer"),
        ("{tool_pool_mode: modal, modal_cpu: many}", "modal_cpu cannot be read: 'many' is no number"),
        ("profiles: {a: {min_pool: -1}}", "profiles.a.min_sandboxes: input should be greater than or equal to 0"),
        ("profiles: {a: {imgae: x}}", "a: there is no 'imgae'; did you mean 'image'?"),
    ],
)
def test_what_cannot_be_imported_is_told(cli: Cli, text: str, told: str, tmp_path: Path) -> None:
    older = tmp_path / "older.yaml"
    older.write_text(text)
    done = cli.run("config", "import", str(older))
    assert (done.returncode, done.stdout) == (2, "")
    assert told in " ".join(done.stderr.split())


def test_there_is_nothing_to_import(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("config", "import", env={name: "" for name in os.environ if name.startswith("NOMAD_")})
    assert (done.returncode, "no variables of older systems" in done.stderr) == (2, True)
    assert cli.run("config", "import", str(tmp_path / "none.yaml")).returncode == 2


def test_options_count_more_than_the_profile_and_that_more_than_the_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("env: {WHO: file}\nprofiles: {p: {env: {WHO: profile}, backend_options: {base_dir: /tmp}}}\n")
    show = ("config", "show", "--json", "--config", str(file))
    assert cli.json(*show)["env"] == {"WHO": "file"}
    shown = cli.json(*show, "--profile", "p")
    assert (shown["env"], shown["backend_options"]["base_dir"]) == ({"WHO": "profile"}, "/tmp")
    assert cli.json(*show, "--profile", "p", "-o", "env={WHO: option}")["env"] == {"WHO": "option"}
    assert (
        cli.run("run", "-c", str(file), "--profile", "p", "-o", "env={WHO: x}", "--", "env").stdout.count("WHO=x") == 1
    )
    wrong = cli.run(*show, "--profile", "q")
    assert (wrong.returncode, "no profile 'q'" in wrong.stdout) == (2, True)


def test_tools_are_listed_with_their_schemas(cli: Cli) -> None:
    names = {tool["name"] for tool in cli.json("tools", "list", "--json")}
    assert names == set(SHIPPED)
    assert {t["name"] for t in cli.json("tools", "list", "--json", "--toolset", "terminal")} == {"terminal", "process"}
    (schema,) = cli.json("tools", "schema", "terminal")
    assert schema["function"]["name"] == "terminal"
    assert cli.run("tools", "schema", "terminl").returncode == 2


@pytest.mark.whole
def test_bench_measures(cli: Cli, on: Sequence[str]) -> None:
    report = cli.json("bench", *on, "--json", "--seconds", "0.1")
    assert {figure["name"] for figure in report["figures"]} >= {"run true", "read 1 KiB", "10 MiB of output"}
    assert all(figure["calls"] > 0 and figure["p50_ms"] > 0 for figure in report["figures"])


def test_conformance_ends_with_its_summary(cli: Cli) -> None:
    done = cli.run("conformance", "--only", "exit")
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.splitlines()[-1].replace(",", "").split()
    assert words[1::2] == ["passed", "failed", "skipped"]
    assert int(words[0]) > 0
