"""The pool of a batch run has room for all of its workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import ScriptedModel
from hermes_batch import BatchConfig
from hermes_batch.dataset import read_dataset
from hermes_exec import ConfigError, DockerConfig, SandboxPool

OWN_SLOTS = [{"host": "a", "slots": 8}, {"host": "b", "slots": 3}]


@pytest.mark.parametrize(
    ("backend", "options", "most"),
    [
        ("local", {}, 64),
        ("local", {"slots_per_sandbox": 5}, 20),
        ("ssh", {"hosts": ["a", "b"]}, 64),
        ("ssh", {"hosts": OWN_SLOTS[:1]}, 24),
        ("ssh", {"hosts": OWN_SLOTS}, 33),
    ],
)
def test_all_workers_have_a_slot(backend: str, options: dict[str, Any], most: int, tmp_path: Path) -> None:
    config = BatchConfig(
        dataset=tmp_path / "prompts.jsonl",
        out=tmp_path / "out",
        model=ScriptedModel([]),
        backend=backend,
        backend_options=options,
        workers=17,
    )
    assert config.make_pool().stats().slots_most == most


def pool_of(tmp_path: Path, rows: list[dict[str, Any]], **settings: Any) -> SandboxPool:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": "p", **row}) + "\n" for row in rows))
    config = BatchConfig(dataset=prompts, out=tmp_path / "out", model=ScriptedModel([]), **settings)
    return config.make_pool(read_dataset(prompts))


DOCKER: dict[str, Any] = {"backend": "docker", "image": "x"}
SEALED = [{"check": "true"}, {}]


@pytest.mark.parametrize(
    ("rows", "settings", "slots"),
    [
        (SEALED, DOCKER, 8),
        ([{"check": "true", "keep": ["a"]}], {**DOCKER, "score_in": "slot"}, 8),
        (SEALED, {"backend": DockerConfig(image="x", dns=("1.1.1.1",))}, 8),
        (SEALED, {**DOCKER, "backend_options": {"min_isolation": "uid", "network": False}}, 8),
        (SEALED, {**DOCKER, "slots_per_sandbox": 1}, 1),
        (SEALED, {**DOCKER, "backend_options": {"slots_per_sandbox": 3}}, 3),
        (SEALED, {**DOCKER, "score_in": "fork"}, 8),
        ([{}], DOCKER, 8),
        # These keep the pool's own default.
        (SEALED, {**DOCKER, "score_in": "live"}, None),
        ([*SEALED, {"check": "true", "score_in": "slot"}], DOCKER, None),
        (SEALED, {**DOCKER, "backend_options": {"limits": {"memory_mb": 512}}}, None),
        (SEALED, {**DOCKER, "backend_options": {"min_isolation": "exclusive"}}, None),
        (SEALED, {"backend": DockerConfig(image="x", runtime="runsc")}, None),
        (SEALED, {"backend": "singularity", "image": "x"}, None),
        (SEALED, {"backend": "local"}, None),
    ],
)
def test_prompts_on_docker_share_containers_unless_a_check_is_live(
    rows: list[dict[str, Any]], settings: dict[str, Any], slots: int | None, tmp_path: Path
) -> None:
    assert pool_of(tmp_path, rows, **settings).config.slots_per_sandbox == slots


@pytest.mark.parametrize(
    ("images", "sandboxes"),
    [(["a"] * 40, 3), (["a"] * 20 + ["b"] * 20, 6), ([str(n) for n in range(40)], 17), (["a", "b"], 2)],
)
def test_workers_on_prompts_of_different_images_have_a_sandbox(
    images: list[str], sandboxes: int, tmp_path: Path
) -> None:
    pool = pool_of(tmp_path, [{"check": "true", "image": name} for name in images], backend="docker", workers=17)
    assert pool.config.max_sandboxes == sandboxes


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (SEALED, {**DOCKER, "score_in": "fork", "slots_per_sandbox": 1}),
        ([*SEALED, {"check": "true", "score_in": "fork"}], {**DOCKER, "backend_options": {"slot_root": "shared"}}),
        (SEALED, {**DOCKER, "score_in": "fork", "backend_options": {"limits": {"memory_mb": 512}}}),
    ],
)
def test_checks_in_forks_need_slots_with_checkpoints(
    rows: list[dict[str, Any]], settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="set slot_root='own'"):
        pool_of(tmp_path, rows, **settings)
