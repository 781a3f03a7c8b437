"""Another user of the host gets nothing of root's through what a tenant leaves, and nothing of ours to be started."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import SandboxPool
from hermes_exec.backends.nomad import backend, job
from hermes_exec.backends.ssh import host as probed
from hermes_exec.blocking import Slot
from hermes_exec.errors import ConfigError
from tests.support.nomad_agent import Agent
from tests.support.other_user import as_other, found_below, reached, require_root
from tests.support.sshd import Server

Image = Callable[[str], str]
PROBE = Path(probed.__file__).with_name("probe.sh")
PLACES = (
    *("/usr/bin", "/tmp", "/alloc", "/alloc/data", "/local", "/secrets", "/sys/firmware", "/sys/firmware/data"),
    *("/hermes-exec/state", "$HOME", "$PWD"),
)


@pytest.fixture
def open_node(nomad_agent: Agent) -> Agent:
    """A node whose directory of allocations other users of it may pass."""
    (nomad_agent.directory / "data").chmod(0o711)
    return nomad_agent


def plant(slot: Slot) -> str:
    """Leave a set-uid program in each place that there is; its name."""
    name = f"planted-{secrets.token_hex(6)}"
    program = f"$d/{name}"
    script = f"cp /bin/cat {program} && chown 0:0 {program} && chmod 6755 {program}"
    slot.run(f"for d in {' '.join(PLACES)}; do {script}; done 2>/dev/null")
    assert slot.run(f"/usr/bin/{name} /etc/hostname").ok
    return name


@pytest.mark.singularity
@pytest.mark.parametrize("slots", [1, 2])
def test_apptainer(slots: int, open_directory: Path, singularity_image: Image) -> None:
    image = singularity_image("debian")
    pool = SandboxPool("singularity", image=image, base_dir=str(open_directory), slots_per_sandbox=slots)
    with pool, pool.slot() as slot:
        found = found_below(plant(slot), open_directory)
        assert found
        assert reached(found) == []


@pytest.mark.nomad
@pytest.mark.singularity
@pytest.mark.parametrize("slots", [1, 4])
def test_nomad_with_apptainer(slots: int, open_node: Agent, singularity_image: Image) -> None:
    require_root()
    options = open_node.options(driver="singularity", image=singularity_image("debian"), slots_per_sandbox=slots)
    with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        found = found_below(plant(slot), open_node.directory)
        assert found
        assert reached(found) == []
        names = "runner", "hermes-exec", "local"
        renamed = [
            path
            for name in names
            for path in found_below(name, open_node.directory / "data" / "alloc")
            if as_other("mv", path, f"{path}.away").returncode == 0
        ]
        assert renamed == []


@pytest.mark.nomad
@pytest.mark.parametrize("slots", [1, 4])
def test_nomad_with_docker(slots: int, open_node: Agent, docker_image: Image) -> None:
    require_root()
    options = open_node.options(image=docker_image("debian"), slots_per_sandbox=slots, slot_root="shared")
    with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        if slots == 1:
            found = found_below(plant(slot), open_node.directory, "/var/lib/docker/volumes")
            assert reached(found) == []
            assert [path for path in found if str(open_node.directory) in path] == []
            assert not slot.run("mknod /tmp/d b 8 0").ok
        else:
            assert slot.run("id -u").stdout != "0\n"
            assert not slot.run("mv /local/hermes-exec /local/away || mv /hermes-exec /hermes-exec-away").ok
            assert not slot.run("mv /hermes-exec/state/runner /hermes-exec/state/away").ok
        assert slot.run("ls -A /alloc /local /secrets /sys/firmware/*").stdout == ""
        assert slot.run("find / -name api.sock 2>/dev/null").stdout == ""
        assert slot.run("echo on").stdout == "on\n"


@pytest.mark.nomad
@pytest.mark.whole
def test_nomad_with_a_runtime_that_hides_nothing(
    open_node: Agent, docker_image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual one in its place: the directories are where Nomad has them, and the runner closes them."""
    require_root()
    for module in (backend, job):
        monkeypatch.setattr(module, "hides_directories", lambda _: False)
    options = open_node.options(image=docker_image("debian"), slots_per_sandbox=4, slot_root="shared")
    with SandboxPool("nomad", **options) as pool, pool.slot() as slot:
        told = slot.run("stat -c %n:%a /alloc /local /secrets; ls /alloc || ls /local || echo >/alloc/data/file")
        assert (told.stdout, told.ok) == ("/alloc:700\n/local:700\n/secrets:700\n", False)
        assert not slot.run("echo >/alloc/logs/file || echo >/local/file || mv /local /away || mknod d b 8 0").ok


def test_local(open_directory: Path) -> None:
    with SandboxPool("local", base_dir=str(open_directory)) as pool, pool.slot() as slot:
        slot.run("cp /bin/cat x && chmod 6755 x && cp x $HOME/x; chmod 6777 $HOME/x; chmod 777 $HOME .")
        found = found_below("x", open_directory)
        assert found
        assert [path for path in found if as_other(path, "/etc/hostname").returncode == 0] == []


@pytest.mark.parametrize("backend", ["local", pytest.param("singularity", marks=pytest.mark.singularity)])
def test_open_base(backend: str, open_directory: Path, singularity_image: Image) -> None:
    base = open_directory / "base"
    base.mkdir()
    base.chmod(0o777)
    image: dict[str, Any] = {"image": singularity_image("debian")} if backend == "singularity" else {}
    with (
        pytest.raises(ConfigError, match="others may write"),
        SandboxPool(backend, base_dir=str(base), **image) as pool,
        pool.slot(),
    ):
        pass
    base.chmod(0o1777)
    with SandboxPool(backend, base_dir=str(base), **image) as pool, pool.slot() as slot:
        (made,) = base.iterdir()
        assert as_other("mv", made, base / "away").returncode != 0
        assert slot.run("echo on").stdout == "on\n"


def test_names_of_the_ssh_probe_cannot_be_guessed(tmp_path: Path) -> None:
    """Others leave links with all numbers of processes: one is written to where the kernel follows them."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    script = f'ln -s {victim} "$1/.hermes-exec-try-$$"\n{PROBE.read_text()}'
    done = subprocess.run(["sh", "-c", script, "sh", tmp_path], capture_output=True, text=True, check=False)
    assert f"base {tmp_path}\n" in done.stdout
    assert victim.read_text() == "as it was"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.ssh
def test_open_base_on_an_ssh_host(open_directory: Path, ssh_server: Server) -> None:
    base = open_directory / "base"
    base.mkdir()
    base.chmod(0o777)
    options = ssh_server.options(base_dir=str(base))
    with pytest.raises(ConfigError, match="others may write"), SandboxPool("ssh", **options) as pool, pool.slot():
        pass
    assert list(base.iterdir()) == []
    base.chmod(0o1777)
    with SandboxPool("ssh", **options) as pool, pool.slot() as slot:
        slot.run("cp /bin/cat x && chmod 6755 x; chmod 777 $HOME . ..")
        found = found_below("x", base)
        assert found
        assert [path for path in found if as_other(path, "/etc/hostname").returncode == 0] == []
        (made,) = base.iterdir()
        assert as_other("mv", made, base / "away").returncode != 0
