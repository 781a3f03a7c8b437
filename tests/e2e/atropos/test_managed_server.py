"""Canaries: why token ids are not left to atroposlib's `ManagedServer`. When one of these fails, it no longer loses ids
there, and whether this integration should go on keeping them itself is to be decided anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes_agent.parsers import get_parser
from hermes_atropos.envs.terminal_test import TerminalTestEnv
from hermes_exec.tools.catalog.schemas import schemas
from tests.e2e.atropos.inference_server import END, PolicyServer, call, load, make_env, make_tokenizer, serving
from tests.unit.agent.tokens.families import DROPS_THINKING, PLAIN

pytestmark = pytest.mark.anyio
TRIMS = PLAIN.replace("message.content }}", "message.content | trim }}")
TOOLS = [schemas()["terminal"]]


def policy(prompt: str) -> str:
    """Two tool calls, then an answer; each begins with white space."""
    turn = prompt.count("<tool_response>")
    return "\n<think>hm</think> " + (call("terminal", command=f"echo {turn}") if turn < 2 else "done")


async def nodes(template: str, directory: Path, *, structured: bool, parser: str | None, **more: Any) -> list[Any]:
    """What is kept of an episode of three turns whose history is sent back as text or with structured tool calls."""
    tokenizer = make_tokenizer(directory / "tokenizer", template)
    with serving(PolicyServer(load(tokenizer), policy)) as server:
        env = make_env(TerminalTestEnv, tokenizer, server.url)
        env.server.tool_parser = parser
        ends = [env.tokenizer.eos_token_id]
        async with env.server.managed_server(tokenizer=env.tokenizer, **more) as managed:
            messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
            for turn in range(3):
                answer = await managed.chat_completion(
                    messages=messages, n=1, max_tokens=2000, tools=TOOLS, stop_token_ids=ends
                )
                text = answer.choices[0].message.content.removesuffix(END)
                calls = get_parser("hermes")(text, TOOLS).calls if structured else []
                messages.append({"role": "assistant", "content": "" if calls else text})
                if calls:
                    messages[-1]["tool_calls"] = [
                        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                        for one in calls
                    ]
                messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"{turn}"})
            return list(managed.get_state()["nodes"])


@pytest.mark.filterwarnings("ignore:vLLM is not installed")
@pytest.mark.parametrize(
    ("template", "how", "made"),
    [
        (PLAIN, {"structured": False, "parser": None}, 1),
        (TRIMS, {"structured": False, "parser": None}, 3),
        (DROPS_THINKING, {"structured": False, "parser": None, "preserve_think_blocks": True}, 3),
        (PLAIN, {"structured": True, "parser": "hermes"}, 3),
    ],
    ids=["as_text", "trims", "drops_thinking", "structured"],
)
async def test_sequences_of_an_episode(template: str, how: dict[str, Any], made: int, tmp_path: Path) -> None:
    assert len(await nodes(template, tmp_path, **how)) == made
