"""`hermes-exec checkpoint` and `hermes-exec run --from`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def hermes(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hermes_exec.cli.main", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_directories_of_this_host_are_saved_and_run_from(tmp_path: Path) -> None:
    saved = hermes("checkpoint", "save", "x.hxcp", "-b", "local", "--", "echo made > note; echo done", cwd=tmp_path)
    assert (saved.returncode, saved.stdout) == (0, ""), saved
    done, left_out = saved.stderr.splitlines()
    assert done == "done"
    assert "left out: files outside of " in left_out
    facts = json.loads(hermes("checkpoint", "show", "x.hxcp", "--json", cwd=tmp_path).stdout)
    assert (facts["image"], facts["holds"]) == (None, "directories")
    assert "workspace, home, tmp, var-tmp" in facts["layers"][0]
    both = hermes("run", "--from", "x.hxcp", "-n", "2", "--", "cat note", cwd=tmp_path)
    assert (both.returncode, both.stdout) == (0, "0: made\n1: made\n"), both
    exported = hermes("checkpoint", "export", "x.hxcp", "image.tar", "--base", "base.tar", cwd=tmp_path)
    assert exported.returncode == 2
    assert "Make a checkpoint of a slot with a root of its own" in exported.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"x.hxcp"}


@pytest.mark.docker
def test_directories_of_containers_are_saved_and_run_from(docker_image: Callable[[str], str], tmp_path: Path) -> None:
    target = ("-b", "docker", "-i", docker_image("debian"), "-o", "slot_root=shared", "-o", "slots_per_sandbox=2")
    saved = hermes("checkpoint", "save", "x.hxcp", *target, "--", "echo made > note", cwd=tmp_path)
    assert saved.returncode == 0, saved
    ran = hermes("run", "-b", "docker", "--from", "x.hxcp", "--", "cat note", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "made\n"), ran
    here = hermes("run", "-b", "local", "--from", "x.hxcp", "--", "cat note", cwd=tmp_path)
    assert (here.returncode, here.stdout) == (2, "")
    assert "was saved over the image" in here.stderr


@pytest.mark.docker
def test_saved_file_is_shown_and_run_from(docker_image: Callable[[str], str], tmp_path: Path) -> None:
    image = docker_image("debian")
    target = ("-b", "docker", "-i", image)
    failed = hermes("checkpoint", "save", "x.hxcp", *target, "--", "echo no; exit 3", cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (3, "")
    assert "nothing is saved" in failed.stderr
    assert list(tmp_path.iterdir()) == []
    service, script = ("--on-fork", "echo began >> note"), "echo made > note; sleep 100 & echo done"
    saved = hermes("checkpoint", "save", "x.hxcp", *target, *service, "--", script, cwd=tmp_path)
    lost = "processes with their memory, connections and deleted files: 1 (sleep)"
    assert (saved.returncode, saved.stderr) == (0, f"done\nleft out: {lost}\n"), saved
    facts = json.loads(hermes("checkpoint", "show", "x.hxcp", "--json", cwd=tmp_path).stdout)
    assert (facts["image"], facts["workdir"], len(facts["layers"])) == (image, "/workspace", 1)
    assert (facts["on_fork"], facts["left_out"]) == (["echo began >> note"], [lost])
    assert image in hermes("checkpoint", "show", "x.hxcp", cwd=tmp_path).stdout
    ran = hermes("run", "-b", "docker", "--from", "x.hxcp", "--", "cat note; exit 4", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (4, "made\nbegan\n"), ran
    both = hermes("run", "-b", "docker", "--from", "x.hxcp", "-n", "2", "--", "cat note", cwd=tmp_path)
    assert (both.returncode, both.stdout) == (0, "0: made\n0: began\n1: made\n1: began\n"), both
    subprocess.run(["docker", "save", image, "-o", tmp_path / "base.tar"], check=True)
    exported = hermes("checkpoint", "export", "x.hxcp", "image.tar", "--base", "base.tar", "--json", cwd=tmp_path)
    assert (exported.returncode, json.loads(exported.stdout)) == (0, {"left_out": []})
    (tmp_path / "bad.hxcp").write_text("no checkpoint")
    for command in (("checkpoint", "show", "bad.hxcp"), ("run", "--from", "bad.hxcp", "--", "true")):
        refused = hermes(*command, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "ConfigError" in refused.stderr


def test_file_that_cannot_be_written_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (".", "/dev/null", "missing/x.hxcp", "file/x.hxcp"):
        refused = hermes("checkpoint", "save", path, "-b", "docker", "-i", "none", "--", "true", cwd=tmp_path)
        assert "Error: [Errno" in refused.stderr
        assert refused.stdout == ""
        assert refused.stderr.count("\n") == 1, refused.stderr
    assert Path("/dev/null").is_char_device()
    exported = hermes("checkpoint", "export", "x.hxcp", "file", "--base", "base.tar", cwd=tmp_path)
    assert "name a new file" in exported.stderr
    assert exported.stderr.count("\n") == 1, exported.stderr
