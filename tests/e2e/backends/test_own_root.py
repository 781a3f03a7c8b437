"""Slots of one container, each with a root of its own: what the tenant sees, beside the engine's own container."""

from __future__ import annotations

import platform
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from docker import DockerClient

from hatch_build import Target, find_go, go_environment
from hermes_exec import ConfigError, IsolationError, Limits, SandboxPool, Slot
from hermes_exec.testing.conformance.checks.as_container import parts

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
PARTS = parts()


def pool_of(image: str, **options: Any) -> SandboxPool:
    return SandboxPool(
        "docker", image=image, max_sandboxes=1, **{"slots_per_sandbox": 3, "slot_root": "own", **options}
    )


@pytest.fixture
async def slots(anyio_backend: str, docker_image: Image) -> AsyncIterator[tuple[Slot, Slot]]:
    async with pool_of(docker_image("debian")) as pool, pool.slots(2) as (one, two):
        assert one.sandbox == two.sandbox
        yield one, two


@contextmanager
def derived(engine: DockerClient, image: str, *changes: str) -> Iterator[str]:
    """An image that differs from another one in its configuration."""
    made = engine.containers.create(image)
    tag = f"hermes-exec-test/own-root:{made.id[:12]}"  # type: ignore[index]
    try:
        made.commit(*tag.split(":"), changes="\n".join(changes))
    finally:
        made.remove()
    try:
        yield tag
    finally:
        engine.images.remove(tag, force=True)


def in_container(engine: DockerClient, image: str, script: str, **options: Any) -> tuple[int, str]:
    """Exit code and stdout of a script in a container of its own."""
    container = engine.containers.create(image, ["/bin/sh", "-c", script], **options)
    try:
        container.start()
        code = container.wait(timeout=60)["StatusCode"]
        return code, container.logs(stdout=True, stderr=False).decode()
    finally:
        container.remove(force=True)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("base", ["debian", pytest.param("busybox", marks=pytest.mark.whole)])
async def test_it_is_as_in_a_container(base: str, name: str, docker_image: Image, engine: DockerClient) -> None:
    image, (_, script) = docker_image(base), PARTS[name]
    expected = await anyio.to_thread.run_sync(in_container, engine, image, script)
    async with pool_of(image) as pool, pool.slot() as slot:
        got = await slot.run(["/bin/sh", "-c", script], timeout_s=60)
    assert (got.exit_code, got.stdout) == expected, got.stderr


async def test_the_images_user_its_groups_and_home(docker_image: Image, engine: DockerClient) -> None:
    script = (
        "id; cd && pwd; env | grep -c ^HOME=; touch /usr/x 2>/dev/null || echo no; su root -c id 2>/dev/null || echo no"
    )
    with derived(engine, docker_image("debian"), "USER tester", "ENV FROM_IMAGE=yes") as image:
        expected = await anyio.to_thread.run_sync(in_container, engine, image, script)
        async with pool_of(image) as pool, pool.slot() as slot:
            assert (await slot.run(script)).stdout == expected[1]
            assert (await slot.run("echo $FROM_IMAGE; id -u", user="root")).stdout == "yes\n0\n"
            assert (slot.user, slot.workspace) == ("tester", "/workspace")
            assert (await slot.run("echo x > mine; stat -c %U mine")).stdout == "tester\n"


async def test_forks_keep_the_images_user_owners_and_rights(docker_image: Image, engine: DockerClient) -> None:
    with derived(engine, docker_image("debian"), "USER tester") as image:
        async with pool_of(image) as pool, pool.slot() as slot:
            await slot.run("echo mine > mine; mkdir -m 700 closed", check=True)
            await slot.run("echo root > /etc/given; chmod 600 /etc/given", user="root", check=True)
            state = "stat -c '%U %a' mine closed /etc/given; cat /etc/given 2>&1 | grep -c denied"
            expected = (await slot.run(state)).stdout
            assert expected == "tester 644\ntester 700\nroot 600\n1\n"
            async with pool.fork(slot, 1) as (fork,):
                assert (await fork.run(state)).stdout == expected
                assert fork.user == "tester"
                assert (await fork.run("echo more >> mine && cat mine")).stdout == "mine\nmore\n"
                assert (await slot.run("cat mine")).stdout == "mine\n"


async def test_file_calls_have_the_rights_of_the_images_user(docker_image: Image, engine: DockerClient) -> None:
    with derived(engine, docker_image("debian"), "USER tester") as image:
        async with pool_of(image) as pool, pool.slot() as slot:
            await slot.run(
                "umask 077; echo secret > /etc/shadow; mkdir /root/closed; chmod 700 /root", user="root", check=True
            )
            await slot.run("ln -s /etc/shadow seen; ln -s /etc/passwd written", check=True)
            for path in ("/etc/shadow", "seen"):
                with pytest.raises(PermissionError):
                    await slot.files.read_bytes(path)
            for path in ("/etc/passwd", "written", "/etc/made", "/root/made"):
                with pytest.raises(PermissionError):
                    await slot.files.write_text(path, "root::0:0::/root:/bin/bash\n")
            for call in (slot.files.list("/root"), slot.files.remove("/etc/hostname"), slot.files.chmod("/etc", 0o777)):
                with pytest.raises(PermissionError):
                    await call
            await slot.files.write_text("mine", "x")
            assert (await slot.run("stat -c '%U %g' mine; id -g")).stdout == "tester 1000\n1000\n"
            closed = await slot.run("cat /etc/shadow > /dev/null && ls -d /root/closed", user="root")
            assert closed.stdout == "/root/closed\n"


async def test_file_calls_do_not_see_the_slots_init(slots: tuple[Slot, Slot]) -> None:
    slot, _ = slots
    for path in ("/proc/1/maps", "/proc/1/mem", "/proc/1/environ", "/proc/1/comm"):
        with pytest.raises(FileNotFoundError):
            await slot.files.read_bytes(path)
    sleeper = await slot.spawn(["sleep", "100"])
    assert b"sleep" in await slot.files.read_bytes(f"/proc/{sleeper.pid}/cmdline")


@pytest.mark.parametrize("slots_per_sandbox", [1, 2])
async def test_variables_of_the_image_come_before_those_of_the_slot(
    slots_per_sandbox: int, docker_image: Image, engine: DockerClient
) -> None:
    own = ("ENV HOME=/srv USER=boss", "ENV TMPDIR=/var/tmp", "USER tester")
    options: dict[str, Any] = {"slots_per_sandbox": slots_per_sandbox, "slot_root": None}
    with derived(engine, docker_image("debian"), *own) as image:
        async with pool_of(image, **options) as pool, pool.slot() as slot:
            assert (await slot.run("echo $HOME $USER $LOGNAME $TMPDIR")).stdout == "/srv boss tester /var/tmp\n"
            assert slot.home == "/srv"


PLACES = "/ /etc /usr/bin /opt /root /home /tmp /var/tmp /var/log /run /dev /dev/shm /workspace"


async def test_a_neighbour_sees_nothing_and_neither_does_the_next_tenant(slots: tuple[Slot, Slot]) -> None:
    one, two = slots
    write = (
        f"mkdir -p /opt /run; for d in {PLACES}; do echo secret > $d/planted || exit 1; done; echo evil >> /etc/passwd"
    )
    look = f"for d in {PLACES}; do ls $d/planted 2>/dev/null; done; grep evil /etc/passwd; ls -A /new 2>/dev/null"
    for _ in range(3):
        (await one.run(f"{write}; mkdir -m 0 /new; setsid sleep 1000 >/dev/null 2>&1 &", check=True))
        assert (await two.run(look)).stdout == ""
        with pytest.raises(FileNotFoundError):
            await two.files.read_text("/tmp/planted")
        await one.reset()
        assert (await one.run(look)).stdout == ""
        assert await one.processes() == []


async def test_links_of_proc_lead_nowhere_for_what_works_on_files(slots: tuple[Slot, Slot], tmp_path: Path) -> None:
    slot, _ = slots
    for link in ("/proc/self/fd/2", "/proc/1/fd/2", "/proc/self/root/etc/passwd", "/proc/thread-self/cwd/etc/passwd"):
        await slot.run(["ln", "-sfn", link, "file"])
        await slot.run(["ln", "-sfn", link.rpartition("/")[0], "directory"])
        last = link.rpartition("/")[2]
        for path in ("file", f"directory/{last}", link):
            with pytest.raises(OSError, match=r"symbolic links|[Nn]o such file"):
                await slot.files.read_bytes(path)
            with pytest.raises(OSError, match=r"symbolic links|[Nn]o such file|[Rr]ead-only"):
                await slot.files.write_bytes(path, b"x")
        if not last.isdigit():  # /proc/self/fd itself is a directory, of which each entry is a link
            with pytest.raises(OSError, match="symbolic links"):
                await slot.run("true", cwd="directory")
    (await slot.run("ln -sfn /proc/self/fd tree/fd 2>/dev/null; mkdir tree && ln -s /proc/1/fd tree/fd", check=True))
    await slot.files.download("tree", tmp_path / "tree")
    assert not (tmp_path / "tree" / "fd").exists()


@pytest.mark.parametrize("slots_per_sandbox", [1, 2])
async def test_root_works_on_files_of_an_ordinary_tenant(
    slots_per_sandbox: int, docker_image: Image, engine: DockerClient
) -> None:
    options: dict[str, Any] = {"slots_per_sandbox": slots_per_sandbox, "slot_root": None}
    with derived(engine, docker_image("debian"), "USER tester") as image:
        async with pool_of(image, **options) as pool, pool.slot() as slot:
            await slot.files.write_text("/root/answer", "42", mode=0o600, user="root")
            assert await slot.files.read_text("~/answer", user="root") == "42"
            for call in (slot.files.read_text("/root/answer"), slot.files.write_text("/etc/x", "")):
                with pytest.raises(PermissionError):
                    await call
            await slot.files.write_text("mine", "x")
            assert (await slot.files.stat("mine")).uid == slot.uid != 0
            assert (await slot.run("cat /root/answer")).exit_code == 1
            assert (await slot.run("cat /root/answer", user="root")).stdout == "42"
            refused = pytest.raises(
                OSError, match=r"(?i)denied|symbolic links|no such file|read-only|belongs to|leads|busy"
            )
            for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/root/etc/passwd", "/proc/self/exe"):
                await slot.run(["ln", "-sfn", path, "link"], check=True)
                for name in (path, "link"):
                    with refused:
                        await slot.files.read_bytes(name, user="root")
                    with refused:
                        await slot.files.write_bytes(name, b"x", user="root")


async def test_root_of_file_calls_stays_in_the_root_of_the_slot(
    docker_image: Image, engine: DockerClient, tmp_path: Path
) -> None:
    with derived(engine, docker_image("debian"), "USER tester") as image:
        async with pool_of(image) as pool, pool.slots(2) as (one, two):
            for link in ("/proc/self/fd/2", "/proc/1/fd/2", "/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd"):
                await one.run(["ln", "-sfn", link, "file"], check=True)
                await one.run(["ln", "-sfn", link.rpartition("/")[0], "directory"], check=True)
                for path in ("file", f"directory/{link.rpartition('/')[2]}", link):
                    with pytest.raises(OSError, match=r"symbolic links|[Nn]o such file"):
                        await one.files.read_bytes(path, user="root")
                    with pytest.raises(OSError, match=r"symbolic links|[Nn]o such file|[Rr]ead-only"):
                        await one.files.write_bytes(path, b"x", user="root")
                with pytest.raises(OSError, match=r"symbolic links|[Nn]o such file"):
                    await one.files.list("directory/..", user="root")
            await one.run("mkdir tree && ln -s /proc/1/fd tree/fd && ln -s /proc/self/root tree/root", check=True)
            await one.files.download("tree", tmp_path / "tree", user="root")
            assert list((tmp_path / "tree").iterdir()) == []
            for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"):
                with pytest.raises(OSError, match=r"[Rr]ead-only|[Pp]ermission|[Nn]o such file"):
                    await one.files.write_bytes(path, b"x", parents=False, user="root")
            await one.files.write_text("/etc/planted", "x", user="root")
            await one.files.remove("/etc/hostname", user="root")
            assert not await two.files.exists("/etc/planted", user="root")
            assert await two.files.exists("/etc/hostname", user="root")
            # The rights of root ended with its calls.
            for path in ("/etc/planted", "/root/x"):
                with pytest.raises(PermissionError):
                    await one.files.write_text(path, "y")
            await one.reset()
            assert not await one.files.exists("/etc/planted", user="root")


async def test_mounts_of_the_sandbox_are_part_of_the_image(docker_image: Image, tmp_path: Path) -> None:
    directory, shared, file = tmp_path / "directory", tmp_path / "shared", tmp_path / "file"
    for made in (directory, shared):
        made.mkdir()
        (made / "given").write_text("given")
    file.write_text("line\n")
    (directory / "out").mkdir()
    mounts = (f"{directory}:/srv/deep/directory", f"{directory}:/srv/read:ro", f"{file}:/opt/file")
    options: dict[str, Any] = {
        "volumes": (*mounts, f"{directory}:/srv/outer:ro", f"{shared}:/srv/outer/out"),
        "shared_volumes": (f"{shared}:/bin/../shared/",),
        "tmpfs": {"/scratch": "size=1m"},
    }
    async with pool_of(docker_image("debian"), **options) as pool, pool.slots(2) as (one, two):
        look = "cat /srv/deep/directory/given /srv/read/given /opt/file; ls /scratch /shared"
        await one.run("touch /srv/outer/out/mine", check=True)
        given = "givengivenline\n/scratch:\n\n/shared:\ngiven\n"
        assert (await two.run(look)).stdout == given
        write = "for d in /srv/deep/directory /srv/deep /srv /opt /scratch; do echo x > $d/mine || exit 1; done"
        assert (await one.run(f"{write}; echo y >> /opt/file; cat /opt/file", check=True)).stdout == "line\ny\n"
        assert (await two.run(look)).stdout == given
        refused = await one.run("touch /srv/read/x; touch /srv/deep/directory/x")
        assert refused.stderr == "touch: cannot touch '/srv/read/x': Read-only file system\n"
        full = await one.run("head -c 2000000 /dev/zero > /scratch/full")
        assert "No space left" in full.stderr
        (await one.run("echo all > /shared/told", check=True))
        assert (await two.run("cat /shared/told")).stdout == "all\n"
        await one.reset()
        assert (await one.run(look)).stdout == given + "told\n"
    assert sorted(path.name for path in directory.iterdir()) == ["given", "out"]
    assert file.read_text() == "line\n"
    assert (shared / "told").read_text() == "all\n"


async def test_a_file_is_shared_and_a_socket_is_there(docker_image: Image, tmp_path: Path) -> None:
    told, listening = tmp_path / "told", socket.socket(socket.AF_UNIX)
    told.write_text("")
    with listening:
        listening.bind(str(tmp_path / "socket"))
        options = {"volumes": (f"{tmp_path}/socket:/run/outside",), "shared_volumes": (f"{told}:/srv/told",)}
        async with pool_of(docker_image("debian"), **options) as pool, pool.slots(2) as (one, two):
            await one.run("test -S /run/outside && echo one >> /srv/told", check=True)
            await two.run("test -S /run/outside && echo two >> /srv/told", check=True)
            await one.reset()
            assert (await one.run("cat /srv/told")).stdout == "one\ntwo\n"
    assert told.read_text() == "one\ntwo\n"


async def test_what_cannot_be_shared_is_refused(docker_image: Image, tmp_path: Path) -> None:
    async with pool_of(docker_image("busybox"), shared_volumes=(f"{tmp_path}:/dev/shm/data",)) as pool:
        with pytest.raises(IsolationError, match="/dev/shm/data cannot be shared"):
            async with pool.slot():
                pass


async def test_what_setup_made_is_in_each_slot(docker_image: Image) -> None:
    setup = "echo tool > /usr/local/tool && echo x > ~/.config && mkdir /data"
    async with pool_of(docker_image("busybox"), setup=f"mkdir -p /usr/local; {setup}") as pool, pool.slots(2) as slots:
        for slot in slots:
            look = "cat /usr/local/tool ~/.config; ls -d /data; rm -r /data /usr/local/tool 2>&1"
            assert (await slot.run(look)).stdout.startswith("tool\nx\n/data\n")


async def test_an_image_of_one_program(docker_image: Image) -> None:
    """Nothing but that program and `/etc`, in which the engine mounts files."""
    async with pool_of(docker_image("distroless")) as pool, pool.slots(2) as (one, two):
        await one.files.write_text("/etc/mine", "mine")
        assert await one.files.read_text("/etc/mine") == "mine"
        assert not await two.files.exists("/etc/mine")


MASKED = """
for file in /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do
    { true >> $file; } 2> /dev/null && exit 3
done
[ "$(head -c 1 /proc/kcore 2> /dev/null | wc -c)" = 0 ] || exit 4
unshare -U true 2> /dev/null && exit 5
useradd -m maker && echo made > /home/maker/file && chown maker /home/maker/file
"""


async def test_setup_is_behind_the_masks_of_a_container(docker_image: Image) -> None:
    """The runner's own /proc has none, so that slots can have theirs."""
    async with pool_of(docker_image("debian"), setup=MASKED) as pool, pool.slot() as slot:
        assert (await slot.run("stat -c %U /home/maker/file && id -un maker")).stdout == "maker\nmaker\n"


async def test_setup_runs_once_also_where_a_root_of_its_own_is_refused(docker_image: Image, tmp_path: Path) -> None:
    options: dict[str, Any] = {"volumes": (f"{tmp_path}:/ran",), "cap_drop": ("SETFCAP",), "slot_root": None}
    async with pool_of(docker_image("busybox"), setup="echo x >> /ran/times", **options) as pool:
        with pytest.warns(RuntimeWarning, match="share the root of their sandbox"):
            await pool.acquire()
        assert (tmp_path / "times").read_text() == "x\n"


NAMESPACE_OF_I386 = """
package main

import (
	"os"
	"syscall"
)

func main() {
	_, _, errno := syscall.RawSyscall(310, syscall.CLONE_NEWUSER, 0, 0) // unshare
	os.Stdout.WriteString(errno.Error())
}
"""


async def test_the_filter_knows_programs_of_32_bits(slots: tuple[Slot, Slot], tmp_path: Path) -> None:
    """Docker's own filter passes their unshare once it passes any."""
    if platform.machine() != "x86_64":
        pytest.skip("programs of i386 run on x86_64")
    (tmp_path / "main.go").write_text(NAMESPACE_OF_I386)
    build = [find_go(), "build", "-o", "unshare", "main.go"]
    environment = go_environment(Target("linux", "386"))
    await anyio.to_thread.run_sync(partial(subprocess.run, build, cwd=tmp_path, env=environment, check=True))
    slot, _ = slots
    await slot.files.upload(tmp_path / "unshare", "unshare")
    assert (await slot.run("./unshare")).stdout == "operation not permitted"


async def test_directories_that_the_image_says_are_volumes_are_part_of_it(
    docker_image: Image, engine: DockerClient
) -> None:
    with derived(engine, docker_image("debian"), "VOLUME /root /opt/data") as image:
        async with pool_of(image, setup="echo given > /opt/data/file") as pool, pool.slots(2) as (one, two):
            write = "cat /opt/data/file; echo mine > /opt/data/file && echo mine > ~/new && rm -rf /opt/data/file"
            assert (await one.run(write)).stdout == "given\n"
            assert (await two.run("cat /opt/data/file; ls ~/new")).stdout == "given\n"
            await one.reset()
            assert (await one.run("cat /opt/data/file; ls ~/new")).stdout == "given\n"


async def test_no_new_privileges_holds_as_in_a_container(docker_image: Image, engine: DockerClient) -> None:
    look = "grep NoNewPrivs /proc/self/status; cp /bin/sh /tmp/sh; chmod u+s /tmp/sh; su nobody -s /tmp/sh -c 'id -u'"
    for given in ([], ["no-new-privileges"]):
        image = docker_image("debian")
        async with pool_of(image, security_opt=tuple(given)) as pool, pool.slot() as slot:
            wanted = in_container(engine, image, look, security_opt=given)
            assert ((await slot.run(look)).exit_code, (await slot.run(look)).stdout) == wanted


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"user": "1000"}, "the runner is not root"),
        ({"cap_drop": ("SETFCAP",)}, "without CAP_SETFCAP"),
        ({"security_opt": ("seccomp=" + '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["pivot_root"], '
           '"action": "SCMP_ACT_ERRNO"}]}',)}, "pivot_root"),
    ],
    ids=["user", "capability", "seccomp"],
)  # fmt: skip
async def test_where_it_cannot_be_had_it_is_refused_or_told(
    options: dict[str, Any], why: str, docker_image: Image
) -> None:
    async with pool_of(docker_image("busybox"), **options) as pool:
        with pytest.raises(IsolationError, match=why):
            await pool.acquire(timeout_s=60)
    async with pool_of(docker_image("busybox"), **options, slot_root=None) as pool:
        with pytest.warns(RuntimeWarning, match=f"share the root of their sandbox, isolated at the level .*{why}"):
            slot = await pool.acquire()
        assert why in slot.isolation.filesystem
        assert slot.workspace != "/workspace"
        assert pool.stats().failures == 0


async def test_a_sandbox_without_an_image_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="slot_root='own' needs sandboxes with an image"):
        SandboxPool("local", slot_root="own")


async def test_one_slot_with_a_root_of_its_own_is_reset_in_its_sandbox(docker_image: Image) -> None:
    async with pool_of(docker_image("busybox"), slots_per_sandbox=1) as pool, pool.slot() as slot:
        sandbox = slot.sandbox
        (await slot.run("rm -r /etc/*; echo x > /root/x", check=True))
        await slot.reset()
        assert slot.sandbox == sandbox
        assert (await slot.run("ls /root; cat /etc/passwd | wc -l")).stdout != "0\n"


async def test_the_network_can_be_taken_away(docker_image: Image) -> None:
    async with pool_of(docker_image("busybox"), network=False) as pool, pool.slots(2) as (one, two):
        await one.spawn("nc -l -p 4000 -e echo mine")
        assert (await two.run("nc -w 1 127.0.0.1 4000 </dev/null")).stdout == ""
        assert "loopback only" in one.isolation.network


FORK_UNTIL_FULL = """
import os, time
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(100)
except OSError:
    print("full", flush=True)
time.sleep(100)
"""


async def test_processes_of_root_are_limited(docker_image: Image) -> None:
    async with (
        pool_of(docker_image("debian"), slot_limits=Limits(pids=30)) as pool,
        pool.slots(2) as (one, two),
    ):
        assert one.isolation.limits["pids"] != "not enforced"
        many = "for i in $(seq 100); do sleep 100 & done 2>&1 | grep -c fork"
        await one.run(many, timeout_s=20)
        assert len(await one.processes()) <= 30
        assert (await two.run("echo fine")).stdout == "fine\n"
        full = await one.spawn(["python3", "-c", FORK_UNTIL_FULL])
        assert await full.stdout.receive() == b"full\n"
        assert ((await one.run(["true"])).exit_code, (await two.run(["true"])).exit_code) == (126, 0)
        await one.reset()
        assert (await one.run("echo fine")).stdout == "fine\n"
