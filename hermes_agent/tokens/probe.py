"""Probes a chat template: its form of turns with calls, and the tokens that end its turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Literal, NamedTuple, Protocol

from hermes_agent.messages import Message
from hermes_agent.tokens.control import new_nonce
from hermes_exec.errors import ConfigError

OVERRIDE = "give another one as chat_template="
QUESTION: Message = {"role": "user", "content": "question"}
MORE: Message = {"role": "user", "content": "more"}
_CALLS = (("probe0001", "tool"), ("probe0002", "tool"))


class Render(Protocol):
    """Renders messages to a text. Raises ConfigError if the template refuses them."""

    def __call__(  # noqa: D102
        self, messages: Sequence[Message], tools: Sequence[Message] | None, *, generation: bool = False
    ) -> str: ...


class Form(NamedTuple):
    """The form in which a template accepts assistant turns with calls.

    `calls`: how many of one turn ("none": it refuses them, or renders only the text). `arguments`: their type.
    `merges`: it refuses a message of the user after a tool result. `system`: it accepts a system message.
    """

    calls: Literal["all", "one", "none"] = "all"
    arguments: Literal["object", "text"] = "object"
    merges: bool = False
    system: bool = True


_KINDS: tuple[tuple[Literal["all", "one"], int], ...] = (("all", 2), ("one", 1))
_ARGUMENTS: tuple[Literal["object", "text"], ...] = ("object", "text")
# In the order of preference, each with the number of calls to probe it with.
_FORMS = [
    *((Form(calls, arguments), count) for (calls, count), arguments in product(_KINDS, _ARGUMENTS)),
    (Form("none"), 0),
]


class Endings(NamedTuple):
    """The ids that end turns.

    `stops` are the ids at which a model ends its turn. `bounds` are the ids with which a template begins the text after
    a turn. `closing` are the bounds that belong to the turn and not to the next message; they are interchangeable.
    """

    stops: frozenset[int]
    bounds: frozenset[int]
    closing: frozenset[int]

    def with_stops(self, stops: frozenset[int]) -> Endings:
        """Return the endings for a caller who names the ids at which the model ends its turn."""
        return Endings(stops, self.bounds | stops, self.closing | (stops - self.bounds))


def check_tools(render: Render) -> None:
    """Raise ConfigError if the template renders no tools."""
    name = new_nonce()
    parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "X"}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": name, "description": "Does it", "parameters": parameters}}
    if name not in render([QUESTION], [tool]):
        raise ConfigError(
            f"the chat template does not render tools: {OVERRIDE}, or describe the tools in the system message and set "
            "tools_in_prompt=False"
        )


def probe_form(render: Render) -> Form:
    """Return the form in which the template accepts calls and their results. Raise ConfigError if it accepts no
    results.
    """
    refusals: list[str] = []

    def takes(form: Form, count: int, *more: Message) -> bool:
        mark = new_nonce()
        new = [*(result(call, f"result of {call[0]}") for call in _CALLS[: max(1, count)]), *more]
        try:
            tail = after_mark(mark, render([QUESTION, stand_in_turn(form, mark, _CALLS[:count]), *new], None))
        except ConfigError as error:
            refusals.append(str(error))
            return False
        return all(message["content"] in tail for message in new)

    for form, count in _FORMS:
        if takes(form, count):
            return form._replace(merges=not takes(form, count, MORE), system=_takes_system(render))
    why = f" ({refusals[-1].removesuffix(f': {OVERRIDE}')})" if refusals else ""
    raise ConfigError(f"the chat template refuses or drops tool results{why}: {OVERRIDE}")


def _takes_system(render: Render) -> bool:
    mark = new_nonce()
    try:
        return mark in render([{"role": "system", "content": mark}, QUESTION], None)
    except ConfigError:
        return False


def stand_in_turn(form: Form, mark: str, calls: Sequence[tuple[str, str]]) -> Message:
    """Return an assistant turn that makes these calls (id, name), with the mark in each of them.

    Some templates leave out the text of a turn with calls, and others print it after the results. Without calls the
    mark is the text.
    """
    own_calls = calls[: {"all": len(calls), "one": 1, "none": 0}[form.calls]]
    message: Message = {"role": "assistant", "content": "" if own_calls else mark}
    if own_calls:
        arguments = {"mark": mark} if form.arguments == "object" else json.dumps({"mark": mark})
        message["tool_calls"] = [
            {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, name in own_calls
        ]
    return message


def result(call: tuple[str, str], content: str) -> Message:
    """Return the result of a call (id, name)."""
    return {"role": "tool", "tool_call_id": call[0], "name": call[1], "content": content}


def after_mark(mark: str, text: str) -> str:
    """Return the text after the last mark. Raise ConfigError if there is none."""
    _, separator, tail = text.rpartition(mark)
    if not separator:
        raise ConfigError(f"the chat template drops assistant messages: {OVERRIDE}")
    return tail


def probe_endings(
    render: Render, form: Form, control_ids: Callable[[str], list[int]], eos: int | None
) -> Endings | None:
    """Return the ids that end turns: the tokenizer's own, and those that the template prints.

    Return None if the template ends turns with a text without control tokens.
    """
    answer = _tail(render, form, (), MORE)
    call = _tail(render, form, _CALLS[:1], result(_CALLS[0], "result"))
    own = control_ids(answer.alone)
    ends = {eos} if eos is not None else set()
    if not own:
        if answer.alone.strip():
            return None
        # The model stops at the token of the next role.
        following = [(tail.alone, text) for tail in (answer, call) for text in (tail.followed, tail.asked)]
        bounds = ends.union(*(control_ids(_after_common(alone, text))[:1] for alone, text in following))
        return Endings(frozenset(bounds), frozenset(bounds), frozenset(ends))
    ends_of_answer = _first(control_ids(answer.between), prefer=ends) or own[:1]
    stop = ends_of_answer if ends.intersection(ends_of_answer) else own[:1]
    closing = ends.union(ends_of_answer, stop)
    # Tags of calls may be control tokens too: if no known end follows a call, its last token is one.
    after_call = (
        _first([number for number in control_ids(call.between) if number in closing], prefer=ends)
        or control_ids(call.alone)[-1:]
    )
    results = _tail(render, form, _CALLS, result(_CALLS[0], "result"), result(_CALLS[1], "another"))
    again = control_ids(results.followed.partition("result")[2].partition("another")[0])
    opens = [number for number in after_call if number in again and number not in closing]
    return Endings(
        frozenset({*ends, *stop, *after_call}),
        frozenset({*closing, *after_call}),
        frozenset({*closing, *after_call}.difference(opens)),
    )


def _first(ids: Sequence[int], *, prefer: set[int]) -> list[int]:
    """Return the first preferred id, or else the first id, as a list; empty if there is none."""
    return [number for number in ids if number in prefer][:1] or list(ids[:1])


class _Tail(NamedTuple):
    """The rendered text after an assistant turn.

    `alone` is the text if nothing follows, `followed` if a message follows (`between` is the part of it before the
    message's text), and `asked` if the model is prompted to go on.
    """

    alone: str
    followed: str
    between: str
    asked: str


def _tail(render: Render, form: Form, calls: Sequence[tuple[str, str]], *following: Message) -> _Tail:
    mark = new_nonce()
    turn = stand_in_turn(form, mark, calls)

    def render_tail(*more: Message, generation: bool = False) -> str:
        return after_mark(mark, render([QUESTION, turn, *more], None, generation=generation))

    followed = render_tail(*following)
    return _Tail(render_tail(), followed, followed.partition(following[0]["content"])[0], render_tail(generation=True))


def _after_common(shorter: str, longer: str) -> str:
    pairs: Iterable[tuple[str, str]] = zip(shorter, longer, strict=False)
    same = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(shorter), len(longer)))
    return longer[same:]
