"""The tree of what a gateway sampled: each node is one answer, and continues the conversation of its parent."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_agent.messages import Completion, Message


@dataclass(eq=False)
class Node:
    """One request and its answer.

    Attributes:
        number: Its place in the order in which requests arrived, from 0.
        parent: The node whose conversation and answer the request repeats. None: the request begins a root.
        messages: The messages of the request after those that it repeats.
        completion: The answer. None: it is not sampled yet, or failed.
        delivered: Whether the client got the answer.
        trained: Whether the policy gave the answer. False: a helper did.
    """

    number: int
    parent: Node | None
    messages: tuple[Message, ...]
    completion: Completion | None = None
    delivered: bool = False
    trained: bool = True
    children: list[Node] = field(default_factory=list, repr=False)
