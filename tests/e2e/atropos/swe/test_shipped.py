"""Every instance that is shipped can be solved, and is not solved by doing nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hermes_atropos.envs.swe_smith_oracle.instance import Instance, InstanceUnusable
from hermes_atropos.envs.swe_smith_oracle.workspace import PreparationSettings, Workspaces
from hermes_exec import SandboxPool
from tests.conftest import require_engine
from tests.e2e.atropos.swe.agents import TOOLS, instances, of, rollout, solution, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
PACKAGES = sorted({one.sdist.name for one in instances() if one.sdist})


def test_the_shipped_set_has_twelve_instances_of_three_packages_at_least() -> None:
    assert len(instances()) >= 12
    assert len(PACKAGES) >= 3


async def proven(pool: SandboxPool, instance: Instance, tool: str, image: str | None = None) -> None:
    prepared = await Workspaces(pool, PreparationSettings(), image=image).prepare(instance)
    oracle = await rollout(pool, prepared, solution(prepared, tool))
    assert oracle.reward == 1.0, (oracle.error, oracle.verdict)
    null = await rollout(pool, prepared, [terminal("git status")])
    assert null.reward == 0.0, (null.error, null.verdict)


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
async def test_an_instance_of_each_package(package: str) -> None:
    async with SandboxPool("local") as pool:
        await proven(pool, of(package), TOOLS[PACKAGES.index(package) % len(TOOLS)])


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("instance", instances(), ids=lambda one: str(one.instance_id))
async def test_every_instance(instance: Instance) -> None:
    async with SandboxPool("local") as pool:
        await proven(pool, instance, TOOLS[len(instance.instance_id) % len(TOOLS)])


@pytest.mark.slow
@pytest.mark.docker
async def test_an_instance_on_docker(docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    image = docker_image("debian")
    async with SandboxPool("docker", image=image, slots_per_sandbox=2) as pool:
        await proven(pool, of("toolz"), "patch", image)


@pytest.mark.slow
async def test_what_the_model_sees_has_no_history_with_the_solution() -> None:
    async with SandboxPool("local") as pool:
        prepared = await Workspaces(pool, PreparationSettings()).prepare(of("toolz"))
        look = "git log --oneline | wc -l; git status --short; git count-objects -v | grep -E '^(count|packs)'"
        look += "; git cat-file --batch-all-objects --batch-check='%(objecttype)' | grep -c commit"
        async with pool.slot() as slot:
            await slot.files.upload(prepared.trees.start, "repo")
            seen = await slot.run(f"cd repo && {look}")
            fix = (prepared.trees.solution / prepared.trees.solution_paths[0]).read_bytes()
            blob = await slot.run(["git", "hash-object", "--stdin"], stdin=fix)
            known = await slot.run(["git", "-C", "repo", "cat-file", "-e", blob.stdout.strip()])
    assert seen.stdout.split("\n") == ["1", "count: 0", "packs: 1", "1", ""]
    assert known.exit_code != 0


@pytest.mark.slow
async def test_an_instance_that_does_not_keep_its_promise_is_refused() -> None:
    """Its solution does not pass, its tests pass at the start, or its patch fits nothing: told apart, never scored."""
    good = of("toolz")
    other = next(one for one in instances() if one.repo == good.repo and one != good)
    async with SandboxPool("local") as pool:
        workspaces = Workspaces(pool, PreparationSettings())
        swapped = replace(good, fail_to_pass=good.pass_to_pass[:1], pass_to_pass=good.pass_to_pass[1:])
        with pytest.raises(InstanceUnusable, match="of FAIL_TO_PASS passes at the start"):
            await workspaces.prepare(replace(swapped, instance_id="a"))
        absent = replace(good, instance_id="b", pass_to_pass=(*good.pass_to_pass, "toolz/tests/test_utils.py::test_no"))
        with pytest.raises(InstanceUnusable, match=r"test_no does not pass with the solution: it is missing"):
            await workspaces.prepare(absent)
        with pytest.raises(InstanceUnusable, match=r"applies to .* neither forwards nor in reverse"):
            await workspaces.prepare(replace(good, instance_id="c", patch=good.patch.replace("\n-    ", "\n-  x ")))
        with pytest.raises(InstanceUnusable, match="gives commit"):
            await workspaces.prepare(replace(good, instance_id="d", base_commit="0" * 40))
        assert good.sdist is not None
        with pytest.raises(InstanceUnusable, match="has SHA-256"):
            await workspaces.prepare(replace(good, instance_id="e", sdist=replace(good.sdist, sha256="0" * 64)))
    assert other.repo == good.repo
