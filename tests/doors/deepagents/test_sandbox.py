"""A slot as the backend of a deep agent: agents, both forms of a slot, errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deepagents import create_deep_agent
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage

from hermes_exec import ConfigError, SandboxPool, SlotClosed
from hermes_exec.blocking import Slot
from hermes_langchain import HermesSandbox
from tests.support.doors import ROOT


@pytest.fixture(scope="module")
def slot() -> Iterator[Slot]:
    with SandboxPool("local", min_isolation="namespaces") as pool, pool.slot() as slot:
        yield slot


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools: object, **more: object) -> ScriptedModel:
        return self


def scripted(*calls: tuple[str, dict[str, object]]) -> ScriptedModel:
    messages: list[BaseMessage] = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{index}"}])
        for index, (name, args) in enumerate(calls)
    ]
    return ScriptedModel(messages=iter([*messages, AIMessage("done")]))


CALLS: tuple[tuple[str, dict[str, object]], ...] = (
    ("write_file", {"file_path": "/workspace/notes/a.py", "content": "print('he' + 'llo')\n"}),
    ("edit_file", {"file_path": "/workspace/notes/a.py", "old_string": "llo", "new_string": "llo from a slot"}),
    ("execute", {"command": "python3 /workspace/notes/a.py; cat /proc/self/cgroup >/dev/null; pwd"}),
    ("grep", {"pattern": "from a slot", "path": "/workspace", "output_mode": "content"}),
    ("ls", {"path": "/workspace/notes"}),
)


def test_agent_works_in_slot(slot: Slot) -> None:
    agent = create_deep_agent(model=scripted(*CALLS), backend=HermesSandbox(slot))
    result = agent.invoke({"messages": [{"role": "user", "content": "write a program"}]})
    replies = [message.content for message in result["messages"] if message.type == "tool"]
    assert "hello from a slot" in replies[2]
    assert "/workspace" in replies[2]
    assert "/workspace/notes/a.py" in replies[3]
    assert "a.py" in replies[4]
    assert slot.files.read_text("notes/a.py") == "print('he' + 'llo from a slot')\n"


def test_async_agent_works_in_slot_of_either_form(slot: Slot) -> None:
    async def run(backend: SandboxBackendProtocol) -> str:
        agent = create_deep_agent(model=scripted(*CALLS), backend=backend)
        result = await agent.ainvoke({"messages": [{"role": "user", "content": "write a program"}]})
        return str([message.content for message in result["messages"] if message.type == "tool"][2])

    async def run_in_own_loop() -> str:
        async with SandboxPool("local", min_isolation="namespaces") as pool, pool.slot() as own:
            return await run(HermesSandbox(own))

    assert "hello from a slot" in asyncio.run(run(HermesSandbox(slot)))
    assert "hello from a slot" in asyncio.run(run_in_own_loop())


def test_example_of_page_runs(
    docker_image: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "doors" / "deepagents.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    for theirs, ours in (("python:3.12-slim", docker_image("debian")), ('"anthropic:claude-opus-4-1"', "model")):
        assert theirs in code
        code = code.replace(theirs, ours)
    monkeypatch.chdir(tmp_path)
    exec(code, {"model": scripted(*CALLS)})
    assert (tmp_path / "result" / "notes" / "a.py").read_text() == "print('he' + 'llo from a slot')\n"


async def test_slot_of_async_form_refuses_blocking_call() -> None:
    async with SandboxPool("local", min_isolation="namespaces") as pool, pool.slot() as own:
        with pytest.raises(RuntimeError, match="ainvoke"):
            HermesSandbox(own).execute("true")


def test_wrong_argument_is_refused(slot: Slot) -> None:
    with pytest.raises(ConfigError, match="slot of a SandboxPool"):
        HermesSandbox("docker")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout_s"):
        HermesSandbox(slot, timeout_s=-1)


@pytest.mark.parametrize("path", ["", "/a\0b", "/\ud83d"])
def test_path_of_no_file_is_an_error_of_each_operation(slot: Slot, path: str) -> None:
    sandbox = HermesSandbox(slot)
    results = [
        sandbox.read(path),
        sandbox.write(path, "text"),
        sandbox.edit(path, "a", "b"),
        sandbox.delete(path),
        sandbox.ls(path),
        *sandbox.download_files([path]),
        *sandbox.upload_files([(path, b"text")]),
    ]
    assert [result.error for result in results if "invalid_path" not in (result.error or "")] == []


def test_text_that_utf8_cannot_encode_is_an_error(slot: Slot) -> None:
    sandbox = HermesSandbox(slot)
    assert "not UTF-8" in sandbox.write("/workspace/text", "\ud83d").error
    sandbox.write("/workspace/text", "old")
    assert "not UTF-8" in sandbox.edit("/workspace/text", "old", "\ud83d").error
    assert slot.files.read_text("text") == "old"


def test_large_file_is_downloaded(slot: Slot) -> None:
    slot.run("truncate -s 80M large", check=True)
    (answer,) = HermesSandbox(slot).download_files(["/workspace/large"])
    assert answer.content is not None
    assert len(answer.content) == 80 << 20


def test_execute_ends_process_tree_at_timeout(slot: Slot) -> None:
    sandbox = HermesSandbox(slot)
    answer = sandbox.execute("echo before; sleep 77 & sleep 77", timeout=1)
    assert answer.exit_code == 124
    assert answer.output == "before\n[the command timed out after 1 seconds]"
    assert not [process for process in slot.processes() if "77" in process.argv]


def test_cancelled_execute_ends_its_processes(slot: Slot) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(HermesSandbox(slot).aexecute("sleep 78"))
        await asyncio.to_thread(wait_for, slot, "78", True)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    wait_for(slot, "78", False)


def wait_for(slot: Slot, argument: str, running: bool) -> None:
    deadline = time.monotonic() + 20
    while any(argument in process.argv for process in slot.processes()) is not running:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lost_slot_is_no_result() -> None:
    with SandboxPool("local", min_isolation="namespaces") as pool:
        with pool.slot() as own:
            sandbox = HermesSandbox(own)
        with pytest.raises(SlotClosed):
            sandbox.execute("true")
        with pytest.raises(SlotClosed):
            sandbox.read("/etc/passwd")


def test_edit_keeps_line_ends(slot: Slot) -> None:
    sandbox = HermesSandbox(slot)
    slot.files.write_bytes("crlf.txt", b"one\r\ntwo\r\nthree\r\n")
    assert sandbox.edit("/workspace/crlf.txt", "one\ntwo", "1\n2").occurrences == 1
    assert slot.files.read_bytes("crlf.txt") == b"1\r\n2\r\nthree\r\n"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.py", ["src/a.py", "src/deep/b.py"]),
        ("src/*.py", ["src/a.py"]),
        ("**/*.{py,txt}", ["src/a.py", "src/deep/b.py", "top.txt"]),
        ("/*.txt", ["top.txt"]),
        ("*.yml", [".github/ci.yml"]),
        ("**/*.yml", []),
        (".env", [".env"]),
        ("[!s]*.txt", ["top.txt"]),
    ],
)
def test_glob_follows_the_rules_of_deepagents(slot: Slot, pattern: str, names: list[str]) -> None:
    for name in ("src/a.py", "src/deep/b.py", "top.txt", ".github/ci.yml", ".env"):
        slot.files.write_text(f"globs/{name}", "needle\n")
    sandbox = HermesSandbox(slot)
    root = "/workspace/globs"
    assert [match["path"] for match in sandbox.glob(pattern, root).matches] == [f"{root}/{name}" for name in names]
    assert sorted(m["path"] for m in sandbox.grep("needle", root, pattern).matches) == [f"{root}/{n}" for n in names]


def test_glob_refuses_parent_directories(slot: Slot) -> None:
    assert "traversal" in HermesSandbox(slot).glob("../*", "/workspace").error


def test_grep_stops_at_max_count(slot: Slot) -> None:
    slot.files.write_text("many.txt", "needle\n" * 9)
    answer = HermesSandbox(slot).grep("needle", "/workspace/many.txt", max_count=4)
    assert (len(answer.matches), answer.truncated) == (4, True)


def test_delete_removes_directory(slot: Slot) -> None:
    slot.files.write_text("tree/a/b", "x")
    sandbox = HermesSandbox(slot)
    assert sandbox.delete("/workspace/tree").path == "/workspace/tree"
    assert "not found" in sandbox.delete("/workspace/tree").error
