"""An instance of the dataset: a repository at a commit, a bug in it, and the tests that prove a fix."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_exec.errors import ConfigError

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_REPO = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SDIST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class InstanceUnusable(Exception):
    """Raised when an instance cannot be used here, or when its tests contradict it. The message has the reason."""


@dataclass(frozen=True)
class Sdist:
    """A source distribution in the package index."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Instance:
    """A row of the dataset in the format of SWE-smith.

    `patch` adds the bug to `base_commit`, or is the patch that added it if `base_commit` already has the bug. It is
    empty if the dataset has none; then no solution is known. `sdist` is the source of `base_commit` if that is not a
    commit of a repository that can be cloned.
    """

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    patch: str = ""
    text: str = ""
    sdist: Sdist | None = None

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests that must pass in the end. The tests that fail at the start come first."""
        return (*self.fail_to_pass, *self.pass_to_pass)

    def row(self) -> dict[str, Any]:
        """Return the instance in the format of the dataset."""
        row: dict[str, Any] = {
            "instance_id": self.instance_id,
            "repo": self.repo,
            "base_commit": self.base_commit,
            "problem_statement": self.problem_statement,
            "text": self.text,
            "patch": self.patch,
            "FAIL_TO_PASS": list(self.fail_to_pass),
            "PASS_TO_PASS": list(self.pass_to_pass),
        }
        if self.sdist is not None:
            row["sdist"] = {"name": self.sdist.name, "version": self.sdist.version, "sha256": self.sdist.sha256}
        return row


def read_instance(row: Mapping[str, Any], number: int | None = None) -> Instance:
    """Return the instance in a row. Lists of tests may be JSON text.

    Args:
        row: The row of the dataset.
        number: The number of the row, for error messages.

    Raises:
        ConfigError: If a field is missing or wrong.
    """
    name = row.get("instance_id")
    where = f"instance {name!r}" if isinstance(name, str) else "an instance" if number is None else f"row {number}"
    reader = _RowReader(row, where)
    instance = Instance(
        instance_id=reader.text("instance_id"),
        repo=reader.matching("repo", _REPO, "of the form owner/name"),
        base_commit=reader.matching("base_commit", _COMMIT, "a commit id in hexadecimal"),
        problem_statement=reader.text("problem_statement"),
        fail_to_pass=reader.tests("FAIL_TO_PASS"),
        pass_to_pass=reader.tests("PASS_TO_PASS"),
        patch=reader.text("patch", needed=False),
        text=reader.text("text", needed=False),
        sdist=reader.sdist(),
    )
    if not instance.fail_to_pass:
        raise ConfigError(f"{where}: FAIL_TO_PASS is empty, so nothing would prove a solution")
    both = set(instance.fail_to_pass) & set(instance.pass_to_pass)
    if both:
        raise ConfigError(f"{where}: {min(both)!r} is in both FAIL_TO_PASS and PASS_TO_PASS")
    return instance


@dataclass(frozen=True)
class _RowReader:
    row: Mapping[str, Any]
    where: str

    def text(self, name: str, *, needed: bool = True) -> str:
        value = self.row.get(name)
        if value is None and not needed:
            return ""
        if not isinstance(value, str) or (needed and not value.strip()):
            raise ConfigError(
                f"{self.where}: {name} must be a text{' that is not empty' * needed}, not {_shorten(value)}"
            )
        return value

    def matching(self, name: str, pattern: re.Pattern[str], form: str) -> str:
        value = self.text(name)
        if not pattern.fullmatch(value):
            raise ConfigError(f"{self.where}: {name} must be {form}, not {_shorten(value)}")
        return value

    def tests(self, name: str) -> tuple[str, ...]:
        value = self.row.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise ConfigError(f"{self.where}: {name} is a text but not a JSON list: {error}") from error
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            test_ids = tuple(value)
        elif value is not None and hasattr(value, "tolist"):  # an array, as parquet readers return it
            test_ids = tuple(value.tolist())
        else:
            raise ConfigError(f"{self.where}: {name} must be a list of test ids, not {_shorten(value)}")
        for test in test_ids:
            if not isinstance(test, str) or not test.strip() or "\0" in test:
                raise ConfigError(f"{self.where}: {name} must contain test ids, not {_shorten(test)}")
            if test.startswith(("/", "-")) or ".." in test.partition("::")[0].split("/"):
                raise ConfigError(f"{self.where}: {name} has {test!r}, which is not a test in the repository")
        return tuple(dict.fromkeys(test_ids))

    def sdist(self) -> Sdist | None:
        value = self.row.get("sdist")
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self.where}: sdist must have name, version and sha256, not be {_shorten(value)}")
        inner = _RowReader(value, f"{self.where}: sdist")
        return Sdist(
            inner.matching("name", _SDIST_NAME, "the name of a package"),
            inner.matching("version", _SDIST_NAME, "a version"),
            inner.matching("sha256", _SHA256, "64 hexadecimal digits"),
        )


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
