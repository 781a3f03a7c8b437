"""The error tree: stdlib meaning, cause, and that errors survive pickling with all they know."""

from __future__ import annotations

import pickle

import pytest

from hermes_exec import errors
from hermes_exec.errors import CommandFailed, ErrorCause, ExecError, PostMortem, SandboxDied
from hermes_exec.results import KillReceipt, RunResult

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ExecError)]


@pytest.mark.parametrize("kind", [c for c in CLASSES if c is not CommandFailed], ids=lambda c: c.__name__)
def test_every_error_says_when_it_is_raised_and_survives_pickling(kind: type[ExecError]) -> None:
    assert kind.__doc__
    assert kind is ExecError or kind.__doc__.startswith("Raised ")
    error = kind("what happened", sandbox="sandbox-1", request_id=7, retryable=True)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "what happened"
    assert (again.sandbox, again.request_id, again.retryable, again.cause) == ("sandbox-1", 7, True, error.cause)


def test_meanings_of_the_standard_library() -> None:
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.LaunchTimeout, TimeoutError)
    assert issubclass(errors.AcquireTimeout, TimeoutError)
    assert issubclass(errors.ChannelLost, ConnectionError)
    assert issubclass(errors.ImageError, errors.LaunchError)


def test_a_sandbox_that_its_tenant_ended_is_the_policys_doing() -> None:
    assert SandboxDied("x", post_mortem=PostMortem("r", suspect="tenant")).cause is ErrorCause.POLICY
    assert SandboxDied("x", post_mortem=PostMortem("r", suspect="unknown")).cause is ErrorCause.INFRA
    assert SandboxDied("x").cause is ErrorCause.INFRA


def test_failed_command() -> None:
    result = RunResult(exit_code=3, stderr_bytes=b"no such thing\n", stderr_total_bytes=14, request_id=5)
    with pytest.raises(CommandFailed, match="exit code 3: no such thing") as caught:
        result.check()
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.result == result
    assert again.request_id == 5
    assert again.cause is ErrorCause.POLICY
    ok = RunResult(exit_code=0)
    assert ok.check() is ok


def test_one_line_at_the_cut_and_only_real_bytes() -> None:
    result = RunResult(
        exit_code=0,
        stdout_bytes=b"head\xc3" + b"\xa9tail",
        stdout_total_bytes=110,
        stdout_cut_at=5,
        killed=KillReceipt(),
    )
    assert result.stdout == "head\ufffd\n[... 100 bytes dropped ...]\n\ufffdtail"
    assert result.truncated
    assert result.stdout_dropped_bytes == 100
    whole = RunResult(exit_code=0, stdout_bytes=b"caf\xc3\xa9", stdout_total_bytes=5)
    assert whole.stdout == "café"
    assert not whole.truncated
