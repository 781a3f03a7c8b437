"""Refusals of an endpoint: what the user is told of them, and what they mean."""

from __future__ import annotations

import json

import pytest

from hermes_agent import AgentLoop, ModelError
from hermes_exec.errors import ErrorCause
from tests.unit.agent.endpoint import Answer, endpoint, refusal
from tests.unit.agent.test_openai_model import ASK, GOOD, JSON, model
from tests.unit.agent.toolboxes import FunctionTools, echo

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
REFUSALS: dict[str, tuple[object, str]] = {
    "Ollama": ({"error": "model 'q' not found"}, "model 'q' not found"),
    "FastAPI": ({"detail": "LoRA adapter x is missing"}, "LoRA adapter x is missing"),
    "pydantic": (
        {"detail": [{"loc": ["body", "tools"], "msg": "field required"}]},
        '{"detail": [{"loc": ["body", "tools"], "msg": "field required"}]}',
    ),
    "Gemini": ([{"error": {"code": 400, "message": "API key not valid."}}], "API key not valid."),
    "list of errors": ({"errors": [{"message": "bad tool schema"}]}, "bad tool schema"),
    "vLLM": ({"object": "error", "message": "no such\nmodel", "code": 400}, "no such model"),
    "OpenRouter": (
        {"error": {"message": "Provider returned error", "metadata": {"raw": "seed is unknown"}}},
        "Provider returned error (seed is unknown)",
    ),
    "text": ("upstream connect error", "upstream connect error"),
    "page": (
        "<html><style>p {color: red}</style>\n<title>WAF</title><p>blocked &amp; logged</p></html>",
        "WAF blocked & logged",
    ),
    "tags": ("<html><br></html>", "<html><br></html>"),
    "long": ({"error": "x" * 9000}, "x" * 2000),
    "fields of its own": ({"code": 7, "msg": "no"}, '{"code": 7, "msg": "no"}'),
    "nothing": ("", "Bad Request"),
    "null": (None, "Bad Request"),
    "number": (7, "7"),
    "too deep for a message": ({"error": [[[[["x"]]]]]}, '{"error": [[[[["x"]]]]]}'),
}


@pytest.mark.parametrize(("body", "says"), REFUSALS.values(), ids=REFUSALS)
async def test_reason_of_a_refusal_is_told_whatever_its_form(body: object, says: str) -> None:
    refused = Answer(400, (body if isinstance(body, str) else json.dumps(body)).encode(), JSON)
    with endpoint(refused) as server:
        async with model(server.base_url, stream=False) as made:
            with pytest.raises(ModelError) as caught:
                await made.complete(ASK, [])
    assert str(caught.value) == f"m: HTTP 400: {says}"


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (403, "Your input was flagged", None),
        (400, "The response was filtered", "content_filter"),
        (400, "Input data may contain inappropriate content.", "data_inspection_failed"),
        (400, "Content Exists Risk", "invalid_request_error"),
        (400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy.", "invalid_prompt"),
    ],
)
async def test_conversation_that_a_provider_refuses_ends_as_filtered(
    status: int, message: str, code: str | None
) -> None:
    with endpoint(refusal(status, message, code)) as server:
        async with model(server.base_url) as made:
            episode = await AgentLoop(made, FunctionTools(echo)).run("hi")
    assert (episode.finish, episode.cause, episode.trainable) == ("content_filter", ErrorCause.PROVIDER, False)
    assert [(error.kind, message in error.message) for error in episode.errors] == [("ContentFiltered", True)]
    assert len(server.requests) == 1


async def test_call_that_a_server_could_not_read_is_a_lost_completion() -> None:
    broken = refusal(400, "Failed to call a function.", "tool_use_failed")
    with endpoint(broken, broken, GOOD) as server:
        async with model(server.base_url, max_retries=2) as made:
            assert (await made.complete(ASK, [])).content == "x"
    with endpoint(broken, broken) as server:
        async with model(server.base_url, max_retries=1) as made:
            with pytest.raises(ModelError) as caught:
                await made.complete(ASK, [])
    assert caught.value.cause == ErrorCause.PROVIDER
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "message",
    [
        "Range of max_tokens should be [1, 8192]",
        "max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens",
        "`max_new_tokens` must be > 0",
    ],
)
async def test_parameter_out_of_range_is_no_full_context(message: str) -> None:
    with endpoint(refusal(400, message)) as server:
        async with model(server.base_url, stream=False) as made:
            with pytest.raises(ModelError, match="max_") as caught:
                await made.complete(ASK, [])
    assert (type(caught.value), caught.value.cause) == (ModelError, ErrorCause.CONFIG)
