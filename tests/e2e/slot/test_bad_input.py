"""Bad input on each backend: a clear error before anything runs, or a result; nothing hangs and nothing leaks out."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_exec import BackendUnavailable, ConfigError, ImageError, Limits, SandboxPool, Slot
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.config import PoolConfig
from hermes_exec.pool.templates import Templates
from tests.conftest import BackendCase

pytestmark = pytest.mark.anyio


@pytest.fixture
async def slot(backend: BackendCase) -> AsyncIterator[Slot]:
    async with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        yield slot


@pytest.mark.parametrize(
    ("backend_name", "options", "near"),
    [
        ("dokcer", {}, "docker"),
        ("Local", {}, "local"),
        ("docker", {"image": "x", "memory_swap": 1}, "memory_swap_mb"),
        ("docker", {"image": "x", "pull_polcy": "never"}, "pull_policy"),
        ("local", {"slots_per_sandboxes": 2}, "slots_per_sandbox"),
        ("local", {"readonly_path": ["/x"]}, "readonly_paths"),
        ("local", {"profiles": {"a": {"slot_setups": "true"}}}, "slot_setup"),
    ],
)
def test_an_unknown_backend_or_option_names_the_nearest(backend_name: str, options: dict[str, Any], near: str) -> None:
    with pytest.raises(ConfigError, match=f"'{near}'"):
        SandboxPool(backend_name, **options)


def test_docker_that_does_not_run_is_told_to_blocking_callers_too(tmp_path: Path) -> None:
    with (
        pytest.raises(BackendUnavailable, match="systemctl start docker"),
        SandboxPool("docker", image="x", base_url=f"unix://{tmp_path}/absent.sock"),
    ):
        pass


@pytest.mark.parametrize("base_url", ["ssh://somewhere", "https://127.0.0.1:2376"])
def test_an_engine_that_gives_no_plain_stream_is_refused_with_a_way_to_reach_it(base_url: str) -> None:
    with (
        pytest.raises(BackendUnavailable, match="ssh -N -L"),
        SandboxPool("docker", image="x", base_url=base_url),
    ):
        pass


async def test_docker_that_does_not_run_is_told_with_the_mending_command(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(BackendUnavailable, match="systemctl start docker"):
        async with SandboxPool("docker", image="x", base_url=f"unix://{tmp_path}/absent.sock"):
            pass
    assert time.monotonic() - began < 30


def test_docker_that_is_not_installed_is_told_with_the_installing_command() -> None:
    program = (
        "import sys; sys.modules['docker'] = None\n"
        "from hermes_exec import BackendUnavailable, SandboxPool\n"
        "try:\n    SandboxPool('docker', image='x').__enter__()\n"
        "except BackendUnavailable as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'hermes-exec[docker]'" in done.stdout, done.stderr


@pytest.mark.docker
async def test_a_missing_image_is_named_at_once_when_it_may_not_be_pulled(docker_image: Callable[[str], str]) -> None:
    docker_image("busybox")
    began = time.monotonic()
    with pytest.raises(ImageError, match="hermes-exec-test/absent:1"):
        async with SandboxPool("docker", image="hermes-exec-test/absent:1", pull_policy="never"):
            pass
    assert time.monotonic() - began < 30


@pytest.mark.loops
async def test_a_command_of_five_mebibytes_runs(slot: Slot) -> None:
    size = 5 << 20
    assert (await slot.run(f"echo '{'x' * size}' | wc -c")).stdout.strip() == str(size + 1)
    assert (await slot.session().run(f"echo '{'y' * size}' | wc -c")).stdout.strip() == str(size + 1)


async def test_what_is_too_long_to_send_is_refused_before_anything_runs(slot: Slot) -> None:
    long = "touch ran; #" + "x" * (32 << 20)
    session = slot.session()
    ways: list[Callable[..., Any]] = [slot.run, slot.spawn, session.run, session.spawn]
    for way in ways:
        with pytest.raises(ConfigError, match=r"32 MiB.*slot\.files"):
            await way(long)
    for env in ({"A": long}, {f"A{n}": "x" * 1000 for n in range(34_000)}):
        with pytest.raises(ConfigError, match="32 MiB"):
            await slot.run("touch ran", env=env)
    with pytest.raises(ConfigError, match="32 MiB"):
        await slot.run(["touch", "ran", *["x" * 1000] * 34_000])
    assert (await slot.run("ls; echo on")).stdout == "on\n"


async def test_what_the_system_takes_no_more_of_is_its_answer() -> None:
    """Most of what is sent grows on its way to the agent: `<` takes six bytes there."""
    long = "<" * (9 << 20)
    async with SandboxPool("local") as pool, pool.slot() as slot:
        for result in (
            await slot.run("touch ran", env={"A": long}),
            await slot.run(["touch", "ran", long]),
            await (await slot.spawn(["touch", "ran", long], pty=True)).wait(30),
        ):
            assert (result.exit_code, result.signal) == (126, None)
        assert "argument list too long" in (await slot.run(["true", *[long[:100]] * 90_000])).stderr
        assert (await slot.run("ls; echo on")).stdout == "on\n"


def test_files_are_content_or_paths() -> None:
    wrong: Any = {"a": 3}
    with pytest.raises(ConfigError, match=r"files\.a: it must be bytes .* not 3$"):
        SandboxPool("local", files=wrong)
    with pytest.raises(ConfigError, match="content is given as bytes"):
        SandboxPool("local", files={"a": "no-such-file"})


async def test_an_engine_that_is_not_there_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="unix:///nowhere/engine"):
        async with SandboxPool("docker", image="x", base_url="unix:///nowhere/engine"):
            pass


async def test_input_with_half_a_character_is_told(slot: Slot) -> None:
    with pytest.raises(ConfigError, match="lone surrogate at 3"):
        await slot.run("cat", stdin="abc\ud83d")


async def test_arguments_of_processes_are_checked(slot: Slot) -> None:
    process = await slot.spawn("cat", stdin=True)
    wrong: Any
    for wrong in ("TERM", None, 0, 65, 1.5, True):
        with pytest.raises(ConfigError, match="signal"):
            await process.signal(wrong)
    for wrong in ("5", True, -1, float("nan")):
        with pytest.raises(ConfigError, match="timeout_s"):
            await process.wait(wrong)
    wrong = "text"
    assert process.stdin is not None
    with pytest.raises(ConfigError, match="bytes"):
        await process.stdin.send(wrong)
    await process.signal(signal.SIGTERM)
    assert (await process.wait(10)).signal == signal.SIGTERM


@pytest.mark.docker
async def test_a_limit_that_cannot_be_enforced_is_the_callers_to_change(docker_image: Callable[[str], str]) -> None:
    image = docker_image("busybox")
    async with SandboxPool("docker", image=image, slots_per_sandbox=2, slot_limits=Limits(cpus=1)) as pool:
        with pytest.raises(ConfigError, match=r"cpus.*best_effort_limits"):
            await pool.acquire()


@pytest.mark.parametrize("below", ["file", "file/further/down", "closed", "closed/further/down"])
async def test_a_base_dir_that_cannot_be_is_found_when_the_pool_begins(tmp_path: Path, below: str) -> None:
    if below.startswith("closed") and os.geteuid() == 0:
        pytest.skip("root may write to every directory")
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(ConfigError, match=r"is not a directory.*base_dir|cannot write to .*base_dir"):
        async with SandboxPool("local", base_dir=str(tmp_path / below)):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="a file system without files")
@pytest.mark.parametrize("base", ["/proc/x", "/proc", "/sys/x", "/dev/fd/x"])
async def test_a_base_dir_in_a_file_system_without_files_is_found_when_the_pool_begins(base: str) -> None:
    with pytest.raises(ConfigError, match=r"choose another base_dir"):
        async with SandboxPool("local", base_dir=base):
            pass


BAD_IMAGE = "a\udcff"


@pytest.mark.parametrize(
    "options",
    [
        {"image": BAD_IMAGE},
        {"image": "x", "profiles": {"p": {"image": BAD_IMAGE}}},
        {"backend_options": {"image": BAD_IMAGE}},
    ],
)
def test_an_image_name_that_is_no_unicode_is_refused_before_anything_starts(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"image: .*\\udcff.* is not valid Unicode"):
        SandboxPool("docker", **options)
    templates = Templates(PoolConfig(image="x"), DockerConfig())
    with pytest.raises(ConfigError, match="is not valid Unicode"):
        templates.get(None, BAD_IMAGE)


async def test_a_name_that_is_too_long_is_refused_and_not_repeated_in_full(slot: Slot) -> None:
    long = "x" * (1 << 20)
    for call in (slot.run("touch ran", cwd=long), slot.files.read_bytes(long), slot.files.write_bytes(long, b"")):
        with pytest.raises(OSError, match="too long") as caught:
            await call
        assert caught.value.errno == errno.ENAMETOOLONG
    with pytest.raises(ConfigError) as refused:
        await slot.run("touch ran", user=long)
    assert len(str(refused.value)) < 1000
    with pytest.raises(ConfigError) as refused:
        await slot.connect(80, host=long)
    assert len(str(refused.value)) < 1000
    assert (await slot.run("ls; echo on")).stdout == "on\n"


@pytest.mark.loops
@pytest.mark.parametrize("call", ["run", "spawn", "session"])
async def test_what_cannot_be_is_refused_before_anything_runs(slot: Slot, call: str) -> None:
    await slot.files.write_text("plain", "a file")
    session = slot.session()
    ways: dict[str, Callable[..., Any]] = {"run": slot.run, "spawn": slot.spawn, "session": session.run}
    way = ways[call]
    bad: list[tuple[str, dict[str, Any]]] = [
        ("touch ran; echo a\0b", {}),
        ("touch ran", {"env": {"A=B": "x"}}),
        ("touch ran", {"env": {"A\0": "x"}}),
        ("touch ran", {"cwd": "a\0b"}),
    ]
    if call != "spawn":
        bad.append(("touch ran", {"timeout_s": -1}))
    if call == "session":
        bad = [(command, options) for command, options in bad if "env" not in options and "cwd" not in options]
    for command, options in bad:
        with pytest.raises(ConfigError):
            await way(command, **options)
    if call != "session":
        with pytest.raises(NotADirectoryError, match="plain"):
            await way("touch ran", cwd="plain")
        with pytest.raises(FileNotFoundError, match="absent"):
            await way("touch ran", cwd="absent")
    assert [entry.name for entry in await slot.files.list(".")] == ["plain"]


async def test_a_path_out_of_the_workspace_through_a_tree_or_a_link_is_refused(slot: Slot, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_text("x")
    (tmp_path / "tree" / "up").symlink_to("../../../outside")
    (tmp_path / "tree" / "abs").symlink_to("/etc/passwd")
    (
        await slot.run("mkdir victim dest; ln -s ../victim dest/sub; mkdir out; ln -s / out/root; echo x > out/fine")
    ).check()
    (await slot.run(["ln", "-s", str(tmp_path / "victim"), "out/abs"])).check()
    sent = await slot.files.upload(tmp_path / "tree", "dest")
    assert len(sent.refused) == 4
    assert (await slot.run("ls -A victim; ls -A dest")).stdout == "sub\n"
    got = await slot.files.download("out", tmp_path / "back")
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["fine"]
    assert len(got.refused) == 2
    assert list((tmp_path / "victim").iterdir()) == []


@pytest.mark.loops
async def test_bad_input_costs_no_slot(backend: BackendCase) -> None:
    async with SandboxPool(backend.backend, **backend.options, slots_per_sandbox=2, max_sandboxes=1) as pool:
        for _ in range(3):
            async with pool.slots(2) as slots:
                for slot in slots:
                    with pytest.raises(ConfigError):
                        await slot.run("true", timeout_s=float("nan"))
                    with anyio.fail_after(20):
                        assert (await slot.run("echo on")).stdout == "on\n"
        stats = pool.stats()
        assert (stats.launches, stats.slots_quarantined) == (1, 0)


@pytest.mark.docker
async def test_a_missing_image_is_one_error_and_no_chain() -> None:
    async with SandboxPool("docker", image="hermes-exec-test/nosuch:1", pull_policy="missing") as pool:
        with pytest.raises(ImageError, match="nosuch") as caught:
            await pool.acquire(timeout_s=60)
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback (most recent call last)") == 1, shown
