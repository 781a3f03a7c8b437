"""Traces of real pools: what is in them, and what is not."""

from __future__ import annotations

import logging
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hermes_exec import ConfigError, SandboxPool
from hermes_exec.tracing import read_trace
from hermes_exec.tracing.otel import OpenTelemetry
from tests.conftest import BackendCase

pytestmark = pytest.mark.anyio


async def test_a_trace_tells_where_the_time_of_a_call_went_and_nothing_of_its_contents(
    backend: BackendCase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, secret = tmp_path / "trace", f"s3cret-{secrets.token_hex(8)}"
    options = {**backend.options, "secrets": {"TOKEN": secret}, "slots_per_sandbox": 1, "trace": path}
    with caplog.at_level(logging.DEBUG, "hermes_exec"):
        async with SandboxPool(backend.backend, **options) as pool, pool.slot(owner=secret) as slot:
            await slot.run("echo $TOKEN hush-out; exit 3", env={"NAME": "hush-env"})
            async with slot.session() as session, anyio.create_task_group() as tasks:
                tasks.start_soon(session.run, "sleep 0.4 # hush-first")
                tasks.start_soon(session.run, "true # hush-second")
            await slot.files.write_bytes("hush-file", b"hush-data")
            with pytest.raises(FileNotFoundError):
                await slot.files.read_bytes("hush-missing")
    text = path.read_text()
    assert "hush" not in text + caplog.text
    assert secret not in text + caplog.text
    assert "Acquired(" in caplog.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    record = read_trace(path)
    assert {event["event"] for event in record.events} >= {"Scaled", "Launched", "Ready", "Acquired", "Reset"}
    runs = [call for call in record.calls if call.method == "exec.run"]
    assert len(runs) == 3
    assert runs[1].exec_s >= 0.4
    first, second = runs[1:]
    assert first.answered is not None
    assert second.sent is not None
    assert second.begun < first.answered <= second.sent  # both are of one session
    assert all(call.answered is not None and call.slot == "s0" for call in runs)
    (failed,) = [call for call in record.calls if call.error]
    assert (failed.method, failed.error) == ("file.read", "os")
    for call in record.calls:
        assert sum(call.phases.values()) == pytest.approx(call.total_s, abs=1e-5)


async def test_a_call_that_is_cancelled_is_there_with_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    async with SandboxPool("local", trace=path) as pool, pool.slot() as slot, anyio.create_task_group() as tasks:
        tasks.start_soon(slot.run, "sleep 100")
        while not (await slot.processes()):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    (call,) = [call for call in read_trace(path).calls if call.method == "exec.run"]
    assert call.answered is not None
    assert "CANCEL" in path.read_text()


@pytest.mark.parametrize("target", ["/", "/nowhere/trace", "a\0b", 5])
async def test_a_trace_that_cannot_be_written_is_told_before_anything_starts(target: object) -> None:
    with pytest.raises(ConfigError, match="trace"):
        async with SandboxPool("local", trace=target):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("calls", [1, 300])
async def test_a_disk_that_is_full_ends_the_trace_with_a_warning_and_nothing_else(
    calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with SandboxPool("local", trace="/dev/full") as pool, pool.slot() as slot:
        for _ in range(calls):
            assert (await slot.run(["echo", "fine"])).stdout == "fine\n"
    told = [record.getMessage() for record in caplog.records if record.name == "hermes_exec.tracing.writer"]
    assert told == ["the trace ends too early: [Errno 28] No space left on device"]


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", "x\n", '{"trace": 1}\n{"t": 1}\n', '{"trace": 1}\nx\n'])
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a trace"):
        read_trace(path)


def test_the_last_line_of_a_program_that_was_killed_may_be_torn(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('{"trace": 1}\n{"t": 1, "sandbox": "b", "begun": 1, "method": "exec.run"}\n{"t": 2, "bo')
    (call,) = read_trace(path).calls
    assert (call.error, call.why) == ("lost", "it was not answered")


async def test_spans_and_metrics() -> None:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader])
    with provider.get_tracer("test").start_as_current_span("rollout") as rollout:
        async with SandboxPool("local", trace=OpenTelemetry(provider, meters)) as pool, pool.slot() as slot:
            await slot.run("sleep 0.1 # hush")
            with pytest.raises(FileNotFoundError):
                await slot.files.read_bytes("hush")
    spans = exporter.get_finished_spans()
    (ran,) = [span for span in spans if span.name == "exec.run"]
    assert ran.parent is not None
    assert ran.parent.span_id == rollout.get_span_context().span_id
    assert ran.attributes is not None
    assert ran.attributes["hermes_exec.slot"] == "s0"
    assert isinstance(seconds := ran.attributes["hermes_exec.exec_s"], float)
    assert ran.start_time is not None
    assert ran.end_time is not None
    assert 0.1 <= seconds <= (ran.end_time - ran.start_time) / 1e9
    (failed,) = [span for span in spans if span.name == "file.read"]
    assert failed.status.status_code is StatusCode.ERROR
    data = reader.get_metrics_data()
    assert data is not None
    told = {
        metric.name: metric.data
        for one in data.resource_metrics
        for scope in one.scope_metrics
        for metric in scope.metrics
    }
    assert set(told) == {"hermes_exec.call.duration", "hermes_exec.acquire.duration", "hermes_exec.pool.events"}
    assert "hush" not in repr((spans, told, [dict(span.attributes or {}) for span in spans]))
    meters.shutdown()
    provider.shutdown()
    assert trace.get_tracer_provider() is not provider
    assert metrics.get_meter_provider() is not meters


def test_a_program_that_sets_up_no_logging_sees_no_lines_of_ours() -> None:
    program = """
import anyio
from hermes_exec import SandboxPool, ExecError

async def main():
    async with SandboxPool("local", setup="exit 1", acquire_timeout_s=20) as pool:
        try:
            async with pool.slot():
                pass
        except ExecError as error:
            print(type(error).__name__)

anyio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("LaunchError\n", "", 0)
