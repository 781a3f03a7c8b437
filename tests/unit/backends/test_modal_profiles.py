"""Files of profiles for Modal: both shapes that are in use become profiles of a pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_exec import ConfigError, SandboxPool
from hermes_exec.backends.modal.config import ModalConfig

POOL_SHAPE = """
default_profile: default
profiles:
  default:
    image: python:3.11
    cpu: 1.0
    memory: 2048
    min_pool: 1
    max_pool: 5
    idle_timeout: 120
    max_lifetime: 3600
    scale_down_idle: 180
    workdir: /workspace
    secrets: []
    env_vars: {}
    use_dotenv: false
  pytorch-gpu:
    image: pytorch/pytorch:latest
    gpu: T4
    memory: 16384
    min_pool: 0
    max_pool: 2
    secrets: [huggingface, wandb]
    env_vars: {HF_HOME: /cache}
"""
CONFIG_SHAPE = """
default:
  name: default
  image: python:3.11
  slots_per_sandbox: 10
  min_sandboxes: 1
  max_sandboxes: 5
  acquire_timeout_s: 60
  execution_timeout_s: 30
  workspace_base: /data
gpu:
  image: pytorch
  gpu: "A100:2"
  secrets: "a, b"
  env_vars: "X=1;Y=a=b"
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "modal_profiles.yaml"
    path.write_text(text)
    return str(path)


def test_the_shape_of_the_pool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = SandboxPool("modal", profiles_file=written(tmp_path, POOL_SHAPE)).config
    assert (config.image, config.min_sandboxes, config.max_sandboxes) == ("python:3.11", 1, 7)
    assert (config.limits.cpus, config.limits.memory_mb) == (1.0, 2048)
    assert (config.idle_timeout_s, config.max_lifetime_s) == (180, 3600)
    gpu = config.profiles["pytorch-gpu"]
    assert gpu.backend_options == {"gpus": "T4", "modal_secrets": ("huggingface", "wandb")}
    assert (gpu.min_sandboxes, gpu.max_sandboxes, gpu.env) == (0, 2, {"HF_HOME": "/cache"})
    assert "use_dotenv is left out" in caplog.text


@pytest.mark.parametrize(("workdir", "imported"), [("/workspace", None), ("/workspace/", None), ("/app", "/app")])
def test_profile_workdir_workspace_is_the_slots_own(tmp_path: Path, workdir: str, imported: str | None) -> None:
    text = f"profiles: {{default: {{image: a, workdir: {workdir}}}, b: {{image: a, workdir: {workdir}}}}}"
    config = SandboxPool("modal", profiles_file=written(tmp_path, text)).config
    assert (config.workdir, config.profiles["b"].workdir) == (imported, imported)


def test_the_shape_of_the_configuration_class(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = SandboxPool("modal", profiles_file=written(tmp_path, CONFIG_SHAPE)).config
    assert (config.image, config.slots_per_sandbox, config.max_sandboxes) == ("python:3.11", 10, None)
    gpu = config.profiles["gpu"]
    assert gpu.backend_options == {"gpus": "A100:2", "modal_secrets": ("a", "b")}
    assert gpu.env == {"X": "1", "Y": "a=b"}
    assert "execution_timeout_s is left out: a command has a timeout of its own" in caplog.text


def test_what_the_pool_says_counts_more(tmp_path: Path) -> None:
    path = written(tmp_path, POOL_SHAPE)
    pool = SandboxPool("modal", profiles_file=path, image="mine", max_sandboxes=2, profiles={"own": {"image": "its"}})
    assert (pool.config.image, pool.config.max_sandboxes) == ("mine", 2)
    assert set(pool.config.profiles) == {"default", "pytorch-gpu", "own"}
    assert SandboxPool(ModalConfig(profiles_file=path)).config == SandboxPool("modal", profiles_file=path).config


def test_options_of_the_backend_in_the_default_profile(tmp_path: Path) -> None:
    path = written(tmp_path, "profiles: {default: {image: a, gpu: L4, region: us-east}}")
    pool = SandboxPool("modal", profiles_file=path, region="eu")
    backend = pool._templates.backend
    assert isinstance(backend, ModalConfig)
    assert (backend.gpus, backend.region) == ("L4", "eu")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("profiles: {a: {imgae: x}}", "a: there is no 'imgae'; did you mean 'image'?"),
        ("default_profile: b\nprofiles: {a: {image: x}}", "there is no such profile; valid names are a"),
        ("profiles: {a: {image: x, cpu: many}}", "a.cpu cannot be read: 'many' is no number"),
        ("profiles: {a: 3}", "a profile is a mapping"),
        ("profiles: {a: {env_vars: nothing}}", "is not NAME=VALUE"),
        ("{}", "there are no profiles in it"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        SandboxPool("modal", profiles_file=written(tmp_path, text))
