"""The plugin in hermes-agent 0.19: configuration, mistakes in it, lost slots, copied files, and both distributions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import ConfigError
from tests.doors.hermes.conftest import HOME, WAYS, Way, call
from tests.support.doors import ROOT

Use = Callable[..., None]
LOCAL = {"backend": "local", "min_isolation": "namespaces"}


def terminal(command: str, task_id: str = "default") -> dict[str, Any]:
    return call("terminal", {"command": command}, task_id)


def environment() -> Any:  # noqa: ANN401
    from tools.terminal_tool import get_active_env

    return get_active_env("default")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "terminal.backends.hermes_exec.backend is not set in config.yaml: set it to docker"),
        ({"tools": "perhaps", **LOCAL}, "terminal.backends.hermes_exec.tools in config.yaml"),
        ({"slot_per_sandbox": 2, **LOCAL}, "slots_per_sandbox"),
        ({"backend": "dockr"}, "docker"),
        ({"pool": "/no/such/file.yaml"}, "/no/such/file.yaml"),
    ],
)
def test_mistake_in_options_is_named(
    hermes: Use, options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hermes(Way("mistake", "hermes_exec", options))
    shown = capsys.readouterr().err  # its log is the only other place: a command line without tools says nothing
    assert "⚠ hermes-exec: " in shown
    assert message in shown
    assert message in terminal("echo ran")["error"]
    from hermes_plugin.availability import is_available

    assert is_available() is False


def test_missing_image_is_named(hermes: Use) -> None:
    hermes(WAYS["docker"], "no-such-image:1")
    assert "no-such-image:1" in terminal("echo ran")["error"]


def test_pool_file_names_backend(hermes: Use, tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("backend: local\nmin_isolation: namespaces\nenv: {FRUIT: pear}\n")
    hermes(Way("file", "hermes_exec", {"pool": str(file)}))
    assert terminal("echo $FRUIT")["output"] == "pear"


def test_unsupported_version_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import hermes_plugin

    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.18.2")
    with pytest.raises(ConfigError, match=r"needs hermes-agent>=0.19,<0.20, installed: 0.18.2. Run: pip install"):
        hermes_plugin.register(object())  # type: ignore[arg-type]
    assert capsys.readouterr().err.startswith("⚠ hermes-exec: hermes_plugin needs hermes-agent>=0.19,<0.20")


def test_lost_sandbox_is_named_in_next_output(hermes: Use) -> None:
    hermes(WAYS["docker"])
    terminal("mkdir -p /workspace/project && cd /workspace/project")
    subprocess.run(["docker", "rm", "-fv", environment().open_slot().sandbox], check=True, capture_output=True)
    result = terminal("pwd")  # hermes-agent repeats it
    assert result["exit_code"] == 0
    assert result["output"].startswith("[hermes-exec: the sandbox was lost")
    assert "hermes-exec" not in terminal("pwd")["output"]


def test_skills_are_copied_and_follow_changes(hermes: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_FORCE_FILE_SYNC", "1")
    skill = HOME / "skills" / "demo" / "SKILL.md"
    skill.parent.mkdir(parents=True, exist_ok=True)
    skill.write_text("one")
    hermes(WAYS["local"])
    assert terminal("cat ~/.hermes/skills/demo/SKILL.md")["output"] == "one"
    skill.write_text("changed")
    assert terminal("cat ~/.hermes/skills/demo/SKILL.md")["output"] == "changed"
    skill.unlink()
    assert terminal("test -e ~/.hermes/skills/demo/SKILL.md")["exit_code"] == 1


def test_failed_copy_is_a_notice(hermes: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_FORCE_FILE_SYNC", "1")
    skill = HOME / "skills" / "other" / "SKILL.md"
    skill.parent.mkdir(parents=True, exist_ok=True)
    hermes(Way("setup", "hermes_exec", {**LOCAL, "slot_setup": "touch ~/.hermes"}))
    skill.write_text("one")
    try:
        assert "skills and credential files were not copied" in terminal("echo ran")["output"]
        assert terminal("echo ran")["output"] == "ran"
    finally:
        skill.unlink()


def test_approvals_are_asked_for_where_commands_reach_this_machine(hermes: Use) -> None:
    from tools import approval

    for way, skipped in ((WAYS["docker"], True), (WAYS["local"], False)):
        hermes(way)
        assert approval._should_skip_container_guards("hermes_exec") is skipped
    volumes = {"backend": "docker", "volumes": {"/tmp": "/data"}}
    hermes(Way("volumes", "hermes_exec", volumes))
    assert approval._should_skip_container_guards("hermes_exec") is False


def test_credentials_reach_no_process(hermes: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.environments.local import hermes_subprocess_env

    hermes(WAYS["local"])
    for name in ("NOMAD_TOKEN", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.setenv(name, "secret")
        assert name not in hermes_subprocess_env(inherit_credentials=True)
    assert "secret" not in terminal("env")["output"]


def test_tools_are_available_without_docker_in_path(hermes: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.registry import invalidate_check_fn_cache, registry

    hermes(WAYS["local"])
    monkeypatch.setenv("PATH", "/nowhere")
    invalidate_check_fn_cache()
    assert registry.get_entry("terminal").check_fn() is True


@pytest.mark.whole
def test_lost_sandbox_is_an_error_and_then_a_notice_of_our_tools(hermes: Use) -> None:
    hermes(WAYS["tools"])
    terminal("echo begun")
    subprocess.run(["docker", "rm", "-fv", environment().open_slot().sandbox], check=True, capture_output=True)
    assert "died" in terminal("pwd")["error"]
    result = terminal("pwd")
    assert result["exit_code"] == 0
    assert "the sandbox was lost" in result["notices"][0]
    assert "notices" not in call("search_files", {"pattern": "x", "path": "/workspace"})


@pytest.mark.whole
def test_tools_replace_those_that_are_loaded_later(hermes: Use) -> None:
    hermes(WAYS["tools"])
    code = """
from hermes_cli.plugins import discover_plugins
discover_plugins()
import model_tools
from tools.registry import registry
print({registry.get_entry(name).handler.__module__ for name in ("terminal", "process", "patch", "execute_code")})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "{'hermes_plugin.slot_tools'}"


def test_both_distributions_are_in_one_environment() -> None:
    import model_tools

    import hermes_agent

    assert Path(hermes_agent.__file__).is_relative_to(ROOT)
    assert not Path(model_tools.__file__).is_relative_to(ROOT)
    theirs = {Path(file).parts[0] for file in distribution("hermes-agent").files or []}
    ours = {path.name for path in (*ROOT.glob("hermes_*"), *ROOT.glob("integrations/*/hermes_*")) if path.is_dir()}
    assert "model_tools.py" in theirs
    assert "hermes_agent" in ours
    assert not theirs & ours
