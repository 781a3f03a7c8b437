"""The suite itself: what it covers, and that it finds a backend that misbehaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_exec.results import Isolation
from hermes_exec.testing.conformance import NEEDS, Check, Context, NotGiven, Outcome, all_checks
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.facts import HOST_PID_NAMESPACE, Facts, why_not
from hermes_exec.testing.conformance.suite import run_check

# The behaviours of inspect_ai's self_check, and the checks that hold them here.
INSPECT = {
    "read_and_write_file_text": "text_file_round_trip",
    "write_file_text_utf": "utf8_file_round_trip",
    "read_and_write_file_binary": "binary_file_round_trip",
    "read_and_write_large_file_binary": "large_binary_file",
    "read_and_write_file_including_directory_absolute": "absolute_path_makes_directories",
    "read_and_write_file_including_directory_relative": "relative_path_makes_directories",
    "read_file_zero_length": "empty_file_made_by_a_command",
    "read_file_not_found": "missing_file_is_told_by_name",
    "read_file_not_allowed": "unreadable_file_is_permission_error",
    "read_file_is_directory": "reading_a_directory_is_told",
    "read_file_nonsense_name": "url_like_name_is_a_missing_file",
    "read_file_limit": "read_limit",
    "write_text_file_zero_length": "empty_text_file",
    "write_text_file_space": "text_to_a_name_with_a_space",
    "write_text_file_is_directory": "text_over_a_directory_is_told",
    "write_text_file_without_permissions": "text_over_a_read_only_file",
    "write_text_file_exists": "text_replaces_an_old_file",
    "write_binary_file_zero_length": "empty_binary_file",
    "write_binary_file_space": "bytes_to_a_name_with_a_space",
    "write_binary_file_is_directory": "bytes_over_a_directory_are_told",
    "write_binary_file_without_permissions": "bytes_over_a_read_only_file",
    "write_binary_file_exists": "bytes_replace_an_old_file",
    "exec_output": "stdout_and_exit_zero",
    "exec_stderr": "stderr_is_apart",
    "exec_output_utf": "utf8_on_stdout",
    "exec_stderr_utf": "utf8_on_stderr",
    "exec_returncode": "exit_code_of_a_script",
    "exec_timeout": "timeout_is_a_result",
    "exec_timeout_not_raised_on_fast_signal_death": "signal_death_is_no_timeout",
    "exec_timeout_kills_process": "timeout_kills_the_process",
    "exec_timeout_kills_child_processes": "timeout_kills_children_of_a_shell",
    "exec_permission_error": "not_executable_is_126",
    "exec_env_vars": "variables_reach_the_shell",
    "exec_input_text": "text_on_stdin",
    "exec_input_shell_special": "stdin_is_never_interpreted",
    "exec_input_binary": "bytes_on_stdin",
    "exec_input_large": "fifty_mebibytes_on_stdin",
    "exec_large_command": "large_argv",
    "exec_as_user": "run_as_another_user",
    "exec_as_nonexistent_user": "nonexistent_user_is_told",
    "cwd_unspecified": "cwd_is_the_workspace",
    "cwd_custom": "cwd_of_the_image",
    "cwd_relative": "cwd_relative",
    "cwd_absolute": "cwd_absolute",
}


def test_every_behaviour_of_inspects_self_check_is_held() -> None:
    names = {check.name for check in all_checks()}
    assert len(INSPECT) == 44
    assert set(INSPECT.values()) <= names


def test_size_and_form_of_the_suite() -> None:
    checks = all_checks()
    assert len(checks) >= 120
    assert len({check.name for check in checks}) == len(checks)
    assert {need for check in checks for need in check.needs} <= set(NEEDS)
    assert all(check.meaning.endswith(".") and len(check.meaning) > 20 for check in checks)


class Pool:
    """A pool whose only slot is a given object."""

    def __init__(self, slot: object) -> None:
        self._slot = slot

    def slot(self) -> Pool:
        return self

    async def __aenter__(self) -> object:
        return self._slot

    async def __aexit__(self, *_: object) -> None:
        return None


async def outcome_of(run: Callable[[Context], Awaitable[None]], **check: Any) -> Outcome:
    made = Check("made-up", "group", "It does.", run, **check)
    return await run_check(made, Pool(object()), lambda **_: Pool(object()), Facts())  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_outcomes() -> None:
    async def fine(_: Context) -> None:
        return None

    async def wrong(_: Context) -> None:
        equal("seen", "wanted", "word")

    async def cannot(_: Context) -> None:
        raise NotGiven("no such thing here")

    async def grouped(_: Context) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("tasks", [NotGiven("deep")])])

    async def broken(_: Context) -> None:
        raise KeyError("x")

    async def endless(_: Context) -> None:
        import anyio

        await anyio.sleep_forever()

    assert (await outcome_of(fine)).status == "passed"
    failed = await outcome_of(wrong)
    assert failed.status == "failed"
    assert "word: got 'seen', expected 'wanted'" in failed.reason
    assert "test_suite.py" in failed.reason or "expect.py" in failed.reason
    assert [(o.status, o.reason) for o in (await outcome_of(cannot), await outcome_of(grouped))] == [
        ("skipped", "no such thing here"),
        ("skipped", "deep"),
    ]
    assert (await outcome_of(broken)).reason.startswith("KeyError: 'x'")
    late = await outcome_of(endless, timeout_s=0.05)
    assert (late.status, late.reason) == ("failed", "not done within 0.05 s")


def test_a_missing_need_is_told_with_its_reason() -> None:
    facts = Facts(missing={"shell": "the image has no shell"})
    assert why_not(facts, ("helper", "shell")) == "the image has no shell"
    assert why_not(facts, ("helper",)) is None


def test_confinement_is_proven_or_not_assumed() -> None:
    assert not Facts().own_pids
    assert not Facts(pid_namespace=HOST_PID_NAMESPACE).own_pids
    assert Facts(pid_namespace="pid:[4026532999]", isolation=Isolation("namespaces")).own_pids


def test_dangerous_checks_are_not_fired_without_proof(tmp_path: Path) -> None:
    """The two checks that could harm the host ask for the proof before they make a pool."""
    import anyio

    def factory(**_: object) -> object:
        raise AssertionError("a pool was made")

    checks = {check.name: check for check in all_checks()}
    context = Context(factory, Facts(pid_namespace=HOST_PID_NAMESPACE), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(NotGiven, match="not fired"):
        anyio.run(checks["kill_everybody"].run, context)


def test_expectations_fail_when_they_should() -> None:
    with pytest.raises(AssertionError, match="nothing was raised"), raises(ValueError):
        pass
    with pytest.raises(AssertionError, match="got KeyError"), raises(ValueError):
        raise KeyError
    with pytest.raises(AssertionError, match="does not mention"), raises(ValueError, about="name"):
        raise ValueError("other")
    with pytest.raises(AssertionError, match="why"):
        that(0, "why")
