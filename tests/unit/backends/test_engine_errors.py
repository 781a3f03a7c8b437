"""Tables of what failures of engines are here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import pytest

from hermes_exec.backends.engine_errors import ErrorRow, temporarily_unavailable, translate
from hermes_exec.errors import BackendUnavailable, ConfigError, LaunchError

ROWS = (
    ErrorRow(ConfigError, "{name} refuses: {reason}", "never", types=(ValueError,)),
    ErrorRow(temporarily_unavailable, "{name} is away ({status})", statuses=(502, 503)),
    ErrorRow(LaunchError, "{name}: {reason}"),
)


def test_row_needs_all_that_it_names() -> None:
    refused = translate(ROWS, "never {this}", failure=ValueError(), name="it")
    assert (type(refused), str(refused)) == (ConfigError, "it refuses: never {this}")
    for failure, said in ((ValueError(), "later"), (OSError(), "never"), (None, "never")):
        assert str(translate(ROWS, said, failure=failure, name="it")) == f"it: {said}"


def test_first_row_that_matches_counts() -> None:
    away = translate(ROWS, "a page", text="a page that says never", status=503, name="it")
    assert (type(away), str(away), away.retryable) == (BackendUnavailable, "it is away (503)", True)
    assert translate(ROWS, "", status=500, name="it").retryable


@pytest.mark.parametrize(
    "module", ["docker.errors", "image_errors", "modal.errors", "nomad.errors", "singularity.errors", "ssh.errors"]
)
def test_last_row_of_a_table_is_for_all(module: str) -> None:
    tables = import_module(f"hermes_exec.backends.{module}")
    names = [name for name in vars(tables) if name == "ROWS" or name.endswith("_ROWS")]
    assert names
    for name in names:
        rows: Sequence[ErrorRow] = getattr(tables, name)
        assert (rows[-1].pattern, rows[-1].types, rows[-1].statuses) == ("", (), ())
