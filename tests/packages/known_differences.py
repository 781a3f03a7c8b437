"""The differences that are known by name, each with the reason why it is no fault of ours."""

from __future__ import annotations

from tests.packages.compare import Named

EXPLAINED = (
    Named(
        "pexpect",
        "tests/test_env.py::TestCaseEnv::test_spawn_uses_env",
        "asks for the exit code at the end of the output, when the program need not have ended: 1 in 100 times it"
        " has not, outside as well",
        varies=True,
    ),
    Named(
        "pexpect",
        "tests/test_async.py::AsyncTests::test_async_replwrap_multiline",
        "gives bash one second for its prompt after an interrupt, which can be lost while bash starts to read: 1 in"
        " 15 times outside as well",
        varies=True,
    ),
    Named(
        "pexpect",
        "tests/test_replwrap.py::REPLWrapTestCase::test_existing_spawn",
        "types before bash has written its prompt, which is then written twice on a slow machine, outside as well",
        varies=True,
    ),
    Named(
        "pexpect",
        "tests/test_socket.py::ExpectTestCase::test_multiple_interrupts",
        "reads once what its server sends in two parts: if the second comes later, its second read gets that and no"
        " timeout, for which the test waits without end",
        varies=True,
    ),
    Named(
        "pexpect",
        "tests/test_socket_fd.py::ExpectTestCase::test_multiple_interrupts",
        "reads once what its server sends in two parts: if the second comes later, its second read gets that and no"
        " timeout, for which the test waits without end",
        varies=True,
    ),
    Named(
        "pexpect",
        "tests/test_interact.py::InteractTestCase::test_interact_escape_None",
        "its program ended early once in four times outside, on a busy machine, and never in a slot",
        varies=True,
    ),
    Named(
        "sh",
        "tests/sh_test.py::FunctionalTests::test_general_signal",
        "its program may be interrupted between printing 3 and counting on: 1 in 20 times outside as well",
        varies=True,
    ),
    Named(
        "plumbum",
        "tests/test_examples.py::TestExamples::test_async_hybrid_example_runs",
        "makes a directory in `/tmp` by that name; slots at `uid` do not share the sandbox's: `TMPDIR` names their own",
        pairs=("docker-shared",),
    ),
    Named(
        "plumbum",
        "tests/test_pipelines.py::test_draining_stderr",
        "allows itself three seconds, too few on a busy machine, outside as well",
        varies=True,
    ),
    Named(
        "plumbum",
        "tests/test_pipelines.py::test_draining_stderr_with_stderr_redirect",
        "allows itself three seconds, too few on a busy machine, outside as well",
        varies=True,
    ),
    Named(
        "plumbum",
        "tests/test_pipelines.py::test_draining_stderr_with_stdout_redirect",
        "allows itself three seconds, too few on a busy machine, outside as well",
        varies=True,
    ),
    Named(
        "plumbum",
        "tests/test_local.py::TestLocalMachine::test_iter_lines_line_timeout",
        "expects a program to have begun within its time limit, which it has not on a busy machine, outside as well",
        varies=True,
    ),
)
