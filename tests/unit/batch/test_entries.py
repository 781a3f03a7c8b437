"""Entries of a row: their values, their effect on the rollout, and what is refused before anything is started."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import ScriptedModel
from hermes_agent.scoring import CommandCheck
from hermes_batch import BatchConfig, read_dataset
from hermes_batch.task_slot import SetUpCommand
from hermes_batch.units import Unit
from hermes_exec import DockerConfig, ProfileConfig
from hermes_exec.errors import ConfigError


def write(directory: Path, *rows: dict[str, Any]) -> Path:
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": "p", **row}) + "\n" for row in rows))
    return path


def config(directory: Path, *rows: dict[str, Any], **settings: Any) -> BatchConfig:
    return BatchConfig(dataset=write(directory, *rows), out=directory / "out", model=ScriptedModel([]), **settings)


def test_entries_take_precedence_over_settings_of_the_run(tmp_path: Path) -> None:
    entries = {
        "toolsets": ["file"],
        "system": "be brief",
        "setup": "make",
        "check": "true",
        "max_turns": 3,
        "deadline_s": 5,
        "check_timeout_s": 7,
        "sampling": {"top_p": 0.5, "temperature": 0},
    }
    run = config(
        tmp_path,
        entries,
        {"check": "true"},
        system_prompt="-",
        max_turns=9,
        deadline_s=90.0,
        check_timeout_s=80.0,
        setup_timeout_s=11.0,
        sampling={"top_p": 0.9, "min_p": 0.1},
    )
    own, common = (run.make_rollout(Unit(task)) for task in run.read_tasks())
    assert own.messages[0] == {"role": "system", "content": "be brief"}
    assert common.messages[0] == {"role": "system", "content": "-"}
    assert (own.toolsets, common.toolsets) == (("file",), ("terminal", "file"))
    assert (own.prepare, common.prepare) == (SetUpCommand("make", 11.0), None)
    assert [(rollout.loop["max_turns"], rollout.loop["deadline_s"]) for rollout in (own, common)] == [(3, 5), (9, 90)]
    assert own.scoring is not None
    assert common.scoring is not None
    assert (own.scoring.check, common.scoring.check) == (CommandCheck("true", 7), CommandCheck("true", 80))
    assert own.loop["sampling"] == {"top_p": 0.5, "min_p": 0.1, "temperature": 0}
    assert common.loop["sampling"] == {"top_p": 0.9, "min_p": 0.1}


def test_toolsets_of_a_row_are_not_drawn(tmp_path: Path) -> None:
    run = config(tmp_path, {"toolsets": ["file"]}, distribution="terminal_only")
    assert run.make_rollout(Unit(run.read_tasks()[0])).toolsets == ("file",)


def test_binary_files_are_bytes(tmp_path: Path) -> None:
    binary = {"base64": base64.b64encode(b"\0\xff").decode()}
    files = {"a": binary, "b": "text", "c": None, "d": {"base64": None}}
    (task,) = read_dataset(write(tmp_path, {"files": files, "check": "true", "check_files": {"e": binary}}))
    assert (task.files, task.check_files) == ({"a": b"\0\xff", "b": "text"}, {"e": b"\0\xff"})


PROFILES = {"big": {"limits": {"memory_mb": 512}, "env": {"A": "1"}, "min_sandboxes": 1}}


def test_network_and_env_become_an_inline_profile(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {},
        {"profile": "big"},
        {"network": False},
        {"env": {"B": "2", "C": None}},
        {"profile": "big", "network": True, "env": {"B": "2"}},
    ]
    run = config(tmp_path, *rows, backend_options={"profiles": PROFILES})
    profiles = [run.make_rollout(Unit(task)).profile for task in run.read_tasks()]
    assert profiles == [
        None,
        "big",
        ProfileConfig(network=False, env={}),
        ProfileConfig(env={"B": "2"}),
        ProfileConfig.of({"limits": {"memory_mb": 512}, "env": {"A": "1", "B": "2"}, "network": True}),
    ]


def test_entries_that_make_other_sandboxes_get_room(tmp_path: Path) -> None:
    rows = [{"network": network} for network in (True, False) for _ in range(20)]
    run = config(tmp_path, *rows, backend="docker", image="x", workers=17, slots_per_sandbox=8)
    assert run.make_pool(run.read_tasks()).config.max_sandboxes == 6


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"toolsets": "terminal"}, "toolsets: is not JSON"),
        ({"toolsets": [1]}, "toolsets.0: Input should be a valid string"),
        ({"toolsets": ["terminl"]}, "unknown toolset 'terminl'.*terminal"),
        ({"toolsets": []}, r"toolsets: no tool of \(none\) is available"),
        ({"toolsets": ["web"]}, "toolsets: no tool of web is available"),
        ({"toolsets": ["file"], "cwd": "a"}, "cwd: it is where the terminal starts, and the row's toolsets have no"),
        ({"system": " "}, "system: is blank"),
        ({"setup": ""}, "setup: is blank"),
        ({"setup": ["make"]}, "setup: Input should be a valid string"),
        ({"solution": "a\0"}, "solution: has a NUL byte"),
        ({"max_turns": 0}, "max_turns: Input should be greater than or equal to 1"),
        ({"max_turns": "3"}, "max_turns: Input should be a valid integer"),
        ({"max_turns": True}, "max_turns: Input should be a valid integer"),
        ({"deadline_s": 0}, "deadline_s: Input should be greater than 0"),
        ({"check_timeout_s": -1}, "check_timeout_s: Input should be greater than 0"),
        ({"network": "no"}, "network: Input should be a valid boolean"),
        ({"profile": "big"}, "profile: there is no profile 'big'; there are none"),
        ({"env": {"A": 1}}, "env.A: Input should be a valid string"),
        ({"env": {"A=": "1"}}, "env: 'A=' cannot be the name of an environment variable"),
        ({"files": {"a": {"base64": "?"}}}, "files: 'a' is not base64"),
        ({"files": {"a": {"hex": "00"}}}, "files: 'a' is neither a text nor"),
        ({"files": {"a": 1}}, "files: 'a' is neither a text nor"),
        ({"check_files": {"a": "1"}}, "check_files, score_in and keep require a check"),
        ({"keep": ["a"]}, "check_files, score_in and keep require a check"),
        ({"collect": ["../x"]}, r"collect: '\.\./x' is not a path inside"),
        ({"collect": ["/etc/*"]}, r"collect: '/etc/\*' is not a path inside"),
        ({"collect": {"a": "b"}}, "collect: Input should be a valid list"),
        ({"image": "debian"}, "image: the backend 'local' has no images, and the row has 'debian'"),
        ({"sampling": {"temprature": 1}}, "sampling: there is no parameter 'temprature'; did you mean 'temperature'"),
        ({"sampling": {"top-p": 1}}, "sampling: there is no parameter 'top-p'; did you mean 'top_p'"),
        ({"sampling": {"messages": []}}, "sampling: 'messages' is set by the run itself"),
        ({"sampling": {"stream": True}}, "sampling: 'stream' is set by the run itself"),
        ({"sampling": {"temperature": "hot"}}, "sampling: temperature is a number, not 'hot'"),
        ({"sampling": {"max_tokens": 1.5}}, "sampling: max_tokens is an integer, not 1.5"),
        ({"sampling": {"max_tokens": 0}}, "sampling: max_tokens is at least 1, not 0"),
        ({"sampling": [1]}, "sampling: Input should be a valid dictionary"),
    ],
)
def test_wrong_entry_is_refused_with_its_row(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"line 2: {message}"):
        config(tmp_path, {}, row).read_tasks()


def test_scorer_takes_the_place_of_a_check(tmp_path: Path) -> None:
    row = {"check_files": {"a": "1"}, "keep": ["b"], "check_timeout_s": 3}
    run = config(tmp_path, row, scorer=lambda *_: True)
    scoring = run.make_slot_rollout(run.read_tasks()[0]).scoring
    assert scoring is not None
    assert (scoring.files, scoring.keep, scoring.score_in) == ({"a": "1"}, ["b"], "sealed")


def test_parameters_of_an_endpoint_are_accepted(tmp_path: Path) -> None:
    sampling = {"chat_template_kwargs": {"thinking": True}, "dry_multiplier": 2, "top_k": -1, "seed": -3, "top_p": None}
    (task,) = read_dataset(write(tmp_path, {"sampling": sampling}))
    assert task.sampling == {name: value for name, value in sampling.items() if value is not None}


def test_system_entry_beside_a_system_message_is_refused(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(ConfigError, match="line 1: give either system or a system message"):
        read_dataset(write(tmp_path, {"prompt": None, "messages": messages, "system": "c"}))
    (task,) = read_dataset(write(tmp_path, {"prompt": None, "messages": messages[1:], "system": "c"}))
    assert task.beginning == [{"role": "system", "content": "c"}, messages[1]]


def test_errors_of_entries_and_settings_come_together(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {},
        {"max_turns": 0},
        {"profile": "big"},
        {"image": "x"},
        *[{"toolsets": [f"x{n}"]} for n in range(9)],
    ]
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, *rows).read_tasks()
    *reported, more = str(caught.value).splitlines()[1:]
    assert [line.partition(":")[0] for line in reported] == [f"line {n}" for n in range(2, 12)]
    assert more == "… and 2 more"


def test_images_are_checked_against_the_backend(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{}, {"image": "x"}, {"profile": "own"}]
    profiles = {"own": {"image": "y"}}
    with pytest.raises(ConfigError, match=r"line 1: image: the backend 'docker' needs one.*\n?(?!line [23])") as caught:
        config(tmp_path, *rows, backend="docker", backend_options={"profiles": profiles}).read_tasks()
    assert len(str(caught.value).splitlines()) == 2
    config(tmp_path, *rows, backend="docker", image="z", backend_options={"profiles": profiles}).read_tasks()
    config(tmp_path, *rows[1:], backend="docker", backend_options={"profiles": profiles}).read_tasks()


def test_image_of_a_record_is_that_of_its_slot(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"image": "row"}, {"profile": "own"}, {"profile": "none"}, {}]
    profiles = {"own": {"image": "profile"}, "none": {"network": False}}
    run = config(tmp_path, *rows, backend="docker", image="run", backend_options={"profiles": profiles})
    assert [run.image_of(task) for task in run.read_tasks()] == ["row", "profile", "run", "run"]
    run = config(tmp_path, {}, backend=DockerConfig(image="backend"))
    assert [run.image_of(task) for task in run.read_tasks()] == ["backend"]
    assert config(tmp_path, {}).image_of(run.read_tasks()[0]) is None
