"""Settings of sandboxes and slots as the backend and the runner get them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.config import Limits, PoolConfig, ProfileConfig
from hermes_exec.errors import ConfigError
from hermes_exec.pool.templates import Templates


@pytest.mark.parametrize(
    ("settings", "floor"),
    [({}, "landlock"), ({"min_isolation": "none"}, "none"), ({"min_isolation": "uid"}, "uid")],
)
def test_lowest_isolation_level_is_landlock_unless_another_is_written(settings: dict[str, Any], floor: str) -> None:
    template = Templates(PoolConfig(**settings), LocalConfig()).get(None, None)
    assert template.slot_params("s0", None, template.slot_settings)["floor"] == floor


def test_profiles_that_differ_only_in_the_slot_are_one_template() -> None:
    templates = Templates(
        PoolConfig(env={"A": "pool"}, profiles={"small": {"slot_limits": {"pids": 9}}}), LocalConfig()
    )
    default = templates.get(None, None)
    for number in range(100):
        own = ProfileConfig(
            env={"B": str(number)},
            secrets={"C": SecretStr(f"c{number}")},
            files={"a": b"%d" % number},
            slot_setup=f"echo {number}",
            workdir=f"/srv/{number}",
        )
        template, settings = templates.select(own, None)
        assert template is default
        assert settings.env == {"A": "pool", "B": str(number)}
        assert (settings.workdir, settings.slot_setup) == (f"/srv/{number}", (f"echo {number}",))
    assert templates.get(ProfileConfig(slot_limits=Limits(pids=9), env={"X": "y"}), None) is templates.get(
        "small", None
    )


@pytest.mark.parametrize(
    "own",
    [
        {"slots_per_sandbox": 3},
        {"max_sandboxes": 1},
        {"min_isolation": "none"},
        {"network": False},
        {"limits": Limits(open_files=9)},
        {"slot_limits": Limits(pids=None)},
        {"best_effort_limits": True},
        {"setup": "true"},
        {"idle_timeout_s": 1.0},
        {"max_lifetime_s": 1.0},
        {"runner_memory_mb": 32},
        {"checkpoint_disk_mb": 32},
        {"backend_options": {"readonly_paths": ["/opt"]}},
    ],
)
def test_settings_of_sandboxes_choose_the_template(own: dict[str, Any]) -> None:
    templates = Templates(PoolConfig(), LocalConfig())
    template = templates.get(ProfileConfig(**own), None)
    assert template is not templates.get(None, None)
    assert template is templates.get(ProfileConfig(**own, env={"A": "b"}), None)


def test_secret_options_of_backends_choose_the_template() -> None:
    templates = Templates(PoolConfig(image="own"), NomadConfig())
    first, second = (templates.get(ProfileConfig(backend_options={"token": SecretStr(name)}), None) for name in "ab")
    assert first.backend is not second.backend
    assert first.backend_config != second.backend_config


def test_variables_that_setup_sees_choose_the_template() -> None:
    profiles = {"own": ProfileConfig(setup="true", env={"A": "b"})}
    templates = Templates(PoolConfig(profiles=profiles), LocalConfig())
    assert templates.get(ProfileConfig(setup="true", env={"A": "b"}), None) is not templates.get("own", None)


def test_images_in_a_row_are_forgotten_unless_they_are_used() -> None:
    templates = Templates(PoolConfig(image="own"), DockerConfig())
    forgotten: list[str] = []
    used = templates.get(None, "used").key
    templates.is_used = lambda key: key == used
    templates.on_forget = lambda keys, _: forgotten.extend(keys)
    for number in range(5000):
        kind = ProfileConfig(image=f"image{number}", backend_options={"shm_size_mb": number % 100 + 1})
        template = templates.get(kind, None)
        assert templates.get(kind, None) is template
    assert len(templates.all) <= 68
    assert len(templates.backends) <= 68
    assert len(forgotten) == 5002 - len(templates.all)
    assert templates.get(None, "used").key == used
    assert templates.get(None, None).image == "own"


def test_equal_images_are_one_template_whatever_way_they_are_named() -> None:
    templates = Templates(PoolConfig(image="own"), DockerConfig())
    assert templates.get(ProfileConfig(image="other"), None) is templates.get(None, "other")
    assert templates.get(None, "third") is templates.get(ProfileConfig(), "third")
    assert templates.get(ProfileConfig(image="own"), None) is templates.get(None, None)


def test_secrets_of_inline_profiles_are_masked_and_bounded() -> None:
    templates = Templates(PoolConfig(secrets={"A": SecretStr("of the pool")}), LocalConfig())
    secrets = templates.secrets
    for number in range(1100):
        templates.select(ProfileConfig(secrets={"B": SecretStr(f"secret-{number}")}), None)
        assert f"secret-{number}" in secrets
    assert len(secrets) < 1010
    assert "of the pool" in secrets


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (ProfileConfig(min_sandboxes=1), "pool.prewarm"),
        (ProfileConfig(image="debian"), "has no images"),
        (ProfileConfig(workdir="image"), "needs an image"),
        (ProfileConfig(files={"a": "/no/such/file"}), "no local file"),
        (ProfileConfig(backend_options={"readonly_path": []}), "readonly_paths"),
        ({"env": {}}, "a name or a ProfileConfig, not dict"),
        ("small", "no profile 'small'"),
    ],
)
def test_wrong_profile_is_refused(profile: Any, message: str) -> None:  # noqa: ANN401 - also of a wrong type
    templates = Templates(PoolConfig(), LocalConfig())
    with pytest.raises(ConfigError, match=message):
        templates.select(profile, None)
