"""The requests of a harness: the time that they took, and errors."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from hermes_agent.gateway.request import Answer, ChatRequest, GatewayError
from hermes_agent.gateway.server import AnswersRequests


class CallJournal:
    """Passes requests on to `answers`, and notes their outcome.

    Args:
        answers: The object that answers.
        on_busy: Called with True when the first of several requests at once begins, and with False when the last ends.

    Attributes:
        last_error: The error of the request that ended last. None: it got an answer, or there was no request.
        bug: The first unexpected error of this library. None: there was none.
        busy_s: The seconds in which at least one request was under way.
    """

    def __init__(self, answers: AnswersRequests, on_busy: Callable[[bool], None] | None = None) -> None:
        self._answers, self._on_busy = answers, on_busy
        self.last_error: GatewayError | None = None
        self.bug: Exception | None = None
        self.busy_s = 0.0
        self._under_way = 0
        self._busy_since = 0.0

    async def answer(self, request: ChatRequest) -> Answer:
        """Return the answer. Raises GatewayError."""
        self._begin()
        try:
            answer = await self._answers.answer(request)
        except GatewayError as error:
            self.last_error = error
            raise
        except Exception as error:
            self.bug = self.bug or error
            raise
        finally:
            self._end()
        self.last_error = None
        return answer

    def note_refusal(self, error: GatewayError) -> None:
        """Note that a request got an error before it reached the model or a budget."""
        self.last_error = error

    def note_delivered(self, answer: Answer) -> None:
        """Note that the client got the answer."""
        self._answers.note_delivered(answer)

    def note_undelivered(self, answer: Answer) -> None:
        """Note that the client left before the end of the answer."""
        self._answers.note_undelivered(answer)

    def _begin(self) -> None:
        self._under_way += 1
        if self._under_way == 1:
            self._busy_since = anyio.current_time()
            self._notify(busy=True)

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self.busy_s += anyio.current_time() - self._busy_since
            self._notify(busy=False)

    def _notify(self, *, busy: bool) -> None:
        if self._on_busy is not None:
            self._on_busy(busy)
