"""Answers the model calls of a harness from a model, and keeps each sampled answer in a tree."""

from __future__ import annotations

import json
import logging
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio
from anyio.abc import TaskGroup

from hermes_agent.errors import AccessRefused, ContentFiltered, ContextExceeded, ModelError, RequestRefused
from hermes_agent.gateway.budgets import Budgets
from hermes_agent.gateway.message_order import arrange_messages, with_call_ids
from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.request import Answer, ChatRequest, GatewayError
from hermes_agent.gateway.tree import Captured, Node
from hermes_agent.messages import Completion, Message, TokenUsage, calls_of, validate_completion
from hermes_agent.models.base import Model, SessionModel
from hermes_agent.parsers.base import derive_id
from hermes_agent.tokens.session import TokenModel
from hermes_agent.turn_tree import Key, TurnIndex, conversation_keys, tools_key
from hermes_exec.errors import ConfigError

logger = logging.getLogger(__name__)

_encode_sampling = json.JSONEncoder(sort_keys=True, default=str).encode
_ROOTS_WARNING = 16
"""More conversations than this are worth a warning: a harness that changes its tools or system message in each request
begins one each time, and nothing is trained with its history.
"""


class _Route(NamedTuple):
    """The model behind a name. Each model has its own `key`."""

    model: Model | TokenModel
    key: str
    trained: bool


class _Conversation(NamedTuple):
    """A request in the form in which it is compared and sampled.

    `identity` is equal for equal requests. `messages` are those after the conversation of the parent.
    """

    request: ChatRequest
    route: _Route
    keys: list[Key]
    identity: tuple[object, ...]
    messages: list[Message]
    parent: Node | None = None


class LeftRequest(NamedTuple):
    """A request whose client left before it had the answer.

    `number` is its place in the order of arrival. `waited_s`: the seconds until its client left. `parent`: the answer
    that it continues.
    """

    number: int
    waited_s: float
    parent: Node | None


@dataclass(eq=False)
class _Sample:
    """An answer that is or was sampled.

    `is_root`: the request begins a conversation of the policy. `parent`: the answer that it continues. `waiting` counts
    the clients that wait for the answer or are being sent it. `continued`: a later request repeats it.
    """

    number: int
    identity: tuple[object, ...]
    idempotency_key: str | None
    is_root: bool
    parent: Node | None
    begun: float = field(default_factory=anyio.current_time)
    done: anyio.Event = field(default_factory=anyio.Event)
    waiting: int = 0
    continued: bool = False
    answer: Answer | None = None
    error: GatewayError | None = None

    @property
    def abandoned(self) -> bool:
        """Whether no client got the answer, and none waits for it."""
        return not self.waiting and (self.answer is None or not self.answer.node.delivered)


class Capture:
    """Answers requests from a model. Use it in `async with`: answers are sampled in its task group, so a sample goes on
    when its client disconnects, and ends with the block.

    Args:
        model: The policy.
        options: Budgets, sampling parameters and further models.

    Attributes:
        captured: The answers.
        left: The latest request whose answer no client got, because its client left. None: a request that arrived later
            got an answer, or there was none.

    Raises:
        ConfigError: If a model is neither a `Model` nor a `TokenModel`, or the policy is not among `Gateway.models`.
    """

    def __init__(self, model: Model | SessionModel, options: Gateway = Gateway()) -> None:  # noqa: B008 - it is frozen
        self.captured = Captured()
        self.left: LeftRequest | None = None
        self._options = options
        self._routes = _make_routes(model, options)
        self._budgets = Budgets(options)
        self._index: TurnIndex[Node] = TurnIndex()
        self._samples: defaultdict[tuple[object, ...], list[_Sample]] = defaultdict(list)
        self._by_idempotency_key: dict[str, _Sample] = {}
        self._by_node: dict[Node, _Sample] = {}
        self._failures: dict[tuple[object, ...], Exception] = {}
        self._count = 0
        self._latest_error: GatewayError | None = None
        self._tasks: TaskGroup | None = None
        self._warned: set[str] = set()

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        tasks.cancel_scope.cancel()
        return await tasks.__aexit__(kind, error, trace)

    @property
    def usage(self) -> TokenUsage:
        """The tokens of all answers of all models."""
        return self._budgets.usage

    @property
    def exhausted(self) -> str:
        """The name of the budget that refused a request first, such as `max_requests`. Empty: none did."""
        return self._budgets.exhausted

    @property
    def failure(self) -> Exception | None:
        """The first failure of a model after which no equal request got an answer. None: there is none."""
        return next(iter(self._failures.values()), None)

    @property
    def context_exceeded(self) -> bool:
        """Whether the last request was longer than the context of its model."""
        return self._latest_error is not None and self._latest_error.code == _CONTEXT

    async def answer(self, request: ChatRequest) -> Answer:
        """Return the answer to a request. Call `note_delivered` or `note_undelivered` with it afterwards.

        A repeated request gets the answer that was sampled for it: if the client marks it as a retry (unless a request
        has continued the answer), or if no client got the answer. Any other request is a new sample.

        Raises:
            GatewayError: If the request gets no answer.
        """
        conversation = self._read(request)
        sample = self._find_sample(conversation) or self._begin(conversation)
        sample.waiting += 1
        try:
            await sample.done.wait()
            if sample.error is not None:
                raise sample.error
            assert sample.answer is not None
        except GatewayError:
            sample.waiting -= 1
            raise
        except BaseException:
            self._note_left(sample)
            raise
        return sample.answer

    def note_delivered(self, answer: Answer) -> None:
        """Record that the client got an answer."""
        sample = self._by_node[answer.node]
        sample.waiting -= 1
        answer.node.delivered = True
        if self.left is not None and self.left.number <= sample.number:
            self.left = None

    def note_undelivered(self, answer: Answer) -> None:
        """Record that the client was gone before the end of an answer. The next equal request gets it."""
        self._note_left(self._by_node[answer.node])

    def _note_left(self, sample: _Sample) -> None:
        sample.waiting -= 1
        if sample.abandoned and (self.left is None or self.left.number <= sample.number):
            self.left = LeftRequest(sample.number, anyio.current_time() - sample.begun, sample.parent)

    def _read(self, request: ChatRequest) -> _Conversation:
        route = self._routes.get(request.model) or self._routes.get("*")
        if route is None:
            raise GatewayError(404, f"there is no model {request.model!r:.100}", "model_not_found")
        try:
            messages = arrange_messages(request.messages)
            keys = conversation_keys(messages, tools_key(route.key, request.tools))
            sampling = _encode_sampling(request.sampling)
        except RecursionError:
            raise GatewayError(400, "the request is nested too deeply", "invalid_request") from None
        return _Conversation(request, route, keys, (keys[-1], request.model, request.max_tokens, sampling), messages)

    def _find_sample(self, conversation: _Conversation) -> _Sample | None:
        """Return the sample that answers a repeated request."""
        samples = [sample for sample in self._samples.get(conversation.identity, ()) if not sample.continued]
        for sample in samples:
            if sample.abandoned:
                return sample
        request = conversation.request
        if request.idempotency_key is not None:
            earlier = self._by_idempotency_key.get(request.idempotency_key)
            if earlier in samples:
                return earlier
        return samples[-1] if samples and request.retry_count > 0 else None

    def _begin(self, conversation: _Conversation) -> _Sample:
        """Begin to sample the answer to a request."""
        if self._tasks is None:
            raise GatewayError(503, "the gateway is closed", "closed", kind="server_error")
        nodes = self._index.find(conversation.keys)
        parent = max(nodes, key=lambda node: (node.delivered, node.number), default=None)
        key, is_root = conversation.request.idempotency_key, parent is None and conversation.route.trained
        sample = _Sample(self._count, conversation.identity, key, is_root, parent)
        new = _new_messages(parent, conversation.messages)
        tools = conversation.request.tools if parent is None else []
        self._budgets.begin(root=sample.is_root, characters=len(repr(new)) + len(repr(tools)))
        self._count += 1
        self._latest_error = None
        if parent is not None:
            parent.delivered = self._by_node[parent].continued = True
        self._samples[conversation.identity].append(sample)
        if key is not None:
            self._by_idempotency_key[key] = sample
        if self._budgets.roots > _ROOTS_WARNING:
            self._warn("roots", "the harness began more than %d conversations", _ROOTS_WARNING)
        self._tasks.start_soon(self._run, sample, conversation._replace(messages=new, parent=parent))
        return sample

    async def _run(self, sample: _Sample, conversation: _Conversation) -> None:
        """Sample an answer. No failure of the model ends the task group."""
        try:
            completion = await self._complete(conversation)
        except Exception as error:  # noqa: BLE001 - a model is code of the caller
            self._fail(sample, error)
        except BaseException:
            self._discard(sample, GatewayError(503, "the gateway is closed", "closed", kind="server_error"))
            raise
        else:
            self._finish(sample, conversation, completion)
        finally:
            sample.done.set()

    async def _complete(self, conversation: _Conversation) -> Completion:
        model, request, parent = conversation.route.model, conversation.request, conversation.parent
        parameters = self._sampling(conversation)
        limits = [request.max_tokens, parameters.pop("max_tokens", None)]
        if isinstance(model, TokenModel):
            limits.append(model.context_tokens)
        reserved = await self._budgets.reserve(min((each for each in limits if each is not None), default=None))
        usage = None
        try:
            if reserved is not None:
                parameters["max_tokens"] = reserved
            if isinstance(model, TokenModel):
                ids = [] if parent is None else parent.prompted_ids()
                completion = await model.sample_turn(ids, conversation.messages, request.tools, **parameters)
            else:
                # The answers of the model as it gave them: some providers need parts back that a harness leaves out.
                before = [] if parent is None else parent.conversation
                completion = await model.complete([*before, *conversation.messages], request.tools, **parameters)
            usage = validate_completion(completion).usage
        finally:
            self._budgets.settle(reserved, usage)
        return _with_unique_ids(_with_broken_calls_as_text(completion), parent)

    def _sampling(self, conversation: _Conversation) -> dict[str, Any]:
        """Return the parameters of a request. For the policy, the caller's parameters replace the harness's."""
        model, requested = conversation.route.model, conversation.request.sampling
        if not conversation.route.trained:
            return dict(requested)
        own = {**(model.sampling if isinstance(model, TokenModel) else {}), **self._options.sampling}
        parameters = {**requested, **own}
        exact_at = getattr(model.sampler, "exact_at", None) if isinstance(model, TokenModel) else None
        if exact_at is not None and not exact_at(parameters) and exact_at(own):
            self._warn(
                "sampling",
                "the harness asks for %s, at which the log-probabilities of the server do not describe the samples: "
                "set sampling of the gateway",
                requested,
            )
        return parameters

    def _finish(self, sample: _Sample, conversation: _Conversation, completion: Completion) -> None:
        parent = conversation.parent
        tools = tuple(conversation.request.tools) if parent is None else parent.tools
        node = Node(
            parent,
            completion,
            conversation.keys[-1],
            len(conversation.keys),
            sample.number,
            conversation.request.model,
            tuple(conversation.messages),
            tools,
            conversation.route.trained,
        )
        sample.answer = Answer(secrets.token_hex(12), node, completion)
        self._by_node[node] = sample
        self._index.add(node)
        self.captured.add(node)
        self._failures.pop(conversation.identity, None)

    def _fail(self, sample: _Sample, error: Exception) -> None:
        refusal = error if isinstance(error, GatewayError) else _refuse_request(error)
        if refusal is None:
            kind = type(error).__name__
            self._warn(f"failure: {kind}", "the model failed: %s: %s", kind, error, traceback_of=error)
            self._failures.setdefault(sample.identity, error)
            text = "the model failed; the log of the driver has the reason"
            refusal = GatewayError(500, text, "model_error", kind="server_error", retry=True)
        elif isinstance(error, ModelError) and error.status is not None and refusal.code != _CONTEXT:
            self._warn(f"refusal: {refusal.code}", "the service of the model refused a request of a harness: %s", error)
        self._discard(sample, refusal)

    def _discard(self, sample: _Sample, error: GatewayError) -> None:
        """End a sample without an answer. An equal request is a new sample."""
        sample.error = error
        self._budgets.undo(root=sample.is_root)
        self._samples[sample.identity].remove(sample)
        key = sample.idempotency_key
        if key is not None and self._by_idempotency_key.get(key) is sample:
            del self._by_idempotency_key[key]
        if sample.number == self._count - 1:
            self._latest_error = error

    def _warn(self, name: str, text: str, *values: object, traceback_of: Exception | None = None) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(text, *values, exc_info=None if isinstance(traceback_of, ModelError) else traceback_of)


_CONTEXT = "context_length_exceeded"
_FAULTS_OF_REQUESTS = frozenset({400, 413, 422})


def _refuse_request(error: Exception) -> GatewayError | None:
    """Return the answer to a request that the model cannot serve as it is. None: the model failed.

    A harness can send anything, so such a request is no failure of the model. Texts of a service are not passed on.
    """
    own = isinstance(error, ModelError) and error.status is None
    if isinstance(error, ContextExceeded):
        return GatewayError(400, str(error) if own else "the request is longer than the model's context", _CONTEXT)
    if isinstance(error, ContentFiltered):
        return GatewayError(400, "the service of the model refused the content", "content_filter")
    if isinstance(error, RequestRefused):
        return GatewayError(400, str(error), "invalid_request")
    if isinstance(error, ModelError) and error.status in _FAULTS_OF_REQUESTS and not isinstance(error, AccessRefused):
        return GatewayError(400, f"the service of the model refused the request: {error.status}", "invalid_request")
    return None


def _make_routes(policy: Model | SessionModel, options: Gateway) -> dict[str, _Route]:
    models = {"*": policy} if options.models is None else options.models
    if not any(model is policy for model in models.values()):
        raise ConfigError("models of the gateway does not name the policy, so nothing would be captured for training")
    numbers: dict[int, str] = {}
    routes = {}
    for name, model in models.items():
        if not isinstance(model, (Model, TokenModel)):
            raise ConfigError(f"a gateway needs a Model or a TokenModel, not {type(model).__name__}")
        key = numbers.setdefault(id(model), str(len(numbers)))
        routes[name] = _Route(model, key, model is policy)
    return routes


def _new_messages(parent: Node | None, messages: Sequence[Message]) -> list[Message]:
    """Return the messages after the parent's conversation. Their results refer to the ids of calls that the model
    wrote, even if the harness gave the calls other ids.
    """
    if parent is None:
        return list(messages)
    harness_ids = [call.id for call in calls_of(messages[parent.size - 1])]
    ids = dict(zip(harness_ids, (call.id for call in parent.completion.tool_calls), strict=True))
    return with_call_ids(messages[parent.size :], ids)


def _with_broken_calls_as_text(completion: Completion) -> Completion:
    """Return the completion as a harness gets it: only well-formed calls are calls."""
    broken = [call.arguments for call in completion.tool_calls if call.error is not None]
    if not broken:
        return completion
    calls = tuple(call for call in completion.tool_calls if call.error is None)
    return replace(completion, content="\n".join(filter(None, (completion.content, *broken))), tool_calls=calls)


def _with_unique_ids(completion: Completion, parent: Node | None) -> Completion:
    """Return the completion with another id for each call whose id the conversation has already.

    A model that repeats a text repeats the id. Claude Code drops a call whose id it knows.
    """
    path = [] if parent is None else parent.path()
    taken = {call.id for node in path for call in node.completion.tool_calls}
    calls = []
    for index, call in enumerate(completion.tool_calls):
        unique = call if call.id and call.id not in taken else call._replace(id=derive_id(call.id, len(path), index))
        taken.add(unique.id)
        calls.append(unique)
    return replace(completion, tool_calls=tuple(calls)) if calls else completion
