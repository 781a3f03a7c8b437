"""Behaviours of hermes-agent's tools, called as an agent calls them: in slots in both ways, and on its own docker."""

from __future__ import annotations

import gc
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.doors.hermes.conftest import HOME, WAYS, Way, call, configure, load_plugins

BACKGROUND = "hermes-agent starts it by `nohup` in a shell, whose process it ends alone, and gives it no stdin"
DIFFERS = {
    ("local", "background_kill"): BACKGROUND,
    ("docker", "background_kill"): BACKGROUND,
    ("its-docker", "background_kill"): BACKGROUND,
    ("local", "background_stdin"): BACKGROUND,
    ("docker", "background_stdin"): BACKGROUND,
    ("its-docker", "background_stdin"): BACKGROUND,
    ("its-docker", "both_streams"): "the order of the streams is not kept",
    ("its-docker", "speed"): "`docker exec` for each command",
    ("its-docker", "function"): "functions are kept as they were when the container started",
    ("its-docker", "timeout"): "`docker exec` is ended, the processes in the container are not",
    ("its-docker", "interrupt"): "`docker exec` is ended, the processes in the container are not",
}
"""Behaviours that a way does not have."""
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WHOLE = ("tools", "its-docker")


@pytest.fixture(
    scope="module",
    params=[pytest.param(w, id=n, marks=[pytest.mark.whole] if n in WHOLE else []) for n, w in WAYS.items()],
)
def way(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> Iterator[Way]:
    from tools.terminal_tool import cleanup_all_environments, clear_session_cwd

    with pytest.MonkeyPatch.context() as patch:
        for name, value in configure(HOME, request.param, docker_image("debian")).items():
            patch.setenv(name, value)
        load_plugins()
        clear_session_cwd("default")
        yield request.param
        cleanup_all_environments()
        with warnings.catch_warnings(action="ignore"):
            gc.collect()  # hermes-agent leaves pipes of `docker exec` open


@pytest.fixture(autouse=True)
def expect_failure(request: pytest.FixtureRequest, way: Way) -> None:
    if reason := DIFFERS.get((way.name, request.node.originalname.removeprefix("test_"))):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=way.is_ours))


def run(command: str, **more: Any) -> dict[str, Any]:
    return call("terminal", {"command": command, **more})


def output(command: str, **more: Any) -> str:
    return str(run(command, **more)["output"]).strip()


def directory() -> str:
    return output("mktemp -d")


def wait_until(condition: Callable[[], bool], limit_s: float = 20) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def running(program: str) -> bool:
    """Whether a process of the sandbox runs this program, and not only a shell that will start it."""
    from tools.terminal_tool import get_active_env

    lines = "for each in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$each; echo; done 2>/dev/null"
    command = f"{lines} | grep -c '^{program}'"
    return str(get_active_env("default").execute(command)["output"]).strip() != "0"


def test_place(way: Way) -> None:
    name = output("hostname")
    if way.is_ours:
        from tools.terminal_tool import get_active_env

        environment: Any = get_active_env("default")
        assert type(environment).__name__ == "SlotEnvironment"
        assert name == environment.open_slot().run("hostname").stdout.strip()
        assert output("pwd") == ("/root" if way.name == "docker" else "/workspace")


def test_exit_code() -> None:
    assert run("exit 7")["exit_code"] == 7
    assert run("true")["exit_code"] == 0
    assert run("no-such-program")["exit_code"] == 127


def test_export_and_directory() -> None:
    place = directory()
    run(f"export FRUIT=apple; cd {place}")
    assert output("echo $FRUIT; pwd").split() == ["apple", place]
    run("cd /")


def test_function() -> None:
    run("greet() { echo hello $1; }")
    assert output("greet you") == "hello you"


def test_variable() -> None:
    run("COUNT=3; export COUNT")
    assert output("echo $((COUNT + 1))") == "4"


def test_workdir() -> None:
    assert output("pwd", workdir="/usr") == "/usr"
    result = run("pwd", workdir="/no/such/directory")
    assert result["exit_code"] != 0
    assert "/no/such/directory" in json.dumps(result)
    run("cd /")


def test_timeout() -> None:
    began = time.monotonic()
    result = run("echo before; sleep 321", timeout=1)
    assert result["exit_code"] == 124
    assert "before" in result["output"]
    assert time.monotonic() - began < 15
    assert not running("sleep 321")


def test_background_child() -> None:
    began = time.monotonic()
    assert output("sh -c 'sleep 322 &' ; echo done") == "done"
    assert time.monotonic() - began < 20
    assert running("sleep 322")
    run("pkill -f 322 2>/dev/null || kill $(grep -l '[3]22' /proc/[0-9]*/cmdline | cut -d/ -f3) 2>/dev/null; true")


def test_both_streams() -> None:
    assert output("echo one; echo two >&2; echo three").split() == ["one", "two", "three"]


def test_many_lines() -> None:
    result = run("seq 200000")
    assert result["exit_code"] == 0
    assert result["output"].startswith("1\n2\n")
    assert result["output"].strip().endswith("199999\n200000")
    assert "TRUNCATED" in result["output"] or "truncated" in result["output"]


def test_utf8() -> None:
    assert output("printf 'Grüße, 世界 🐚\\n'") == "Grüße, 世界 🐚"


def test_write_and_read() -> None:
    path = f"{directory()}/deep/notes.txt"
    content = "first 'line'\nsecond \"line\" $HOME\nÄ 世\n"
    assert "error" not in call("write_file", {"path": path, "content": content}) or None
    assert output(f"cat {path}") == content.strip()
    assert 'second "line" $HOME' in str(call("read_file", {"path": path})["content"])


def test_patch() -> None:
    path = f"{directory()}/a.py"
    call("write_file", {"path": path, "content": "def f():\n    return 1\n"})
    result = call("patch", {"mode": "replace", "path": path, "old_string": "return 1", "new_string": "return 2"})
    assert result.get("success", True), result
    assert output(f"cat {path}") == "def f():\n    return 2"


def test_search() -> None:
    place = directory()
    for name in ("a.py", "b.txt"):
        call("write_file", {"path": f"{place}/{name}", "content": "a needle here\n"})
    found = call("search_files", {"pattern": "needle", "path": place, "target": "content"})
    assert "a.py" in json.dumps(found)
    assert "b.txt" in json.dumps(found)
    assert "a.py" in json.dumps(call("search_files", {"pattern": "*.py", "path": place, "target": "files"}))


def test_large_file() -> None:
    path = f"{directory()}/large.txt"
    run(f"seq 60000 > {path}")
    result = call("read_file", {"path": path, "offset": 59999, "limit": 2})
    assert "59999" in result["content"]
    assert "60000" in result["content"]
    changed = call("patch", {"mode": "replace", "path": path, "old_string": "\n30000\n", "new_string": "\nchanged\n"})
    assert changed.get("success", True), changed
    assert output(f"wc -l < {path}; sed -n 30000p {path}; tail -1 {path}").split() == ["60000", "changed", "60000"]


def test_read_during_command() -> None:
    path = f"{directory()}/now.txt"
    call("write_file", {"path": path, "content": "now\n"})
    thread = threading.Thread(target=run, args=["sleep 4"])
    thread.start()
    assert wait_until(lambda: running("sleep 4"))
    assert "now" in str(call("read_file", {"path": path})["content"])
    assert thread.is_alive()
    thread.join()


def test_background_wait() -> None:
    started = run("sleep 1; echo finished", background=True)
    waited = call("process", {"action": "wait", "session_id": started["session_id"], "timeout": 30})
    assert waited["exit_code"] == 0
    assert "finished" in json.dumps(waited)


def test_background_kill() -> None:
    started = run("sleep 323", background=True)
    assert wait_until(lambda: running("sleep 323"))
    call("process", {"action": "kill", "session_id": started["session_id"]})
    assert wait_until(lambda: not running("sleep 323"), 3)


def test_background_stdin() -> None:
    started = run("read line; echo got $line", background=True)
    sent = call("process", {"action": "submit", "session_id": started["session_id"], "data": "a word"})
    assert "error" not in sent
    waited = call("process", {"action": "wait", "session_id": started["session_id"], "timeout": 10})
    assert "got a word" in json.dumps(waited)


def test_execute_code() -> None:
    place = directory()
    run(f"cd {place}")
    code = """
from hermes_tools import terminal, read_file, write_file
write_file("{place}/out.txt", "written")
print(terminal("cat {place}/out.txt")["output"], "written" in str(read_file("{place}/out.txt")))
""".replace("{place}", place)
    result = call("execute_code", {"code": code})
    assert result["status"] == "success", result
    assert "written True" in result["output"]
    assert output("pwd") == place
    failed = call("execute_code", {"code": "print('before'); raise ValueError('broken')"})
    assert failed["status"] == "error"
    assert "ValueError: broken" in json.dumps(failed)
    run("cd /")


def test_interrupt() -> None:
    from tools.interrupt import set_interrupt

    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(run("echo begun; sleep 324")))
    thread.start()
    assert wait_until(lambda: running("sleep 324"))
    set_interrupt(True, thread.ident)
    try:
        thread.join(15)
    finally:
        set_interrupt(False, thread.ident)
    assert results
    assert results[0]["exit_code"] == 130
    assert "begun" in results[0]["output"]
    assert "[Command interrupted]" in results[0]["output"]
    assert wait_until(lambda: not running("sleep 324"), 5)
