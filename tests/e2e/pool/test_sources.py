"""Where a pool's settings come from: a file, a mapping, the environment, a profile, the image of one request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import ConfigError, ImageError, SandboxPool

pytestmark = pytest.mark.anyio
Image = Callable[[str], str]
SETTINGS: dict[str, Any] = {
    "backend": "docker",
    "max_sandboxes": 2,
    "network": False,
    "limits": {"memory_mb": 128},
    "env": {"WHO": "pool", "KEPT": "yes"},
    "secrets": {"TOKEN": "hush"},
    "shm_size_mb": 16,
    "profiles": {"other": {"env": {"WHO": "profile"}, "slots_per_sandbox": 2, "backend_options": {"shm_size_mb": 32}}},
}
TOML = """
backend = "docker"
image = "{image}"
max_sandboxes = 2
network = false
shm_size_mb = 16
limits = {{ memory_mb = 128 }}
env = {{ WHO = "pool", KEPT = "yes" }}
secrets = {{ TOKEN = "hush" }}
[profiles.other]
slots_per_sandbox = 2
env = {{ WHO = "profile" }}
backend_options = {{ shm_size_mb = 32 }}
"""
LOOK = "echo $WHO $KEPT $TOKEN; df -m /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2; ls /sys/class/net"


def write(directory: Path, ending: str, image: str) -> Path:
    """A configuration file; JSON is YAML too."""
    path = directory / f"pool.{ending}"
    path.write_text(TOML.format(image=image) if ending == "toml" else json.dumps({**SETTINGS, "image": image}))
    return path


@pytest.mark.docker
@pytest.mark.parametrize("ending", ["yaml", "toml", "json", "mapping"])
async def test_from_config_on_docker(ending: str, tmp_path: Path, docker_image: Image) -> None:
    image = docker_image("busybox")
    source: Any = {**SETTINGS, "image": image} if ending == "mapping" else write(tmp_path, ending, image)
    async with SandboxPool.from_config(source) as pool:
        async with pool.slot() as slot:
            assert (slot.isolation.level, slot.image) == ("exclusive", image)
            assert (await slot.run(LOOK)).stdout.split() == ["pool", "yes", "hush", "16", "lo"]
            assert slot.isolation.limits["memory_mb"] == "cgroup of the container"
        async with pool.slot("other") as slot:
            assert slot.isolation.level != "exclusive"
            assert (await slot.run(LOOK)).stdout.split() == ["profile", "yes", "hush", "32", "lo"]
    async with SandboxPool.from_config(source, profile="other", env={"WHO": "call"}) as pool, pool.slot() as slot:
        assert slot.isolation.level != "exclusive"
        assert (await slot.run(LOOK)).stdout.split()[:2] == ["call", "hush"]


@pytest.mark.docker
async def test_from_env_on_docker(tmp_path: Path, docker_image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    image = docker_image("busybox")
    given = {
        "CONFIG": str(write(tmp_path, "yaml", "hermes-exec-test/absent:1")),
        "IMAGE": image,
        "SHM_SIZE_MB": "24",
        "LIMITS": "{pids: 50}",
        "SECRETS": "{TOKEN: from-env}",
        "PULL_POLICY": "never",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"HERMES_EXEC_{name}", value)
    async with SandboxPool.from_env() as pool, pool.slot() as slot:
        assert slot.image == image
        assert (await slot.run(LOOK)).stdout.split() == ["pool", "yes", "from-env", "24", "lo"]
        assert set(slot.isolation.limits) == {"pids"}
    monkeypatch.setenv("HERMES_EXEC_PROFILE", "other")
    async with SandboxPool.from_env() as pool, pool.slot() as slot:
        assert (await slot.run(LOOK)).stdout.split()[0] == "profile"
    monkeypatch.setenv("MINE_BACKEND", "local")
    async with SandboxPool.from_env("MINE_") as pool, pool.slot() as slot:
        assert (slot.backend, slot.image) == ("local", None)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("BACKEND", "dokcer", "did you mean 'docker'"),
        ("MAX_SANDBOXES", "many", "max_sandboxes"),
        ("LIMITS", "{memory_mb: [", "HERMES_EXEC_LIMITS: the value is not YAML"),
        ("LIMITS", "128", "limits"),
        ("CONFIG", "/no/such/pool.yaml", "/no/such/pool.yaml"),
        ("PROFILE", "gpu", "no profile 'gpu'"),
    ],
)
def test_an_environment_that_cannot_be_read_names_the_variable(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"HERMES_EXEC_{name}", value)
    with pytest.raises(ConfigError, match=said):
        SandboxPool.from_env()


async def test_from_env_warns_of_unknown_names_at_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_EXEC_MAX_SANDBOXS", "3")
    monkeypatch.setenv("HERMES_EXEC_NOTE", "read")
    for make in (SandboxPool.from_env, SandboxPool.shared):
        with pytest.warns(RuntimeWarning, match="HERMES_EXEC_MAX_SANDBOXS.*did you mean 'max_sandboxes'") as caught:
            assert make().config.note == "read"
        assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    ("ending", "content", "said"),
    [
        ("yaml", "backend: local\nmax_sandboxs: 2\n", "did you mean 'max_sandboxes'"),
        ("yaml", "- a\n- b\n", "a mapping"),
        ("yaml", "a: [", "pool.yaml"),
        ("toml", "backend = ", "pool.toml"),
        ("json", "{", "pool.json"),
        ("ini", "", "ends with"),
        ("yaml", "backend: docker\n", "needs an image"),
        ("yaml", "backend_options: 3\n", "backend_options must be a mapping"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(ending: str, content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / f"pool.{ending}"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        SandboxPool.from_config(path)


@pytest.mark.docker
async def test_each_request_may_name_an_image(docker_image: Image) -> None:
    small, large = docker_image("busybox"), docker_image("debian")
    profiles = {"large": {"image": large, "env": {"WHO": "large"}}}
    async with SandboxPool("docker", image=small, max_sandboxes=2, profiles=profiles, pull_policy="never") as pool:
        async with pool.slot() as one, pool.slot(image=large) as two:
            assert (one.image, two.image) == (small, large)
            assert not (await one.run("python3 -V")).ok
            assert (await two.run("python3 -V; echo $WHO")).stdout.startswith("Python 3")
        # The cap is one for all images: a sandbox that is idle makes room.
        async with pool.slot("large") as one, pool.slot("large", image=small) as two:
            assert (one.image, two.image) == (large, small)
            assert (await one.run("echo $WHO")).stdout == (await two.run("echo $WHO")).stdout == "large\n"
            assert sum(pool.stats().sandboxes.values()) <= 2
        with pytest.raises(ImageError, match="hermes-exec-test/absent:9"):
            await pool.acquire(image="hermes-exec-test/absent:9")
        async with pool.slot() as slot:
            assert (await slot.run("echo fine")).stdout == "fine\n"


@pytest.mark.docker
async def test_a_pool_may_have_no_image_of_its_own_where_each_profile_has(docker_image: Image) -> None:
    async with SandboxPool("docker", profiles={"a": {"image": docker_image("busybox")}}) as pool:
        async with pool.slot("a") as slot:
            assert (await slot.run("echo a")).stdout == "a\n"
        with pytest.raises(ConfigError, match="needs an image"):
            await pool.acquire()
