"""The contents of an instance's slots: prepared and proven once in a separate slot, before any model works on them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from hermes_agent import CheckFailed, Verdict
from hermes_atropos.cache import default_cache_dir, digest, file_name, make_once
from hermes_atropos.envs.swe_smith_oracle.instance import Instance, InstanceUnusable
from hermes_atropos.envs.swe_smith_oracle.repository import Trees, make_trees
from hermes_atropos.envs.swe_smith_oracle.verification import VERIFIER, VERIFIER_PATH, VerifierReport, run_tests
from hermes_atropos.envs.swe_smith_oracle.wheels import PROBE, SlotPython, fetch_wheels, read_requirements
from hermes_exec import SandboxPool, Slot

REPO, VENV = "repo", "venv"
_PROBE_S = 30.0
_VENV_BYTES = 1 << 30
_OUTPUT_CHARS = 800

RELOCATE = """
import ast, os, pathlib, sys
site, work = pathlib.Path(sys.argv[1]), os.getcwd()
roots = []
for pth in sorted(site.glob("*.pth")):
    lines = [line for line in pth.read_text().splitlines() if line.strip()]
    if lines and all(os.path.isdir(line) for line in lines):
        roots += lines
        pth.unlink()
    elif pth.name.startswith("__editable__"):
        finder = site / (pth.read_text().split("import ")[1].split(";")[0].strip() + ".py")
        for node in ast.parse(finder.read_text()).body:
            named = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            if getattr(named, "id", "") == "MAPPING":
                roots += [os.path.dirname(path) for path in ast.literal_eval(node.value).values()]
        pth.unlink()
        finder.unlink()
roots = list(dict.fromkeys(os.path.relpath(root, site) for root in roots))
(site / "_repo.pth").write_text("".join(root + "\\n" for root in roots))
"""
"""A program that rewrites the package's path relative to the environment, because slots of one image may have different
work directories.
"""


@dataclass(frozen=True)
class PreparationSettings:
    """The settings for preparing and testing instances; see `SweSmithOracleConfig`."""

    cache: Path = field(default_factory=lambda: default_cache_dir("swe_smith_oracle"))
    base_url: str = "https://github.com"
    wheels: Literal["offline", "online"] = "offline"
    python: str = "python3"
    test_requirements: tuple[str, ...] = ("pytest>=8,<10",)
    test_arguments: tuple[str, ...] = ()
    install_timeout_s: float = 600.0
    test_timeout_s: float = 600.0


@dataclass(frozen=True)
class PreparedInstance:
    """An instance and the local directories that are copied into its slots."""

    instance: Instance
    trees: Trees
    venv: Path
    settings: PreparationSettings

    @property
    def files(self) -> dict[str, Path]:
        """The files of a slot at the start."""
        return {REPO: self.trees.start, VENV: self.venv}

    @property
    def check_files(self) -> dict[str, bytes]:
        """The files that are added for scoring."""
        return {VERIFIER_PATH: VERIFIER.read_bytes()}

    @property
    def keep(self) -> tuple[str, ...]:
        """The files that hold the model's work."""
        return tuple(f"{REPO}/{name}" for name in self.trees.sources)

    @property
    def setup_command(self) -> str:
        """The command that completes the virtual environment in a slot. It takes a tenth of a second."""
        return venv_command(self.settings)


def venv_command(settings: PreparationSettings) -> str:
    """Return the command that creates the virtual environment around the packages in it."""
    return f"{shlex.quote(settings.python)} -m venv --without-pip {VENV}"


def slot_python() -> tuple[str, ...]:
    """Return the command that runs Python in the virtual environment."""
    return (f"{VENV}/bin/python",)


class Workspaces:
    """Prepares instances, each once. The results stay on this host for later processes."""

    def __init__(self, pool: SandboxPool, settings: PreparationSettings, *, image: str | None = None) -> None:
        self._pool, self._settings, self._image = pool, settings, image
        self._python: SlotPython | None = None
        self._ready: dict[str, PreparedInstance] = {}
        self._lock = anyio.Lock()

    async def prepare(self, instance: Instance) -> PreparedInstance:
        """Return the instance, prepared and proven: all its tests pass with the solution, and FAIL_TO_PASS fail without
        it.

        Raises:
            InstanceUnusable: If the instance cannot be prepared or proven.
            ExecError: If there is no slot.
        """
        async with self._lock:
            prepared = self._ready.get(instance.instance_id)
            if prepared is None or prepared.instance != instance:
                prepared = self._ready[instance.instance_id] = await self._prepare(instance)
            return prepared

    async def _prepare(self, instance: Instance) -> PreparedInstance:
        settings = self._settings
        trees = await anyio.to_thread.run_sync(
            make_trees, instance, settings.cache, settings.base_url, abandon_on_cancel=True
        )
        origin = f"{instance.repo}@{instance.base_commit}"
        version = instance.sdist.version if instance.sdist else None
        venv = await self.ensure_environment(origin, trees.start, version)
        prepared = PreparedInstance(instance, trees, venv, settings)
        method = digest(VERIFIER.read_text("utf-8"), settings.test_arguments)
        proof = venv.parent / "proofs" / f"{trees.start.parent.name}-{method}-{venv.name}"
        if not await anyio.Path(proof).exists():
            async with self._pool.slot(None, self._image) as slot:
                await _prove(slot, prepared)
            await anyio.to_thread.run_sync(make_once, proof, Path.touch)
        return prepared

    async def ensure_environment(self, origin: str, tree: Path, version: str | None = None) -> Path:
        """Return the directory of a virtual environment with a repository's package (editable), pytest and their
        requirements. If it is missing, install it in a slot, because building a package runs untrusted code.
        """
        settings = self._settings
        python = self._python = self._python or await self._probe()
        key = digest(origin, settings.wheels, settings.test_requirements, python.version, python.platform, self._image)
        target = settings.cache / "environments" / f"{file_name(origin)}-{key}"
        if await anyio.Path(target).exists():
            return target
        needed = [*settings.test_requirements]
        if settings.wheels == "offline":
            needed += await anyio.to_thread.run_sync(read_requirements, tree)
        wheels = await anyio.to_thread.run_sync(fetch_wheels, needed, python, settings.cache, abandon_on_cancel=True)
        async with self._pool.slot(None, self._image) as slot:
            await slot.files.upload(tree, REPO)
            await slot.files.upload(wheels, "wheels")
            await _install(slot, settings, version, python)
            async with anyio.TemporaryDirectory(prefix="swe-smith-") as directory:
                await slot.files.download(f"{VENV}/lib", f"{directory}/lib", _VENV_BYTES)

                def keep(path: Path) -> None:
                    import shutil

                    shutil.copytree(Path(directory) / "lib", path / "lib", symlinks=True)

                return await anyio.to_thread.run_sync(make_once, target, keep)

    async def _probe(self) -> SlotPython:
        async with self._pool.slot(None, self._image) as slot:
            probe = await slot.run([self._settings.python, "-I", "-c", PROBE], timeout_s=_PROBE_S)
        if not probe.ok:
            raise InstanceUnusable(
                f"the slots have no {self._settings.python}: {probe.reason or probe.output[-_OUTPUT_CHARS:]}"
            )
        version, platform, glibc = json.loads(probe.stdout)
        return SlotPython(tuple(version), platform, glibc)


async def _install(slot: Slot, settings: PreparationSettings, version: str | None, python: SlotPython) -> None:
    pip = next(entry.name for entry in await slot.files.list("wheels") if entry.name.startswith("pip-"))
    offline = ["--no-index", "--find-links", "wheels"] if settings.wheels == "offline" else []
    install = [f"wheels/{pip}/pip", "install", "--quiet", "--no-input", *offline, "-e", f"./{REPO}"]
    # A version cannot be derived from the git history, because there is none.
    env = {} if version is None else {"SETUPTOOLS_SCM_PRETEND_VERSION": version}
    site = f"{VENV}/lib/{python.name}/site-packages"
    for command in (
        [settings.python, "-m", "venv", "--without-pip", VENV],
        [*slot_python(), *install, *settings.test_requirements],
        [*slot_python(), "-I", "-c", RELOCATE, site],
    ):
        done = await slot.run(command, env=env, timeout_s=settings.install_timeout_s, merge_stderr=True)
        if not done.ok:
            why = (
                f"took longer than {settings.install_timeout_s:g} s" if done.timed_out else done.output[-_OUTPUT_CHARS:]
            )
            raise InstanceUnusable(f"{' '.join(command[:4])} …: {done.reason or why}")


async def fill_slot(slot: Slot, prepared: PreparedInstance, *, solved: bool) -> None:
    """Copy an instance, with or without its solution, and the verifier into an empty slot."""
    for path, directory in prepared.files.items():
        await slot.files.upload(directory, path)
    for path, content in prepared.check_files.items():
        await slot.files.write_bytes(path, content)
    if solved and prepared.trees.solution_paths:
        await slot.files.upload(prepared.trees.solution, REPO)
    result = await slot.run(prepared.setup_command, timeout_s=_PROBE_S, merge_stderr=True)
    if not result.ok:
        raise CheckFailed(f"{prepared.setup_command}: {result.output[-_OUTPUT_CHARS:]}")


async def run_instance_tests(
    slot: Slot, prepared: PreparedInstance, tests: Sequence[str], *, run_all: bool = False
) -> VerifierReport:
    """Run tests of an instance in a slot that holds it."""
    settings = prepared.settings
    return await run_tests(
        slot,
        slot_python(),
        tests,
        timeout_s=settings.test_timeout_s,
        arguments=settings.test_arguments,
        run_all=run_all,
    )


async def _prove(slot: Slot, prepared: PreparedInstance) -> None:
    instance = prepared.instance
    await fill_slot(slot, prepared, solved=False)
    start = await run_instance_tests(slot, prepared, instance.fail_to_pass, run_all=True)
    passing = sorted(set(instance.fail_to_pass) - set(start.list_failed(instance.fail_to_pass)))
    solution = bool(prepared.trees.solution_paths)
    if start.complete and passing:
        hint = "; its patch seems to be the fix, not the bug" if len(passing) == len(instance.fail_to_pass) else ""
        raise InstanceUnusable(f"{passing[0]} of FAIL_TO_PASS passes at the start{hint}")
    if solution:
        await slot.files.upload(prepared.trees.solution, REPO)
    expected = instance.tests if solution else instance.pass_to_pass
    done = await run_instance_tests(slot, prepared, expected)
    wrong = done.list_failed(expected)
    if not done.complete:
        raise InstanceUnusable(f"its tests cannot run here: {done.why}")
    if wrong:
        when = "with the solution" if solution else "at the start"
        failure = done.messages.get(wrong[0]) or done.outcomes.get(wrong[0], "it is missing")
        raise InstanceUnusable(f"{wrong[0]} does not pass {when}: {failure}")


async def judge(slot: Slot, prepared: PreparedInstance, tests: Sequence[str]) -> Verdict:
    """Return the verdict on the work in a slot that holds the verifier: 1.0 if every test passed, else 0.0.

    If the tests did not report (they hang or end their process), the slot is reset and the verifier is run on the
    solution. If that works, the model's work was the cause.

    Raises:
        CheckFailed: If the verifier does not work with the solution either.
        ExecError: If the slot is lost.
    """
    done = await run_instance_tests(slot, prepared, tests)
    failed = done.list_failed(tests)
    if done.complete:
        failure = (
            f"{failed[0]}: {done.messages.get(failed[0]) or done.outcomes.get(failed[0], 'not run')}" if failed else ""
        )
        return Verdict(float(not failed), not failed, output=failure)
    await slot.kill_all()
    await slot.reset()
    await fill_slot(slot, prepared, solved=True)
    control = await run_instance_tests(slot, prepared, tests[:1])
    if not control.complete:
        raise CheckFailed(f"the verifier does not work in this slot: {control.why}")
    return Verdict(0.0, solved=False, output=done.why)


def problem_text(instance: Instance, mode: str) -> str:
    """Return the problem statement, followed by the dataset's `text` if the mode asks for it."""
    with_text = mode != "problem_statement" and bool(instance.text)
    return f"{instance.problem_statement}\n\n{instance.text}" if with_text else instance.problem_statement
