"""The Toolbox itself: choice of tools, error results, budgets, notices, both kinds of slot."""

from __future__ import annotations

import json
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hermes_exec import ConfigError, ExecError, SandboxPool, SlotClosed
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import SHIPPED, Notice, Toolbox, ToolOptions, tool
from tests.e2e.tools.conftest import Caller


def names_of(toolbox: Toolbox) -> list[str]:
    schemas: Any = toolbox.schemas
    return [schema["function"]["name"] for schema in schemas]


async def test_toolsets_and_tools_are_chosen_by_name(slot: Slot) -> None:
    default = list(SHIPPED[:6])
    assert names_of(Toolbox(slot)) == default
    assert names_of(Toolbox(slot, ["terminal"])) == ["terminal", "process"]
    assert names_of(Toolbox(slot, toolsets=["file"])) == ["read_file", "write_file", "patch", "search_files"]
    assert names_of(Toolbox(slot, tools=["read_file", "terminal"])) == ["terminal", "read_file"]
    assert names_of(Toolbox(slot, ["terminal"], tools=["patch"])) == ["terminal", "process", "patch"]
    mixed = Toolbox(slot, ["debugging"])
    assert (names_of(mixed), mixed.unavailable) == (default, ("web_search", "web_extract"))


async def test_it_starts_afresh_after_a_reset(slot: Slot) -> None:
    toolbox = Toolbox(slot)
    await toolbox.call("terminal", {"command": "mkdir sub; cd sub; x=1"})
    await toolbox.call("write_file", {"path": "a.txt", "content": "one\n"})
    assert slot.resets == 0
    await slot.reset()
    assert slot.resets == 1
    result = await toolbox.call("terminal", {"command": "pwd; echo ${x:-new}; ls"})
    assert result.data["output"] == f"{slot.workdir}\nnew\n"
    await toolbox.call("write_file", {"path": "a.txt", "content": "two\n"})
    assert await slot.files.read_text(f"{slot.workdir}/a.txt") == "two\n"


async def test_what_is_not_here_is_refused_by_name(slot: Slot) -> None:
    with pytest.raises(ConfigError, match="'web_search' is not available"):
        Toolbox(slot, tools=["web_search"])
    with pytest.raises(ConfigError, match="no tool is left"):
        Toolbox(slot, ["web"])
    with pytest.raises(ConfigError, match="did you mean 'terminal'"):
        Toolbox(slot, ["terminall"])
    with pytest.raises(ConfigError, match="lists of names"):
        Toolbox(slot, "terminal")


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "told"),
    [
        ("terminl", {}, "unknown_tool", "Did you mean 'terminal'"),
        ("web_search", {}, "unknown_tool", "not available here"),
        ("terminal", '{"command": "ls', "malformed_json", "ends too early"),
        ("terminal", '{"command": "ls"} ok', "malformed_json", "followed by text"),
        ("terminal", '{"command": "ls"}{"command": "ls"}', "malformed_json", "second JSON value"),
        ("terminal", {}, "missing_argument", "'command' is missing"),
        ("terminal", {"cmd": "ls"}, "unknown_argument", "Did you mean 'command'"),
        ("terminal", {"command": ["ls"]}, "wrong_type", "must be a string"),
        ("terminal", {"command": "ls", "timeout": 0}, "bad_value", "at least 1"),
        ("terminal", {"command": "ls", "timeout": 601}, "timeout_too_long", "background=true"),
        ("process", {"action": "pol"}, "bad_value", "Did you mean 'poll'"),
        ("process", {"action": "poll"}, "missing_argument", "session_id"),
        ("patch", {"mode": "replace"}, "missing_argument", "'path'"),
        ("patch", {"mode": "patch"}, "missing_argument", "'patch'"),
        ("read_file", {"path": ""}, "bad_value", "empty"),
        ("search_files", {"pattern": "("}, "bad_pattern", "backslash"),
    ],
)
async def test_wrong_calls_are_results_that_say_what_to_do(
    toolbox: Toolbox, name: str, arguments: str | dict[str, object], kind: str, told: str
) -> None:
    result = await toolbox.call(name, arguments)
    assert not result.ok
    assert result.error_kind == kind
    assert result.data["error_kind"] == kind
    assert told in str(result.data["error"])
    assert json.loads(result.content) == result.data


async def test_arguments_are_coerced(toolbox: Toolbox, slot: Slot) -> None:
    await slot.files.write_text("a", "one\ntwo\nthree\n")
    result = await toolbox.call("read_file", '{"path": "a", "offset": "2", "limit": "1"}')
    assert result.data["content"] == "2|two"
    assert (await toolbox.call("read_file", {"path": "a", "limit": 999_999})).ok
    started = await toolbox.call("terminal", {"command": "sleep 9", "background": "true", "watch_patterns": "ready"})
    assert started.data["watch_patterns"] == ["ready"]


async def test_a_long_result_is_kept_in_the_slot(slot: Slot) -> None:
    await slot.files.write_text("many.txt", "".join(f"needle {i:05}\n" for i in range(3_000)))
    toolbox = Toolbox(slot)
    result = await toolbox.call(
        "search_files", {"pattern": "needle", "limit": 10_000, "context": 2}, call_id="call/../7"
    )
    assert result.spilled is None
    small = Toolbox(slot, options=ToolOptions(result_limit_chars=20_000))
    result = await small.call("search_files", {"pattern": "needle", "limit": 10_000}, call_id="call/../7")
    assert result.spilled == f"{slot.tmp}/hermes-results/call_.._7.txt"
    assert result.content.startswith("<persisted-output>")
    assert len(result.content) < 2_200
    assert "needle 02999" in str(result.data["matches_text"])
    page = await small.call("read_file", {"path": result.spilled, "offset": 2_900, "limit": 200})
    assert "needle 02999" in str(page.data["content"])
    big = await Toolbox(slot, options=ToolOptions(result_limit_chars=100)).call("read_file", {"path": "many.txt"})
    assert big.spilled is None


async def test_the_results_of_a_turn_fit_its_budget(slot: Slot) -> None:
    toolbox = Toolbox(slot)
    results = [await toolbox.call("terminal", {"command": f"seq 1 {n}"}) for n in (6_000, 10, 9_000)]
    assert await toolbox.fit_turn(results) == results
    fitted = await toolbox.fit_turn(results, 40_000)
    assert [result.spilled is not None for result in fitted] == [False, False, True]
    assert sum(len(result.content) for result in fitted) <= 40_000
    assert [result.call_id for result in fitted] == [result.call_id for result in results]


async def test_a_full_disk_gives_a_cut_result(slot: Slot) -> None:
    await slot.files.write_bytes(f"{slot.tmp}/hermes-results", b"in the way")
    result = await Toolbox(slot, options=ToolOptions(result_limit_chars=1_000)).call(
        "terminal", {"command": "seq 1 900"}
    )
    assert result.content.startswith("<truncated-output>")
    assert result.spilled is None
    assert str(result.data["output"]).endswith("900\n")


async def test_host_tools_are_called_with_fitted_arguments(slot: Slot) -> None:
    @tool
    async def add(left: int, right: int = 1) -> int:
        """Add."""
        await anyio.lowlevel.checkpoint()
        return left + right

    @tool(name="shout", description="Shout.")
    def loud(text: str) -> dict[str, object]:
        return {"text": text.upper()}

    toolbox = Toolbox(slot, [], tools=[add, loud])
    assert names_of(toolbox) == ["add", "shout"]
    assert (await toolbox.call("add", '{"left": "41"}')).data == {"result": 42}
    assert (await toolbox.call("shout", {"text": "a"})).data == {"text": "A"}
    assert (await toolbox.call("add", {})).error_kind == "missing_argument"
    with pytest.raises(ConfigError, match="another name"):
        Toolbox(slot, tools=[tool(name="terminal")(loud.function)])


async def test_trouble_of_the_infrastructure_is_never_a_result(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        toolbox = Toolbox(slot)
        assert (await toolbox.call("terminal", {"command": "true"})).ok
    for name, arguments in (
        ("terminal", {"command": "true"}),
        ("read_file", {"path": "a"}),
        ("process", {"action": "list"}),
    ):
        with pytest.raises(SlotClosed):
            await toolbox.call(name, arguments)


async def test_an_error_of_a_host_tool_that_is_ours_passes(slot: Slot) -> None:
    @tool
    def lost() -> None:
        """Lose the sandbox."""
        raise ExecError("the sandbox is gone")

    with pytest.raises(ExecError, match="the sandbox is gone"):
        await Toolbox(slot, tools=[lost]).call("lost")


async def test_a_host_tool_that_hangs_is_ended_by_its_time_limit(slot: Slot) -> None:
    released = threading.Event()

    @tool(timeout_s=0.2)
    async def wait() -> None:
        """Wait."""
        await anyio.sleep_forever()

    @tool(timeout_s=0.2)
    def hang() -> bool:
        """Hang in a thread."""
        return released.wait(30)

    toolbox = Toolbox(slot, [], tools=[wait, hang])
    with anyio.fail_after(10):
        for name in ("wait", "hang"):
            result = await toolbox.call(name)
            assert (result.ok, result.error_kind) == (False, "timeout")
            assert f"{name} took longer than 0.2 s" in result.content
    released.set()


async def test_a_timeout_of_a_host_tools_own_is_its_failure(slot: Slot) -> None:
    @tool
    async def ask() -> None:
        """Ask."""
        raise TimeoutError("the library is closed")

    assert (await Toolbox(slot, [], tools=[ask]).call("ask")).error_kind == "tool_failed"


async def until(toolbox: Toolbox, kind: str) -> Notice:
    with anyio.fail_after(20):
        while True:
            for notice in await toolbox.notices():
                if notice.kind == kind:
                    return notice


async def test_a_notice_comes_once_when_a_process_ends(toolbox: Toolbox, call: Caller) -> None:
    started = await call("terminal", command="echo result; exit 5", background=True, notify_on_complete=True)
    notice = await until(toolbox, "completed")
    assert notice.session_id == started["session_id"]
    assert notice.data == {"exit_code": 5, "output": "result\n"}
    assert await toolbox.notices() == []


async def test_a_notice_tells_of_a_watched_string(toolbox: Toolbox, call: Caller) -> None:
    command = "echo starting; echo server ready on 80; exec sleep 60"
    started = await call("terminal", command=command, background=True, watch_patterns=["ready"])
    notice = await until(toolbox, "matched")
    assert (notice.session_id, notice.data["lines"]) == (started["session_id"], ["server ready on 80"])
    assert await toolbox.notices() == []


async def test_both_kinds_of_notice_exclude_each_other(toolbox: Toolbox, call: Caller) -> None:
    data = await call("terminal", command="true", background=True, notify_on_complete=True, watch_patterns=["x"])
    assert "watch_patterns" not in data
    assert "dropped" in data["watch_patterns_ignored"]
    await until(toolbox, "completed")


async def test_who_waited_for_the_end_gets_no_notice_of_it(toolbox: Toolbox, call: Caller) -> None:
    started = await call("terminal", command="true", background=True, notify_on_complete=True)
    await call("process", action="wait", session_id=started["session_id"])
    assert await toolbox.notices() == []


async def test_log_of_ended_process_has_exit_code(toolbox: Toolbox, call: Caller) -> None:
    started = await call("terminal", command="seq 3; exit 5", background=True, notify_on_complete=True)
    one = started["session_id"]
    while (logged := await call("process", action="log", session_id=one, offset=0, limit=2))["status"] == "running":
        pass
    assert (logged["output"], logged["exit_code"], logged["completion_reason"]) == ("1\n2", 5, "exited")
    assert (await toolbox.notices())[0].data["exit_code"] == 5  # the end of the output was not shown
    started = await call("terminal", command="exit 6", background=True, notify_on_complete=True)
    one = started["session_id"]
    while (logged := await call("process", action="log", session_id=one))["status"] == "running":
        pass
    assert logged["exit_code"] == 6
    assert await toolbox.notices() == []


@pytest.mark.parametrize("action", ["wait", "log"])
async def test_end_in_result_keeps_matches(toolbox: Toolbox, call: Caller, action: str) -> None:
    command = "echo READY; seq 5000"
    one = (await call("terminal", command=command, background=True, watch_patterns=["READY"]))["session_id"]
    while (await call("process", action=action, session_id=one))["status"] == "running":
        pass
    assert [notice.kind for notice in await toolbox.notices()] == ["matched"]
    assert await toolbox.notices() == []


async def test_watch_matches_character_in_two_pieces(toolbox: Toolbox, call: Caller) -> None:
    command = r"printf 'caf\303'; read go; printf '\251 READY\033'; read go; printf '[1mX\n'; exec sleep 60"
    one = (await call("terminal", command=command, background=True, watch_patterns=["café READYX"]))["session_id"]
    for _ in range(2):
        before = (await call("process", action="poll", session_id=one))["output_preview"]
        while not before:
            before = (await call("process", action="poll", session_id=one))["output_preview"]
        assert await toolbox.notices() == []
        await call("process", action="submit", session_id=one)
        while (await call("process", action="poll", session_id=one))["output_preview"] == before:
            pass
    assert (await until(toolbox, "matched")).data["lines"] == ["café READYX"]


async def test_closing_a_toolbox_ends_nothing(slot: Slot) -> None:
    async with Toolbox(slot) as first:
        started = await first.call("terminal", {"command": "sleep 60", "background": True})
        await first.call("terminal", {"command": "cd /"})
    second = Caller(Toolbox(slot))
    polled = await second("process", action="poll", session_id=started.data["session_id"])
    assert polled["status"] == "running"
    assert await second.sh("pwd") == f"{slot.workspace}\n"


def test_a_blocking_slot_gives_a_blocking_toolbox() -> None:
    @tool
    async def add(left: int, right: int) -> int:
        """Add."""
        return left + right

    with SandboxPool("local") as pool, pool.slot() as slot, Toolbox(slot, ["terminal", "file"], tools=[add]) as toolbox:
        assert names_of(toolbox) == [*SHIPPED[:6], "add"]
        assert toolbox.call("terminal", {"command": "export A=1; cd /tmp"}).ok
        assert toolbox.call("terminal", '{"command": "echo $A; pwd"}').data["output"] == "1\n/tmp\n"
        assert toolbox.call("add", {"left": 1, "right": 2}).data == {"result": 3}
        results = [toolbox.call("terminal", {"command": "seq 1 5000"})]
        assert toolbox.fit_turn(results, 5_000)[0].spilled
        toolbox.call("terminal", {"command": "true", "background": True, "notify_on_complete": True})
        while not (notices := toolbox.notices()):
            pass
        assert notices[0].kind == "completed"
        with pytest.raises(ConfigError):
            Toolbox(slot, tools=["nothing"])


async def test_toolbox_of_something_else_than_a_slot_is_refused(slot: Slot) -> None:
    for other in (SandboxPool("local"), slot.files, None):
        with pytest.raises(ConfigError, match=f"not in a {type(other).__name__}"):
            Toolbox(other)  # type: ignore[call-overload]
