"""OpenTelemetry (extra `otel`): a span per call, histograms of calls and waits, and a counter of pool events."""

from __future__ import annotations

import time

from hermes_exec.channel.trace import TracedFrame
from hermes_exec.errors import BackendUnavailable
from hermes_exec.results import Acquired, PoolEvent
from hermes_exec.tracing import Call
from hermes_exec.tracing.calls import Calls

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace import SpanKind, StatusCode
except ImportError as error:
    raise BackendUnavailable("OpenTelemetry is not installed: pip install 'hermes-exec[otel]'") from error

NAME = "hermes_exec"


class OpenTelemetry:
    """`SandboxPool(trace=OpenTelemetry())` sends spans and metrics to the given providers, by default the global ones.

    Spans are named after the method (`exec.run`, `file.read`), start with the call, and are children of the span that
    is current at that time. Attributes: `hermes_exec.pool.sandbox`, `hermes_exec.slot`, `hermes_exec.request_id`,
    `hermes_exec.queue_s`, `hermes_exec.wire_s`, `hermes_exec.exec_s`, `error.type`. Metrics: the histograms
    `hermes_exec.call.duration` and `hermes_exec.acquire.duration` in seconds, and the counter
    `hermes_exec.pool.events`. None of them contain the input or output of commands.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        meter = metrics.get_meter(NAME, meter_provider=meter_provider)
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
        self._durations = meter.create_histogram("hermes_exec.call.duration", "s", "Calls over the channel")
        self._waits = meter.create_histogram("hermes_exec.acquire.duration", "s", "Waits for a slot")
        self._events = meter.create_counter("hermes_exec.pool.events", "{event}", "What happened in pools")
        # The offset from monotonic time to span timestamps.
        self._epoch_s = time.time() - time.monotonic()

    def for_sandbox(self, sandbox: str) -> SandboxSpans:
        """See Tracer."""
        return SandboxSpans(self, sandbox)

    def event(self, event: PoolEvent) -> None:
        """See Tracer."""
        self._events.add(1, {"hermes_exec.event": type(event).__name__})
        if isinstance(event, Acquired):
            self._waits.record(event.waited_s)

    def close(self) -> None:
        """See Tracer. The providers are not shut down: that is up to their owner."""

    def record_call(self, call: Call, parent: context.Context) -> None:
        """Record a finished call: send its span and update the metrics."""
        start_ns = int((call.begun + self._epoch_s) * 1e9)
        facts: dict[str, str | int | float] = {
            "hermes_exec.pool.sandbox": call.sandbox,
            "hermes_exec.request_id": call.id,
            "hermes_exec.queue_s": call.queue_s,
            "hermes_exec.wire_s": call.wire_s,
            "hermes_exec.exec_s": call.exec_s,
        }
        labels = {"hermes_exec.method": call.method}
        if call.slot is not None:
            facts["hermes_exec.slot"] = call.slot
        if call.error is not None:
            facts["error.type"] = labels["error.type"] = call.error
        span = self._tracer.start_span(call.method, parent, SpanKind.CLIENT, facts, start_time=start_ns)
        if call.error is not None:
            span.set_status(StatusCode.ERROR, call.error)
        span.end(start_ns + int(call.total_s * 1e9))
        self._durations.record(call.total_s, labels)


class SandboxSpans:
    """The spans of the calls of one sandbox."""

    def __init__(self, telemetry: OpenTelemetry, sandbox: str) -> None:
        self._telemetry, self._calls = telemetry, Calls(sandbox)
        self._parents: dict[int, context.Context] = {}

    def on_call(self, number: int, method: str, since: float) -> None:
        """See Trace."""
        self._parents[number] = context.get_current()
        self._calls.begin(number, method, since)

    def on_frame(self, frame: TracedFrame) -> None:
        """See Trace."""
        if frame.id and (call := self._calls.add(frame)) is not None:
            self._telemetry.record_call(call, self._parents.pop(frame.id))

    def on_connect(self, handshake_s: float) -> None:
        """See Trace."""

    def on_lost(self, why: str) -> None:
        """See Trace."""
        for call in self._calls.close():
            self._telemetry.record_call(call, self._parents.pop(call.id))
