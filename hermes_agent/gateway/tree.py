"""The tree of what a gateway sampled, and the sequences of token ids in it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hermes_agent.messages import Message, TurnTokens, assistant_message, calls_of, message_text
from hermes_agent.tokens.sequence import NO_LOGPROB, NOT_SAMPLED, join_turns
from hermes_agent.turn_tree import TurnNode

SequenceScope = Literal["main", "root", "all"]
"""The conversations of a harness that are trained: the main conversation, all of its root, or all."""


@dataclass(eq=False)
class Node(TurnNode):
    """One request of a harness and its answer.

    Attributes:
        number: Its place in the order in which requests arrived.
        model: The name of the model that the request asked for.
        messages: The messages of the request after the parent's answer, as the model read them.
        tools: The function schemas of the request.
        trained: Whether the policy gave the answer. False: a helper did.
        delivered: Whether the harness got the answer.
        answer: The answer as a message.
    """

    number: int
    model: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    trained: bool = True
    delivered: bool = False
    answer: Message = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answer = assistant_message(self.completion)

    @property
    def conversation(self) -> list[Message]:
        """The whole conversation, which ends with the answer."""
        conversation: list[Message] = []
        for node in self.path():
            conversation += node.messages
            conversation.append(node.answer)
        return conversation


class CapturedSequence(NamedTuple):
    """Parallel lists of tokens, as in a `TokenSequence`, of one conversation from its beginning to its last answer.

    Attributes:
        ids: The ids in order.
        mask: Each sampled id at its place, and -100 elsewhere. Ids that an earlier sequence trains are -100 too.
        logprobs: Natural logarithms at the places of the mask's ids, and 1.0 elsewhere. None: the server returned none
            in some turn.
        root: The place of the conversation's first node in `Captured.roots`.
        continued: Whether a later request repeats the last answer or quotes its text, or there is no later request.
            False: the harness threw the answer away, as it does with a summary that it did not use.
        shared: The length of the prefix that an earlier sequence trains.
        last: The last answer.
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float] | None
    root: int
    continued: bool
    shared: int
    last: Node


class Captured:
    """All answers that a gateway sampled.

    Attributes:
        nodes: The answers of all models, in the order in which their requests arrived.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, node: Node) -> None:
        """Add an answer."""
        insort(self.nodes, node, key=lambda each: each.number)

    @property
    def roots(self) -> list[Node]:
        """The answers of the policy that began a conversation."""
        return [node for node in self.nodes if node.trained and node.parent is None]

    @property
    def main(self) -> list[Node]:
        """The conversation of the harness: the answers from the first root of the policy to its last delivered answer.

        Empty if no answer was delivered. Work after a compaction of the history is in later roots.
        """
        leaves = self._leaves()
        first = min((leaf.path()[0].number for leaf in leaves), default=None)
        return next((path for leaf in reversed(leaves) if (path := leaf.path())[0].number == first), [])

    @property
    def sampled_ids(self) -> int:
        """The number of ids in the policy's delivered answers."""
        return sum(len(_tokens(node).ids) for node in self._delivered())

    @property
    def main_share(self) -> float:
        """The share of the sampled ids of the policy's delivered answers that are in `main`. 1.0 if there are none."""
        total = self.sampled_ids
        return sum(len(_tokens(node).ids) for node in self.main) / total if total else 1.0

    def sequences(self) -> list[CapturedSequence]:
        """Return the conversations of the policy as sequences for a trainer.

        There is one for each delivered answer that no other delivered answer continues, in the order of their roots
        and then of their last requests. Each sampled id of a delivered answer is in the mask of exactly one sequence,
        after the ids of the prompt from which it was sampled.

        Raises:
            ValueError: If the policy returns no token ids.
        """
        return self._join([leaf.path() for leaf in self._leaves()])

    def select(self, scope: SequenceScope = "main") -> list[CapturedSequence]:
        """Return the sequences to train on: the one of `main`, all that begin with its root, or all. If no answer was
        delivered, there are none.

        Answers that end a conversation and that the harness threw away (`CapturedSequence.continued`) are left out,
        except that of `main`: they had no part in the result.

        Raises:
            ValueError: If the policy returns no token ids.
        """
        main = self.main
        if not main or scope == "main":
            return self._join([main] if main else [])
        thrown = {leaf for leaf in self._leaves() if leaf is not main[-1] and not self._is_continued(leaf)}
        paths = [leaf.path() for leaf in _leaves([node for node in self._delivered() if node not in thrown])]
        return self._join([path for path in paths if scope == "all" or path[0] is main[0]])

    def _join(self, paths: Sequence[list[Node]]) -> list[CapturedSequence]:
        places = {root: place for place, root in enumerate(self.roots)}
        trained: set[Node] = set()
        sequences = []
        for path in sorted(paths, key=lambda path: places[path[0]]):
            new = [node for node in path if node not in trained]
            shared = path[: len(path) - len(new)]
            sequences.append(_join_path(shared, new, places[path[0]], self._is_continued(path[-1])))
            trained.update(new)
        return sequences

    def _delivered(self) -> list[Node]:
        return [node for node in self.nodes if node.trained and node.delivered]

    def _leaves(self) -> list[Node]:
        return _leaves(self._delivered())

    def _is_continued(self, leaf: Node) -> bool:
        later = [node for node in self.nodes if node.trained and node.number > leaf.number]
        return not later or any(_repeats(leaf.answer, message) for node in later for message in node.messages)


def _leaves(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that no other of these nodes continues."""
    continued = {node.parent for node in nodes}
    return [node for node in nodes if node not in continued]


def _tokens(node: Node) -> TurnTokens:
    if node.completion.tokens is None:
        raise ValueError("the model returns no token ids: use a TokenModel to train on its samples")
    return node.completion.tokens


def _join_path(before: Sequence[Node], new: Sequence[Node], root: int, continued: bool) -> CapturedSequence:
    beginning = before[-1].prompted_ids() if before else []
    ids, mask, logprobs = join_turns([_tokens(node) for node in new])
    shared = len(beginning)
    return CapturedSequence(
        beginning + ids,
        [NOT_SAMPLED] * shared + mask,
        None if logprobs is None else [NO_LOGPROB] * shared + logprobs,
        root,
        continued,
        shared,
        new[-1],
    )


def _repeats(turn: Message, message: Message) -> bool:
    """Return whether a message of a request is an assistant turn, or quotes its text."""
    text = message_text(turn).strip()
    if text:
        return text in message_text(message)
    return message.get("role") == "assistant" and _calls(turn) == _calls(message) != []


def _calls(message: Message) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls_of(message)]
