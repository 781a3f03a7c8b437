"""Several backends in one file, through the program: each is taken by its name, and all are gone over at once."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_exec import SandboxPool
from tests.conftest import missing
from tests.e2e.cli.conftest import Cli
from tests.support.directories import let_others_pass
from tests.support.guarded import install
from tests.support.nomad_agent import Agent
from tests.support.sshd import Server, server

TOKEN = f"wrong-{secrets.token_hex(6)}"
RUN = f"named-{secrets.token_hex(6)}"
GOOD = ("here", "other", "sandboxes", "gpu", "cluster", "cloud")


@dataclass(frozen=True)
class Several:
    """A configuration file; `good` are the backends that work here."""

    path: Path
    good: tuple[str, ...]

    @property
    def option(self) -> tuple[str, str]:
        """What names the file on a command line."""
        return "--config", str(self.path)


@pytest.fixture(scope="module")
def ssh() -> Iterator[Server | None]:
    """An SSH server, where there can be one."""
    if missing("ssh"):
        yield None
        return
    with server() as found:
        yield found


@pytest.fixture
def several(
    tmp_path: Path, request: pytest.FixtureRequest, ssh: Server | None, monkeypatch: pytest.MonkeyPatch
) -> Several:
    """Local, Docker, SSH, Nomad and Modal as far as they are here, beside some that cannot work."""
    monkeypatch.setenv("PYTHONPATH", f"{install(tmp_path)}:{os.environ.get('PYTHONPATH', '')}")
    let_others_pass(tmp_path)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir(mode=0o711)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    backends: dict[str, Any] = {
        "here": {"type": "local", "base_dir": str(tmp_path / "a"), "slots_per_sandbox": 2},
        "other": {"type": "local", "base_dir": str(tmp_path / "b"), "env": {"WHO": "other"}},
        "wrong": {"type": "ssh", "hosst": "x"},
        "away": {"type": "ssh", "hosts": f"nobody@127.0.0.1:{port}", "ssh_config": "/dev/null"},
        "shut": {"type": "guarded", "token": TOKEN},
        "absent": {"type": "half"},
    }
    if not missing("docker"):
        image: Callable[[str], str] = request.getfixturevalue("docker_image")
        backends["sandboxes"] = {"type": "docker", "image": image("busybox"), "pull_policy": "never"}
        if not missing("nomad"):
            agent: Agent = request.getfixturevalue("nomad_agent")
            backends["cluster"] = {"type": "nomad", **agent.options(image=image("busybox")), "slot_root": "shared"}
        if not missing("modal"):
            request.getfixturevalue("modal_server")
            backends["cloud"] = {"type": "modal", "image": image("busybox")}
    if ssh is not None:
        backends["gpu"] = {"type": "ssh", **ssh.options(base_dir=str(tmp_path / "c"))}
    path = tmp_path / "several.yaml"
    path.write_text(yaml.safe_dump({"max_sandboxes": 2, "env": {"WHO": "pool"}, "backends": backends}))
    return Several(path, tuple(name for name in GOOD if name in backends))


def test_a_command_runs_on_the_one_that_is_named(cli: Cli, several: Several) -> None:
    kinds = {}
    for name in several.good:
        facts = cli.json("run", *several.option, "-b", name, "--json", "--", "echo $WHO")
        kinds[name] = facts["backend"], facts["stdout"].strip()
    pool = {"here": "local", "sandboxes": "docker", "gpu": "ssh", "cluster": "nomad", "cloud": "modal"}
    expected = {"other": ("local", "other"), **{name: (kind, "pool") for name, kind in pool.items()}}
    assert kinds == {name: expected[name] for name in several.good}
    listed = cli.run("run", *several.option, "-b", "here", "--slots", "4", "--", "pwd")
    assert listed.returncode == 0, "two sandboxes of two slots"


def test_the_environment_names_one_too(cli: Cli, several: Several) -> None:
    chosen = {"HERMES_EXEC_CONFIG": str(several.path), "HERMES_EXEC_BACKEND": "other"}
    assert cli.run("run", "--", "echo $WHO", env=chosen).stdout == "other\n"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        (None, 2, "choose one"),
        ("gpuu", 2, "did you mean"),
        ("wrong", 2, "backends.wrong: .*did you mean 'hosts'"),
        ("away", 3, "Connection refused"),
        ("shut", 3, r"the token \*\*\* is refused"),
        ("absent", 3, "backends.absent: the backend 'half' cannot be loaded .*pip install -U hermes-guarded"),
    ],
)
def test_one_that_cannot_be_taken_says_why(name: str | None, code: int, said: str, cli: Cli, several: Several) -> None:
    done = cli.run("run", *several.option, *(("-b", name) if name else ()), "--", "true")
    assert done.returncode == code
    assert re.search(said, " ".join(done.stderr.split())), done.stderr
    assert TOKEN not in done.stdout + done.stderr


def of_name(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["backend"] == name]


def test_ps_and_reap_go_over_all_and_tell_those_that_are_away(cli: Cli, several: Several) -> None:
    with ExitStack() as held:
        slots = {}
        for name in several.good:
            pool = held.enter_context(SandboxPool.from_config(several.path, backend=name, run_id=f"{RUN}-{name}"))
            slots[name] = held.enter_context(pool.slot())
        listed = cli.run("ps", *several.option, "--json")
        assert listed.returncode == 0, listed.stderr
        rows = json.loads(listed.stdout)
        for name, slot in slots.items():
            (row,) = [row for row in rows if row["sandbox"] == slot.sandbox]
            assert (row["backend"], row["type"], row["owner"]) == (name, slot.backend, "alive")
            assert (row["slots"], row["labels"]["run_id"]) == ([slot.id], f"{RUN}-{name}")
        for name, kind in (("wrong", "ConfigError"), ("shut", "BackendUnavailable"), ("absent", "BackendUnavailable")):
            (row,) = of_name(rows, name)
            assert (row["sandbox"], row["error"]["kind"]) == (None, kind)
            assert f"{name} is left out: " in listed.stderr
        assert "Connection refused" in of_name(rows, "away")[0]["error"]["message"]
        assert TOKEN not in listed.stdout + listed.stderr
        shown = cli.run("ps", *several.option).stdout.splitlines()
        assert ["ConfigError" in line for line in shown if line.startswith("wrong ")] == [True]

        assert cli.json("reap", *several.option, "--json", "-b", "other", "--run-id", f"{RUN}-here") == []
        reaped = cli.json("reap", *several.option, "--json", "--run-id", f"{RUN}-here")
        ended = {(row["backend"], row["type"], row["sandbox"]) for row in reaped if "error" not in row}
        assert ended == {("here", "local", slots["here"].sandbox)}
        assert {row["backend"] for row in reaped if "error" in row} == {"wrong", "away", "shut", "absent"}
        for name, slot in slots.items():
            if name != "here":
                assert slot.run("echo alive").stdout == "alive\n"


@pytest.mark.whole
def test_doctor_tries_all_at_once(cli: Cli, several: Several) -> None:
    found = {finding["backend"]: finding for finding in cli.json("doctor", *several.option, "--json")}
    assert {name for name in several.good if found[name]["status"] == "ok"} == set(several.good), found
    statuses = {name: found[name]["status"] for name in ("wrong", "away", "shut", "absent")}
    assert statuses == {"wrong": "misconfigured", "away": "unavailable", "shut": "unavailable", "absent": "unavailable"}
    assert found["local"]["status"] == "ok", "those that need no options are tried too"
    assert TOKEN not in json.dumps(found)
    (one,) = cli.json("doctor", *several.option, "-b", "here", "--json")
    assert (one["backend"], one["status"]) == ("here", "ok")
    assert cli.run("doctor", *several.option, "-b", "wrong").returncode == 2
    assert cli.run("doctor", *several.option, "-b", "shut").returncode == 3


@pytest.mark.whole
def test_conformance_and_bench_take_one_by_name(cli: Cli, several: Several) -> None:
    done = cli.run("conformance", *several.option, "-b", "here", "--only", "exit")
    assert done.returncode == 0, done.stdout + done.stderr
    report = cli.json("bench", *several.option, "-b", "here", "--json", "--seconds", "0.1")
    assert report["figures"]


@pytest.mark.whole
def test_config_checks_all_and_shows_one_without_its_secrets(cli: Cli, several: Several, tmp_path: Path) -> None:
    checked = cli.run("config", "check", str(several.path))
    assert checked.returncode == 2
    for said in ("backends.wrong: ", "backends.absent: "):
        assert said in checked.stderr
    path = tmp_path / "wrong.yaml"
    path.write_text(
        "image: x\nbackends: {a: {type: local}, b: {type: docker, image: y}, c: {type: docker, min_sandboxes: 9}}\n"
    )
    lines = cli.run("config", "check", str(path)).stderr.splitlines()
    assert [line.partition("backends.")[2][:3] for line in lines] == ["a: ", "c: "]
    good = yaml.safe_load(several.path.read_text())
    for name in ("wrong", "absent"):
        del good["backends"][name]
    good["profiles"] = {"p": {}}
    path = tmp_path / "good.yaml"
    path.write_text(yaml.safe_dump(good))
    facts = cli.json("config", "check", "--json", str(path))
    assert (facts["ok"], facts["profiles"], facts["backends"]["shut"]) == (True, ["p"], "guarded")
    assert "shut (guarded)" in " ".join(cli.run("config", "check", str(path)).stdout.split())
    path.write_text(path.read_text() + "backend: her\n")
    assert "no backend 'her'; did you mean 'here'" in cli.run("config", "check", str(path)).stderr
    path.write_text(path.read_text().replace("backend: her\n", "backend: here\n"))
    shown = cli.json("config", "show", "-c", str(path), "-b", "shut", "--json")
    assert (shown["backend"], shown["env"], shown["max_sandboxes"]) == ("guarded", {"WHO": "pool"}, 2)
    assert TOKEN not in json.dumps(shown)
