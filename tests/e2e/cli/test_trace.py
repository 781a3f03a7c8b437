"""`--trace FILE` and `hermes-exec trace`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.cli.conftest import Cli


def test_the_command_line_writes_and_shows_traces(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "trace")
    assert cli.run("run", "--trace", path, "--", "sleep 0.2; echo hush").stdout == "hush\n"
    listed = cli.run("trace", path)
    assert "exec.run" in listed.stdout
    assert "hush" not in listed.stdout
    (slow,) = [call for call in cli.json("trace", path, "--json") if call["method"] == "exec.run"]
    assert slow["phases_s"]["exec"] >= 0.2
    life = cli.run("trace", path, "--call", str(slow["id"])).stdout
    assert [word for word in ("queue", "wire →", "exec", "wire ←", "REQUEST", "RESPONSE") if word not in life] == []
    shown = cli.json("trace", path, "--call", str(slow["id"]), "--json")
    assert len(shown["frames"]) == shown["frame_count"]
    assert cli.json("trace", path, "--slower", "1000", "--json") == []
    assert cli.run("trace", path, "--call", "999").returncode == 2
    assert cli.run("trace", str(tmp_path / "none")).returncode != 0


def test_what_a_trace_of_somebody_else_holds_is_shown_and_not_obeyed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    lines: list[dict[str, object]] = [
        {"trace": 1},
        {"t": 1, "sandbox": "[red]\x1b[31m", "begun": 1, "method": "\x1b]0;x\x07"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for more in ([], ["--call", "1"]):
        done = cli.run("trace", str(path), *more)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "[red]" in done.stdout
