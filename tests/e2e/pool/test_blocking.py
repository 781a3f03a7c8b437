"""The blocking face on a real sandbox."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import anyio
import pytest

from hermes_agent import AgentLoop, ScriptedModel
from hermes_exec import ConfigError, SandboxPool, SlotClosed, blocking
from hermes_exec.tools import Toolbox
from tests.support.outside import alive, runner_pid


@pytest.fixture
def pool() -> Iterator[blocking.SandboxPool]:
    with SandboxPool("local", slots_per_sandbox=4) as pool:
        yield pool


def test_the_same_names_give_values(pool: blocking.SandboxPool, tmp_path: Path) -> None:
    with pool.slot() as slot:
        assert slot.run("echo hi").stdout == "hi\n"
        slot.files.write_text("a", "text")
        assert slot.files.read_text("a") == "text"
        process = slot.spawn("cat", stdin=True)
        assert process.stdin is not None
        process.stdin.send(b"in\n")
        process.stdin.close()
        assert list(process.stdout) == [b"in\n"]
        assert process.wait(5).ok
        process.close()
        assert slot.spawned() == []
        with slot.session() as session:
            session.run("cd /usr")
            assert session.cwd == "/usr"
            assert session.peek("pwd; cd /").stdout == "/usr\n"
        with pytest.raises(ConfigError):
            slot.run("true", timeout_s=-1)
        slot.files.download("a", tmp_path / "a")
        assert (tmp_path / "a").read_text() == "text"
    with pytest.raises(SlotClosed):
        slot.run("true")


def test_ports_of_a_slot() -> None:
    serve = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
    serve += "while True: c, _ = s.accept(); c.sendall(c.recv(99).upper()); c.close()"
    with SandboxPool("local") as pool, pool.slot() as slot:
        slot.files.write_text("serve.py", serve)
        port = int(slot.spawn("exec python3 serve.py").stdout.receive())
        with slot.connect(port) as stream:
            stream.send(b"straight")
            assert b"".join(stream) == b"STRAIGHT"
        with slot.forward(port) as forward, socket.create_connection(("127.0.0.1", forward.port), timeout=20) as client:
            client.sendall(b"forwarded")
            assert client.recv(99) == b"FORWARDED"
        slot.wait_for_port(port, 20)
        with slot.connect(port, wait_s=1) as stream:
            stream.send_eof()
        with pytest.raises(TimeoutError, match="nothing listened"):
            slot.wait_for_port(1, 0.05)
        with socket.create_server(("127.0.0.1", 0)) as busy:
            taken = busy.getsockname()[1]
            with pytest.raises(OSError, match=f"127.0.0.1:{taken}"), slot.forward(port, taken):
                pass
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", forward.port), timeout=20):
            pass


def test_slots_of_a_pool_that_was_entered_without_a_name() -> None:
    pool = SandboxPool("local", slots_per_sandbox=2)
    with pool, pool.slot() as slot:
        assert slot.run("echo hi").stdout == "hi\n"
    pool = SandboxPool("local", slots_per_sandbox=2)
    with pool, pool.slots(2) as (one, two):
        assert one.id != two.id
        assert (one.run("true").ok, two.run("true").ok) == (True, True)
    with pytest.raises(SlotClosed):
        two.run("true")


def test_what_is_used_after_the_last_pool_was_closed_is_told_so() -> None:
    with SandboxPool("local") as pool, pool.slot() as slot:
        session = slot.session()
    uses = (lambda: slot.run("true"), lambda: session.run("true"), pool.acquire, pool.slot().__enter__, session.open)
    for use in uses:
        with pytest.raises(SlotClosed):
            use()


def test_entering_twice_is_refused_and_harms_nothing() -> None:
    pool = SandboxPool("local")
    with pool, pool.slot() as slot:
        with pytest.raises(RuntimeError, match="entered once"), pool:
            pass
        pid = runner_pid(slot.sandbox)
        assert slot.run("echo still here").stdout == "still here\n"
    assert not alive(pid)


@pytest.mark.anyio
async def test_with_for_a_slot_of_a_pool_that_was_not_entered_so_names_what_is_right() -> None:
    pool = SandboxPool("local")
    with pytest.raises(RuntimeError, match=r"not open: use `with SandboxPool\(...\) as pool"), pool.slot():
        pass
    async with pool:
        with pytest.raises(RuntimeError, match="use `async with` for its slots"), pool.slot():
            pass
        async with pool.slot() as slot:
            assert (await slot.run("true")).ok


def test_several_threads_use_one_slot_and_pools_share_one_loop(pool: blocking.SandboxPool) -> None:
    seen: list[str] = []
    with pool.slots(2) as (one, two), SandboxPool("local") as other:
        assert other.portal is pool.portal

        def work(number: int) -> None:
            seen.append((one, two)[number % 2].run(f"echo {number}").stdout)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == [f"{number}\n" for number in range(8)]


def test_leaving_ends_the_sandboxes_also_by_an_error() -> None:
    with pytest.raises(LookupError), SandboxPool("local") as pool, pool.slot() as slot:
        pid = runner_pid(slot.sandbox)
        raise LookupError
    assert not alive(pid)


def test_every_async_name_has_its_twin() -> None:
    import hermes_exec

    for name in ("SandboxPool", "Slot", "Files", "Process", "Session", "Connection", "Checkpoint"):
        public = {attribute for attribute in vars(getattr(hermes_exec, name)) if not attribute.startswith("_")}
        internal = {"end", "expire", "move", "renew", "start", "from_entry", "from_config", "from_env"}
        internal |= {"keep_state_of", "find_saved_state", "from_checkpoint", "belongs_to", "session_id"}
        assert public - internal <= set(dir(getattr(blocking, name))), name


def test_a_socket_in_the_slot() -> None:
    with SandboxPool("local") as pool, pool.slot() as slot, slot.listen(f"{slot.tmp}/here") as listener:
        code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({listener.path!r}); s.sendall(b'hello')"
        asked = slot.spawn(["python3", "-c", code])
        with listener.accept() as connection:
            assert connection.receive() == b"hello"
        assert asked.wait(30).ok


def test_a_port_in_the_slot() -> None:
    with SandboxPool("local", network=False) as pool, pool.slot() as slot, slot.listen(port=0) as service:
        with slot.connect(service.port) as client, service.accept() as connection:
            client.send(b"hello")
            assert connection.receive() == b"hello"
        with slot.expose("127.0.0.1", 1, slot_port=8099) as exposed:
            assert exposed.port == 8099


@pytest.mark.anyio
@pytest.mark.loops
async def test_plain_with_inside_an_event_loop_names_async_with() -> None:
    with pytest.raises(RuntimeError, match="async with"), SandboxPool("local"):
        pass
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("late", [True, False], ids=["after the acquire", "during the acquire"])
@pytest.mark.parametrize("way", ["slot", "acquire"])
def test_an_interrupt_leaves_no_slot_acquired(
    pool: blocking.SandboxPool, monkeypatch: pytest.MonkeyPatch, way: str, *, late: bool
) -> None:
    with pool.slot():
        pass
    real = Future.result

    def interrupted(future: Future[object], timeout: float | None = None) -> object:
        if late:
            real(future, timeout)
        raise KeyboardInterrupt

    for _ in range(20):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Future, "result", interrupted)
            if way == "acquire":
                pool.acquire()
            else:
                pool.slot().__enter__()
    deadline = time.monotonic() + 30
    while pool.stats().slots_in_use and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pool.stats().slots_in_use == 0


def test_an_interrupt_while_a_pool_is_entered_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Future.result

    def interrupted(future: Future[object], timeout: float | None = None) -> object:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return real(future, timeout)

    before = threading.active_count()
    for _ in range(5):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Future, "result", interrupted)
            SandboxPool("local").__enter__()
    with SandboxPool("local") as pool, pool.slot() as slot:
        assert slot.run("true").ok
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_what_is_closed_after_the_last_pool_is_closed_already() -> None:
    with SandboxPool("local") as pool:
        slot, events = pool.acquire(), pool.events()
        session, process = slot.session(), slot.spawn("sleep 300", stdin=True)
        session.run("true")
    assert process.stdin is not None
    for close in (pool.close, pool.aclose, session.close, process.stdin.close, process.close, events.close):
        close()
    pool.release(slot)
    assert list(events) == []
    with pytest.raises(SlotClosed):
        slot.run("true")
    assert pool.stats().slots_total == 0


FORK = """
import os
from hermes_exec import SandboxPool
with SandboxPool("local") as pool, pool.slot() as slot:
    child = os.fork()
    if not child:
        with SandboxPool("local") as own, own.slot() as other:
            print("child", other.run("echo on").stdout, end="", flush=True)
        raise SystemExit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), slot.run("echo on").stdout, end="")
"""


def test_a_forked_child_with_a_pool_of_its_own_ends() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "child on\n7 on\n"


def test_a_slot_is_acquired_by_a_block(pool: blocking.SandboxPool) -> None:
    with pytest.raises(AttributeError, match=r"with pool\.slot"):
        getattr(pool.slot(), "run")  # noqa: B009 - a type checker would refuse it


def test_a_toolbox_whose_pool_was_left() -> None:
    with SandboxPool("local") as pool, pool.slot() as slot:
        tools = Toolbox(slot, ["terminal"])
    calls: list[Callable[[], object]] = [lambda: tools.call("terminal", {"command": "ls"}), tools.notices]
    calls.append(lambda: AgentLoop(ScriptedModel(["x"]), tools).run("hi"))
    for call in calls:
        with pytest.raises(SlotClosed):
            call()


def test_a_pool_may_be_left_twice() -> None:
    pool = SandboxPool("local")
    with pool as entered, entered.slot() as slot:
        assert slot.run("true").ok
    pool.__exit__(None, None, None)


FORKED = """
import os, sys
from hermes_exec import SandboxPool

with SandboxPool("local") as pool, pool.slot() as slot:
    slot.run("true")
    child = os.fork()
    if not child:
        for use in (lambda: slot.run("true", timeout_s=2), lambda: pool.acquire(), lambda: pool.stats()):
            try:
                use()
            except RuntimeError as error:
                print(error, flush=True)
        sys.exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), slot.run("echo parent").stdout, flush=True)
"""


def test_a_forked_child_is_told_and_can_leave() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=True)
    lines = done.stdout.splitlines()
    assert len([line for line in lines if "after a fork" in line]) == 3, done
    assert "child 7 parent" in lines


ENDED = {
    "generator": """
def slots():
    with SandboxPool("local") as pool, pool.slot() as slot:
        yield slot
held = slots()
slot = next(held)
""",
    "context": """
pool = SandboxPool("local").__enter__()
context = pool.slot()
slot = context.__enter__()
""",
    "dropped context": """
pool = SandboxPool("local").__enter__()
slot = pool.slot().__enter__()
""",
    "forward": """
pool = SandboxPool("local").__enter__()
slot = pool.acquire()
forward = slot.forward(9)
forward.__enter__()
""",
    "use at the very end": """
class Late:
    def __del__(self):
        try:
            self.run("true")
        except SlotClosed as error:
            print(error, flush=True)
pool = SandboxPool("local").__enter__()
slot = pool.acquire()
late = Late()
late.run = slot.run
""",
}
"""How a program holds a slot that it never gives back."""


@pytest.mark.parametrize("way", ENDED)
def test_a_program_that_ends_with_a_slot_in_its_hands_ends(way: str) -> None:
    before, after = (
        "from hermes_exec import SandboxPool, SlotClosed\n",
        "print(slot.sandbox, slot.run('echo hi').stdout)",
    )
    done = subprocess.run(
        [sys.executable, "-c", before + ENDED[way] + after], capture_output=True, text=True, timeout=60, check=True
    )
    sandbox, hello, *rest = done.stdout.split(maxsplit=2)
    assert (hello, done.stderr) == ("hi", "")
    assert not rest or way == "use at the very end"
    assert not alive(runner_pid(sandbox))
