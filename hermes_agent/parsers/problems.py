"""Faults of an answer outside its calls: text in another role, and calls where none can stand."""

from __future__ import annotations

from hermes_agent.messages import FENCED_CALL, INVENTED_ANSWER, AnswerProblem

RESULTS = ("<tool_response>", "[TOOL_RESULTS]", "<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>")
"""Tags with which chat templates begin results of tools."""

OTHERS = (
    *RESULTS,
    "[INST]",
    "<|im_start|>",
    "<|im_system|>",
    "<|im_user|>",
    "<|observation|>",
    "<|user|>",
    "<|system|>",
    "<|start_header_id|>",
    "<|header_start|>",
    "<｜User｜>",
)
"""Tags with which chat templates begin results of tools and messages of users and the system."""

_EXCERPT_CHARS = 200


def invention_problem(tag: str, rest: str, *, unread: bool) -> AnswerProblem:
    """Return the problem of an answer that was cut at `tag`, where the model went on in another role.

    `rest` is the text from the tag on. With `unread` there is a call in it and none before it, and the model gets a
    notice.
    """
    excerpt = rest if len(rest) <= _EXCERPT_CHARS else f"{rest[:_EXCERPT_CHARS]}…"
    notice = (
        f"Your answer was cut at {tag}: only tools write results, and nothing after it was run. Make the "
        "call first, and wait for its result."
    )
    message = f"The answer was cut at {tag}, where the model went on in another role: {excerpt!r}"
    return AnswerProblem(INVENTED_ANSWER, message, notice if unread else None)


def thinking_problem(close: str) -> AnswerProblem:
    """Return the problem of unclosed thinking that contains text like a call."""
    return AnswerProblem(
        "unclosed_thinking",
        f"The thinking was not closed with {close} and contains text like a call, which was not run.",
        f"Your thinking was not closed with {close}, so the call in it was not run. Close your thinking, then "
        "make the call.",
        trainable=False,
    )


def reasoning_problem() -> AnswerProblem:
    """Return the problem of an answer that the endpoint returned entirely as thinking, with text like a call in it."""
    return AnswerProblem(
        "call_in_reasoning",
        "The answer is only thinking and contains text like a call, which was not run.",
        "Your answer was only thinking, so the call in it was not run. End your thinking, then make the call.",
        trainable=False,
    )


def fence_problem(form: str) -> AnswerProblem:
    """Return the problem of an answer that ends with a call in a code fence."""
    return AnswerProblem(
        FENCED_CALL,
        "The answer ends with a call in a code fence, which is text and was not run.",
        "The call in the code fence at the end of your answer was not run, because a code fence holds text. If you "
        f"mean it, make the call without the fence: {form} Otherwise give your final answer.",
    )
