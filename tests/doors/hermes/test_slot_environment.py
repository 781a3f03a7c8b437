"""The environment alone: its end in each thread and process, interrupts while it waits, large output, kept files."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes_exec import ConfigError
from tests.doors.hermes.conftest import HOME

if TYPE_CHECKING:
    from hermes_exec.blocking import SandboxPool
    from hermes_plugin.environment import SlotEnvironment
    from hermes_plugin.options import Options


@pytest.fixture
def options() -> Iterator[Options]:
    from hermes_plugin.options import Options

    options = Options.model_validate({"backend": "local", "min_isolation": "namespaces", "slots_per_sandbox": 1})
    yield options
    options.open_pool().close()


def create(options: Options, task_id: str = "one", **more: Any) -> SlotEnvironment:
    from hermes_plugin.environment import SlotEnvironment

    arguments: dict[str, Any] = {"image": None, "cwd": "", "timeout": 60, "persistent": False}
    return SlotEnvironment(options, task_id=task_id, lost_error=RuntimeError, **{**arguments, **more})


def free(pool: SandboxPool) -> None:
    deadline = time.monotonic() + 20
    while pool.stats().slots_in_use:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_probe_of_prompt_releases_its_slot(options: Options) -> None:
    probe = create(options, "prompt-backend-probe")
    assert probe.execute("echo here")["output"] == "here\n"
    assert options.open_pool().stats().slots_in_use == 0


def test_forgotten_environment_releases_its_slot_in_any_thread(options: Options) -> None:
    pool = options.open_pool()
    environment = [create(options)]
    environment.clear()
    gc.collect()
    free(pool)
    environment.append(create(options))

    async def forget() -> None:
        environment.clear()
        gc.collect()

    pool.portal.call(forget)
    free(pool)


def test_cleanup_in_the_event_loop_does_not_wait(options: Options) -> None:
    pool, environment = options.open_pool(), create(options)

    async def clean_up() -> None:
        environment.cleanup()

    pool.portal.start_task_soon(clean_up).result(10)
    free(pool)
    environment.cleanup()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_cleanup_after_fork_leaves_the_slot_to_its_process(options: Options) -> None:
    environment = create(options)
    child = os.fork()
    if child == 0:
        environment.cleanup()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert environment.execute("echo here")["output"] == "here\n"
    environment.cleanup()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_process_gets_a_slot_of_its_own(options: Options, tmp_path: Path) -> None:
    environment = create(options)
    environment.execute("echo parent > file; cd /usr", bounded_capture=True)
    child = os.fork()
    if child == 0:
        result = environment.execute("pwd; ls /workspace", environment.cwd, bounded_capture=True)
        (tmp_path / "result").write_text(result["output"])
        environment.cleanup()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    notice = "[hermes-exec: a process that was forked has a slot of its own, without the files of the first]"
    assert (tmp_path / "result").read_text() == f"{notice}\n/usr\n"
    assert environment.execute("cat /workspace/file")["output"] == "parent\n"
    environment.cleanup()


def test_interrupt_ends_the_wait_for_a_slot(options: Options) -> None:
    from tools.interrupt import set_interrupt

    from hermes_plugin.interrupts import Interrupted

    holder = create(options)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            create(options, "two")
        except Interrupted as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 20
    while not options.open_pool().stats().waiting:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    set_interrupt(True, thread.ident)
    thread.join(20)
    set_interrupt(False, thread.ident)
    assert len(errors) == 1
    holder.cleanup()
    assert options.open_pool().stats().waiting == 0


def test_output_is_whole_or_an_error(options: Options) -> None:
    environment = create(options)
    assert len(environment.execute("head -c 20000000 /dev/zero | tr '\\0' x")["output"]) == 20_000_000
    too_much = environment.execute("head -c 70000000 /dev/zero | tr '\\0' x")
    assert too_much["returncode"] == 1
    assert "70000000 bytes of output are more than" in too_much["output"]
    shown = environment.execute("head -c 70000000 /dev/zero | tr '\\0' x", bounded_capture=True)
    assert shown["returncode"] == 0
    environment.cleanup()


def test_commands_at_once_run_beside_each_other(options: Options) -> None:
    environment = create(options)
    slow = threading.Thread(target=partial(environment.execute, "touch begun; sleep 3; cd /usr", bounded_capture=True))
    slow.start()
    deadline = time.monotonic() + 20
    while environment.execute("test -e begun")["returncode"]:
        assert time.monotonic() < deadline
    assert environment.execute("pwd; LOST=1", bounded_capture=True)["output"] == "/workspace\n"
    assert slow.is_alive()
    slow.join()
    assert environment.execute("pwd; echo $LOST", bounded_capture=True)["output"] == "/usr\n\n"
    environment.cleanup()


@pytest.mark.parametrize("bounded", [True, False], ids=["terminal", "file-tools"])
def test_directory_that_is_removed_is_left_for_the_next_command(options: Options, bounded: bool) -> None:
    environment = create(options)
    environment.execute("mkdir gone; cd gone; rmdir ../gone", bounded_capture=True)
    failed = environment.execute("pwd", environment.cwd, bounded_capture=bounded)
    assert failed["returncode"] == 126
    assert "/workspace/gone: working directory: no such file" in failed["output"]
    assert "The next command starts in /workspace." in failed["output"]
    assert environment.execute("pwd", environment.cwd, bounded_capture=True)["output"] == "/workspace\n"
    assert "next command" not in environment.execute("pwd", "/nowhere", bounded_capture=True)["output"]
    environment.cleanup()


def test_persistent_task_keeps_home_and_workspace(options: Options) -> None:
    first = create(options, "kept/../task", persistent=True)
    first.execute("mkdir -p ~/tool; echo a > ~/tool/a; ln -s a ~/tool/b; echo w > w", bounded_capture=True)
    first.cleanup()
    assert [path.name for path in (HOME / "sandboxes" / "hermes_exec").iterdir() if path.name.startswith("kept")] == [
        "kept_.._task"
    ]
    second = create(options, "kept/../task", persistent=True)
    assert second.execute("cat ~/tool/b w")["output"] == "a\nw\n"
    second.cleanup()
    other = create(options, "other", persistent=True)
    assert other.execute("ls -A; ls ~/tool 2>/dev/null")["output"] == ""
    other.cleanup()


def test_archive_that_cannot_be_unpacked_is_named_with_a_remedy(options: Options) -> None:
    archive = HOME / "sandboxes" / "hermes_exec" / "broken" / "home.tar"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"no archive" * 1000)
    with pytest.raises(ConfigError, match=rf"{archive} were not unpacked .* remove the archive to start without them"):
        create(options, "broken", persistent=True)
    assert options.open_pool().stats().slots_in_use == 0
    archive.unlink()
    create(options, "broken", persistent=True).cleanup()
