"""What can be wrong with an answer besides its calls: text of others, and calls where none can stand."""

from __future__ import annotations

from hermes_agent.messages import FENCED_CALL, INVENTED_ANSWER, AnswerProblem

RESULTS = ("<tool_response>", "[TOOL_RESULTS]", "<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>")
"""Tags with which chat templates begin what tools write."""

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
"""Tags with which chat templates begin what tools, users and the system write."""

_EXCERPT_CHARS = 200


def invention_problem(tag: str, rest: str, *, unread: bool) -> AnswerProblem:
    """The answer went on with `tag`; `left_out` is all from there on. With `unread` there is a call in it and none
    before it, which the model is told.
    """
    excerpt = rest if len(rest) <= _EXCERPT_CHARS else f"{rest[:_EXCERPT_CHARS]}…"
    notice = (
        f"Your answer was cut at {tag}: results are not yours to write, and nothing after it was carried out. Make the "
        "call first, and wait for its result."
    )
    message = f"The answer was cut at {tag}, which others than the model write: {excerpt!r}"
    return AnswerProblem(INVENTED_ANSWER, message, notice if unread else None)


def thinking_problem(close: str) -> AnswerProblem:
    """Thinking that was not closed has what looks like a call in it."""
    return AnswerProblem(
        "unclosed_thinking",
        f"What looks like a call stands in thinking that was not closed with {close}; it was not carried out.",
        f"Your thinking was not closed with {close}, so the call in it was not carried out. Close your thinking, then "
        "make the call.",
        trainable=False,
    )


def reasoning_problem() -> AnswerProblem:
    """The endpoint gave all of the answer, with what looks like a call in it, as thinking."""
    return AnswerProblem(
        "call_in_reasoning",
        "What looks like a call stands in the thinking, and there is no answer; it was not carried out.",
        "Your answer was thinking alone, so the call in it was not carried out. End your thinking, then make the call.",
        trainable=False,
    )


def fence_problem(form: str) -> AnswerProblem:
    """The answer ends with a code fence that has a call in it."""
    return AnswerProblem(
        FENCED_CALL,
        "The answer ends with a call in a code fence, which is text; it was not carried out.",
        "The call in the code fence at the end of your answer was not carried out, for a code fence holds text. If you "
        f"mean it, make the call without the fence: {form} Else say that you are done.",
    )
