"""The provider as main's interface wants it. This is our own test of that contract: main itself is in no package index.

Its base class is written anew here, with the names and kinds of its members alone.
"""

from __future__ import annotations

import abc
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.doors.hermes.conftest import HOME, WAYS, configure

if TYPE_CHECKING:
    from hermes_plugin.environment import SlotEnvironment
    from hermes_plugin.provider import SlotProvider

BUILT_IN = {"local", "docker", "singularity", "modal", "managed_modal", "daytona", "vercel_sandbox", "ssh"}
FIELD_TYPES = {"boolean", "list", "number", "secret", "select", "string", "text"}


class TerminalEnvironmentProvider(abc.ABC):
    """What main's base class demands."""

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @abc.abstractmethod
    def is_available(self) -> bool: ...

    @abc.abstractmethod
    def create_environment(self, *, cwd: str, timeout: int, **kwargs: object) -> object: ...


class EnvironmentConnectionError(RuntimeError):
    def __init__(self, reason: str, *, retry_hint: str = "") -> None:
        super().__init__(reason)
        self.reason, self.retry_hint = reason, retry_hint


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, docker_image: Callable[[str], str]) -> Iterator[Any]:
    """The provider that `register` adds to a version with providers, for slots of one container."""
    import tools.environments.base

    module = types.ModuleType("agent.terminal_env_provider")
    module.TerminalEnvironmentProvider = TerminalEnvironmentProvider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(
        tools.environments.base, "EnvironmentConnectionError", EnvironmentConnectionError, raising=False
    )
    configure(HOME, WAYS["docker"], docker_image("debian"))
    import hermes_plugin

    providers: list[Any] = []
    hermes_plugin.register(types.SimpleNamespace(register_terminal_environment_provider=providers.append))
    assert len(providers) == 1
    yield providers[0]
    monkeypatch.delitem(sys.modules, "hermes_plugin.provider")


def create(provider: SlotProvider, **more: object) -> SlotEnvironment:
    arguments: dict[str, Any] = {
        "cwd": "/root",
        "timeout": 60,
        "task_id": "one",
        "image": "",
        "container_config": SIZES,
    }
    environment: SlotEnvironment = provider.create_environment(**{**arguments, **more})
    return environment


SIZES = {"container_cpu": 1, "container_memory": 5120, "container_persistent": False}


@pytest.fixture
def environment(provider: SlotProvider) -> Iterator[SlotEnvironment]:
    created = create(provider)
    yield created
    created.cleanup()
    created.cleanup()


def test_name_is_free(provider: SlotProvider) -> None:
    assert provider.name == "hermes_exec"
    assert provider.name not in BUILT_IN
    assert (provider.is_remote, provider.is_container, provider.skip_container_guards) == (True, True, True)
    assert provider.cache_path_base == "~/.hermes"
    assert {"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "NOMAD_TOKEN"} <= provider.strip_env_keys


def test_unknown_arguments_are_ignored(provider: SlotProvider) -> None:
    created = create(provider, an_argument_of_tomorrow=1)
    assert created.execute("echo ok", yield_handler=None)["output"] == "ok\n"
    created.cleanup()


def test_availability_needs_no_network(provider: SlotProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    assert provider.is_available() is True
    assert provider.probe() == ("ready", "")


def test_schema_has_known_types(provider: SlotProvider) -> None:
    from hermes_plugin.options import Options

    schema = provider.get_config_schema()
    assert {entry["type"] for entry in schema.values()} <= FIELD_TYPES
    assert all("options" in entry for entry in schema.values() if entry["type"] == "select")
    Options.model_validate({"backend": "docker", "image": "x", "sync_files": False, "tools": False})


def test_execute_returns_both_names_of_the_exit_code(environment: SlotEnvironment) -> None:
    result = environment.execute("echo out; echo err >&2; exit 3", bounded_capture=True)
    assert (result["output"], result["returncode"], result["exit_code"]) == ("out\nerr\n", 3, 3)
    moved = environment.execute("cd /usr", bounded_capture=True)
    assert (moved["cwd"], moved["cwd_observed"], moved["environment_recreated"]) == ("/usr", True, False)
    assert environment.execute("cat", stdin_data="typed")["output"] == "typed"


def test_two_tasks_have_own_files(provider: SlotProvider, environment: SlotEnvironment) -> None:
    other = create(provider, task_id="two")
    environment.execute("echo secret > mine; cd /tmp", bounded_capture=True)
    assert other.execute("ls; pwd", bounded_capture=True)["output"].split() == ["/root"]
    other.cleanup()


def test_internal_calls_leave_nothing(environment: SlotEnvironment) -> None:
    environment.execute("cd /usr; VALUE=kept", bounded_capture=True)
    for _ in range(200):
        assert environment.execute("cd /; VALUE=lost; echo x")["output"] == "x\n"
    assert environment.execute("pwd; echo $VALUE", bounded_capture=True)["output"] == "/usr\nkept\n"
    assert environment.open_slot().spawned() == []


def test_dead_sandbox_is_a_connection_error_and_then_a_notice(environment: SlotEnvironment) -> None:
    environment.execute("mkdir project; cd project", bounded_capture=True)
    place = environment.cwd
    subprocess.run(["docker", "rm", "-fv", environment.open_slot().sandbox], check=True, capture_output=True)
    with pytest.raises(EnvironmentConnectionError) as raised:
        environment.execute("pwd", cwd=place, bounded_capture=True)
    assert "timeout" not in str(raised.value).lower()
    again = environment.execute("pwd", cwd=place, bounded_capture=True)
    assert again["returncode"] == 0
    assert again["environment_recreated"] is True
    assert again["output"].startswith("[hermes-exec: the sandbox was lost")
    assert "all files are gone" in again["output"]
    assert "lost" not in environment.execute("pwd", bounded_capture=True)["output"]
