"""Generates instances from packages in the index: bugs in real source code, each proven by the package's own tests."""

from __future__ import annotations

import difflib
import hashlib
import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_atropos.envs.swe_smith_oracle import sdist
from hermes_atropos.envs.swe_smith_oracle.git import apply
from hermes_atropos.envs.swe_smith_oracle.instance import Instance, InstanceUnusable, Sdist
from hermes_atropos.envs.swe_smith_oracle.mutations import Mutation, find_mutations, function_source
from hermes_atropos.envs.swe_smith_oracle.repository import sdist_tree, source_files
from hermes_atropos.envs.swe_smith_oracle.verification import VERIFIER, VERIFIER_PATH, VerifierReport, run_tests
from hermes_atropos.envs.swe_smith_oracle.workspace import (
    REPO,
    VENV,
    PreparationSettings,
    Workspaces,
    slot_python,
    venv_command,
)
from hermes_exec import SandboxPool, Slot

_LARGEST_SHARE = 5
"""At most one in this many tests may fail. Mutants that break more tests fail on the first import."""
_TRIES_PER_INSTANCE = 8
"""Mutants to try per wanted instance before a package is given up."""
_HANG_FACTOR, _HANG_LEAST_S = 5.0, 20.0
_NAMED_TESTS = 10


@dataclass(frozen=True)
class Candidate:
    """A mutation in a file."""

    file: str
    mutation: Mutation


@dataclass
class MutantCounts:
    """The outcomes of a package's mutants."""

    package: str
    tests: int = 0
    base_seconds: float = 0.0
    tried: int = 0
    kept: int = 0
    survived: int = 0
    broke_too_much: int = 0
    hung: int = 0
    flaky: int = 0

    def __str__(self) -> str:
        return (
            f"{self.package}: {self.tests} tests in {self.base_seconds:.1f} s; of {self.tried} mutants "
            f"{self.kept} kept, "
            f"{self.survived} survived, {self.broke_too_much} broke too much, {self.hung} hung, {self.flaky} flaky"
        )


OnProgress = Callable[[MutantCounts], None]


async def make_instances(
    pool: SandboxPool,
    package: str,
    *,
    count: int,
    seed: int,
    settings: PreparationSettings,
    on_progress: OnProgress = lambda _: None,
) -> tuple[list[Instance], MutantCounts]:
    """Return up to `count` instances of a package given as `name==version`. The same seed and tests give the same
    instances.

    Raises:
        InstanceUnusable: If the package cannot be downloaded, or if its tests do not run here.
    """
    name, _, version = package.partition("==")
    if not name or not version:
        raise InstanceUnusable(f"a package must be given as NAME==VERSION, not {package!r}")
    source = await anyio.to_thread.run_sync(sdist.find_sdist, name, version)
    with tempfile.TemporaryDirectory(prefix="swe-smith-") as directory:
        tree, git_dir = Path(directory) / "tree", Path(directory) / "git"
        commit = await anyio.to_thread.run_sync(sdist_tree, source, settings.cache, tree, git_dir)
        venv = await Workspaces(pool, settings).ensure_environment(f"pypi/{name}@{commit}", tree, version)
        async with pool.slot() as slot:
            return await _PackageMutator(slot, source, commit, tree, git_dir, settings, on_progress).make(
                venv, count, seed
            )


class _PackageMutator:
    def __init__(
        self,
        slot: Slot,
        source: Sdist,
        commit: str,
        tree: Path,
        git_dir: Path,
        settings: PreparationSettings,
        on_progress: OnProgress,
    ) -> None:
        self._slot, self._source, self._commit = slot, source, commit
        self._tree, self._git_dir, self._settings, self._on_progress = tree, git_dir, settings, on_progress
        self._counts = MutantCounts(f"{source.name}=={source.version}")

    async def make(self, venv: Path, count: int, seed: int) -> tuple[list[Instance], MutantCounts]:
        await self._slot.files.upload(self._tree, REPO)
        await self._slot.files.upload(venv, VENV)
        await self._slot.files.write_bytes(VERIFIER_PATH, VERIFIER.read_bytes())
        (await self._slot.run(venv_command(self._settings))).check()
        stable = await self._stable_tests()
        instances: list[Instance] = []
        done: set[tuple[str, str]] = set()
        kinds: dict[str, int] = {}
        for candidate in self._candidates(seed):
            where = (candidate.file, candidate.mutation.function)
            kind = candidate.mutation.kind
            if len(instances) >= count or self._counts.tried >= count * _TRIES_PER_INSTANCE:
                break
            if where in done or kinds.get(kind, 0) > count // 3:
                continue
            self._counts.tried += 1
            instance = await self._prove(candidate, stable)
            if instance is not None:
                instances.append(instance)
                done.add(where)
                kinds[kind] = kinds.get(kind, 0) + 1
                self._counts.kept += 1
            self._on_progress(self._counts)
        return instances, self._counts

    async def _stable_tests(self) -> list[str]:
        """Return the tests that pass twice in a row."""
        runs = [await self._run(None, self._settings.test_timeout_s) for _ in range(2)]
        for run in runs:
            if not run.complete:
                raise InstanceUnusable(f"the tests of {self._counts.package} do not run here: {run.why}")
        passed = [{test for test, outcome in run.outcomes.items() if outcome == "passed"} for run in runs]
        stable = sorted(passed[0] & passed[1])
        self._counts.tests, self._counts.base_seconds = len(stable), runs[1].seconds
        if len(stable) < _LARGEST_SHARE:
            raise InstanceUnusable(
                f"only {len(stable)} of its tests pass here: too few; they printed: {runs[1].printed or 'nothing'}"
            )
        return stable

    def _candidates(self, seed: int) -> list[Candidate]:
        candidates = []
        for file in source_files(self._tree):
            try:
                candidates += [
                    Candidate(file, mutation) for mutation in find_mutations((self._tree / file).read_bytes())
                ]
            except SyntaxError:
                continue
        random.Random(f"{seed} {self._counts.package}").shuffle(candidates)
        return candidates

    async def _run(self, tests: Sequence[str] | None, timeout_s: float) -> VerifierReport:
        done = await run_tests(
            self._slot, slot_python(), tests, timeout_s=timeout_s, arguments=self._settings.test_arguments
        )
        if not done.complete:
            await self._slot.kill_all()
        return done

    async def _prove(self, candidate: Candidate, stable: list[str]) -> Instance | None:
        before = (self._tree / candidate.file).read_bytes()
        after = candidate.mutation.apply(before)
        path = f"{REPO}/{candidate.file}"
        limit_s = max(_HANG_LEAST_S, _HANG_FACTOR * self._counts.base_seconds)
        await self._slot.files.write_bytes(path, after)
        try:
            runs = []
            for _ in range(2):
                runs.append(await self._run(None, limit_s))
                if not self._is_useful(runs[-1], stable):
                    return None
        finally:
            await self._slot.files.write_bytes(path, before)
        failing = [set(run.list_failed(stable)) for run in runs]
        if failing[0] != failing[1]:
            self._counts.flaky += 1
            return None
        patch = self._patch(candidate.file, before, after)
        await self._check_patch(patch, candidate.file, before, after)
        return self._instance(candidate, patch, after, sorted(failing[0]), stable, runs[0])

    def _is_useful(self, run: VerifierReport, stable: list[str]) -> bool:
        failing = len(run.list_failed(stable))
        if not run.complete:
            self._counts.hung += 1
        elif failing == 0:
            self._counts.survived += 1
        elif failing * _LARGEST_SHARE > len(stable):
            self._counts.broke_too_much += 1
        else:
            return True
        return False

    def _patch(self, file: str, before: bytes, after: bytes) -> str:
        old, new = (text.decode("utf-8").splitlines(keepends=True) for text in (before, after))
        body = "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(old, new, f"a/{file}", f"b/{file}")
        )
        return f"diff --git a/{file} b/{file}\n{body}"

    async def _check_patch(self, patch: str, file: str, before: bytes, after: bytes) -> None:
        """Raise InstanceUnusable if the patch does not add the bug, or if its reverse does not remove it."""
        path = self._tree / file
        for reverse, wanted in ((False, after), (True, before)):
            work = partial(apply, patch, self._tree, self._git_dir, reverse=reverse)
            fits = await anyio.to_thread.run_sync(work)
            if not fits or path.read_bytes() != wanted:
                raise InstanceUnusable(f"the patch for {file} does not restore it")

    def _instance(
        self, candidate: Candidate, patch: str, after: bytes, failing: list[str], stable: list[str], run: VerifierReport
    ) -> Instance:
        mutation = candidate.mutation
        name = f"{self._source.name}.{self._source.version}"
        mark = hashlib.sha256(patch.encode()).hexdigest()[:8]
        body = function_source(after, mutation.function)
        return Instance(
            instance_id=f"{name}.func_pm_{mutation.kind}__{mark}",
            repo=f"pypi/{self._source.name}",
            base_commit=self._commit,
            problem_statement=_statement(candidate, failing, run),
            fail_to_pass=tuple(failing),
            pass_to_pass=tuple(test for test in stable if test not in set(failing)),
            patch=patch,
            text=f"`{mutation.function}` in `{candidate.file}`:\n\n```python\n{body}\n```\n",
            sdist=self._source,
        )


def _statement(candidate: Candidate, failing: list[str], run: VerifierReport) -> str:
    """Return the problem statement: the failing tests and the function to look at, but not the changed line."""
    listing = "".join(f"- `{test}`\n" for test in failing[:_NAMED_TESTS])
    if len(failing) > _NAMED_TESTS:
        listing += f"- and {len(failing) - _NAMED_TESTS} more\n"
    message = next((run.messages[test] for test in failing if run.messages.get(test)), "")
    message = re.sub(r"0x[0-9a-f]{6,}", "0x…", message)  # addresses differ in each run
    excerpt = f"\nThe first of them ends with:\n\n```\n{message.strip()}\n```\n" if message else ""
    return (
        f"`{candidate.mutation.function}` in `{candidate.file}` no longer does what it should. These tests fail:\n\n"
        f"{listing}{excerpt}\n"
        "Find the cause and mend it in the package's source. All other tests must go on passing. Changes of tests and "
        "of configuration do not count."
    )


def write_instances(out: Path, rows: Sequence[Instance]) -> None:
    """Write instances to a file, one per line. The file appears only when it is complete."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=out.parent, delete=False) as file:
        for row in rows:
            file.write(json.dumps(row.row(), ensure_ascii=False) + "\n")
    Path(file.name).chmod(0o644)
    shutil.move(file.name, out)
