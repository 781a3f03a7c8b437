"""Several hosts of the SSH backend: which one gets the next sandbox, and what becomes of those that are away."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec import BackendUnavailable, ConfigError, ExecError, LaunchError, SandboxPool
from hermes_exec.backends.ssh.config import SSHConfig
from hermes_exec.backends.ssh.host import Host
from hermes_exec.backends.ssh.hosts import Hosts

pytestmark = pytest.mark.anyio


class FakeHosts:
    """Hosts of which some fail, by a clock that is set by hand."""

    def __init__(self, *hosts: Any) -> None:
        self.config = SSHConfig(hosts=hosts)
        self.now = 100.0
        self.hosts = Hosts((Host(self.config, host) for host in self.config.hosts), lambda: self.now)
        self.failing: dict[str, ExecError] = {}
        self.tried: list[str] = []
        self.gone: list[Callable[[], None]] = []

    async def start(self, host: Host, gone: Callable[[], None]) -> str:
        await anyio.lowlevel.checkpoint()
        self.tried.append(host.name)
        self.answer(host)
        self.gone.append(gone)
        return host.name

    def answer(self, host: Host) -> str:
        if host.name in self.failing:
            raise self.failing[host.name]
        return host.name

    async def place(self, count: int = 1) -> list[str]:
        return [await self.hosts.place(self.start) for _ in range(count)]


def away(name: str) -> BackendUnavailable:
    return BackendUnavailable(f"ssh {name}: it does not answer")


async def test_the_host_with_the_most_free_weight_gets_the_sandbox() -> None:
    hosts = FakeHosts({"host": "a", "weight": 2}, "b", "c")
    assert await hosts.place(4) == ["a", "b", "c", "a"]
    hosts.gone[1]()
    hosts.gone[1]()
    assert await hosts.place(2) == ["b", "a"]


@pytest.mark.loops
async def test_sandboxes_that_are_being_started_count() -> None:
    hosts = FakeHosts("a", "b", "c")
    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(hosts.place)
    assert Counter(hosts.tried) == {"a": 2, "b": 2, "c": 2}


async def test_the_next_host_is_tried_at_once_and_the_one_that_failed_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = FakeHosts("a", "b")
    hosts.failing["a"] = away("a")
    assert await hosts.place(3) == ["b", "b", "b"]
    assert hosts.tried == ["a", "b", "b", "b"]
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        before = len(hosts.tried)
        hosts.now += pause_s - 0.001
        await hosts.place()
        hosts.now += 0.001
        await hosts.place()
        assert hosts.tried[before:] == ["b", "a", "b"], f"after {pause_s} s"
    hosts.failing.clear()
    hosts.now += 60
    assert await hosts.place() == ["a"]
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["a is left out until it answers again: ssh a: it does not answer", "a is back"]


async def test_launches_that_fail_together_count_once() -> None:
    hosts = FakeHosts("a", "b")
    hosts.failing["a"] = away("a")
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(hosts.place)
    hosts.now += 1
    await hosts.place()
    assert hosts.tried[-2:] == ["a", "b"]


async def test_of_those_who_find_a_pause_over_one_tries() -> None:
    hosts = FakeHosts("a", "b")
    hosts.failing["a"] = away("a")
    await hosts.place()
    hosts.now += 1
    tries, go_on = anyio.Event(), anyio.Event()

    async def slow(host: Host, gone: Callable[[], None]) -> str:
        if host.name == "a":
            tries.set()
            await go_on.wait()
        return await hosts.start(host, gone)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hosts.hosts.place, slow)
        await tries.wait()
        assert await hosts.place(2) == ["b", "b"]
        go_on.set()


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((away("a"), away("b")), BackendUnavailable),
        ((ConfigError("ssh a: set base_dir"), ConfigError("ssh b: set base_dir")), ConfigError),
        ((away("a"), LaunchError("ssh b: no space left")), LaunchError),
    ],
)
async def test_when_all_fail_each_is_named(errors: tuple[ExecError, ExecError], kind: type[ExecError]) -> None:
    hosts = FakeHosts("a", "b")
    hosts.failing = dict(zip("ab", errors, strict=True))
    for tried in ("ab", "a", "b", "a"):
        hosts.tried, hosts.now = [], hosts.now + 0.01
        with pytest.raises(kind) as caught:
            await hosts.place()
        assert type(caught.value) is kind
        assert str(caught.value) == f"{errors[0]}; {errors[1]}"
        assert caught.value.retryable is (kind is not ConfigError)
        assert "".join(hosts.tried) == tried, "of those that are left out, the one that was longest"
    hosts.failing.clear()
    assert await hosts.place() == ["b"]


@pytest.mark.loops
async def test_a_launch_that_is_given_up_counts_against_nobody() -> None:
    hosts = FakeHosts("a", "b")

    async def forever(host: Host, gone: Callable[[], None]) -> None:
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hosts.hosts.place, forever)
        await anyio.wait_all_tasks_blocked()
        assert await hosts.place() == ["b"]
        tasks.cancel_scope.cancel()
    assert await hosts.place() == ["a"]


@pytest.mark.loops
async def test_a_host_that_is_silent_holds_up_no_question() -> None:
    hosts = FakeHosts("a", "b", "c")
    hosts.failing["b"] = away("b")
    go_on = threading.Event()

    def question(host: Host) -> str:
        if host.name == "c":
            go_on.wait()
        return hosts.answer(host)

    try:
        with anyio.fail_after(10):
            answers = await hosts.hosts.ask(question, patience_s=0.1)
    finally:
        go_on.set()
    assert list(answers.values()) == ["a"]
    assert list((await hosts.hosts.ask(hosts.answer, 5)).values()) == ["a"]
    hosts.now += 1
    del hosts.failing["b"]
    assert sorted((await hosts.hosts.ask(hosts.answer, 5)).values()) == ["a", "b", "c"]


async def test_a_question_that_nobody_answers() -> None:
    hosts = FakeHosts("a", "b")
    hosts.failing = {"a": away("a"), "b": away("b")}
    with pytest.raises(BackendUnavailable, match=r"ssh a: it does not answer; ssh b: it does not answer") as caught:
        await hosts.hosts.ask(hosts.answer, 5)
    assert not caught.value.retryable


HOST = st.builds(
    lambda weight, slots: {"weight": weight, "slots": slots},
    st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0, 7.5]),
    st.sampled_from([None, 1, 2, 5]),
)


@given(hosts=st.lists(HOST, min_size=1, max_size=4), sandboxes=st.integers(1, 12), data=st.data())
def test_sizes_are_those_of_the_sandboxes_that_come_whatever_went_before(
    hosts: list[dict[str, Any]], sandboxes: int, data: st.DataObject
) -> None:
    fleet = FakeHosts(*({"host": f"h{index}", **host} for index, host in enumerate(hosts)))
    slots = {host.name: host.slots or 64 for host in fleet.config.hosts}

    async def history() -> list[str]:
        placed = await fleet.place(sandboxes)
        ended = data.draw(st.sets(st.integers(0, sandboxes - 1)))
        for index in ended:
            fleet.gone[index]()
        return [name for index, name in enumerate(placed) if index not in ended] + await fleet.place(len(ended))

    found: dict[int, int] = Counter(slots[name] for name in anyio.run(history))
    assert found == fleet.config.sizes(sandboxes, 64)


@pytest.fixture
def unsafe_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # the path of a longer one is not used
        Path(path).chmod(0o777)
        yield Path(path)


async def test_unsafe_temporary_directory_is_one_error(unsafe_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(unsafe_directory))
    with pytest.raises(ConfigError, match="set TMPDIR to another one"):
        await SandboxPool("ssh", hosts="127.0.0.1").open()
