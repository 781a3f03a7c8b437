"""Six chat templates with the traits that matter for token ids, and how a model of each family writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hermes_agent.tokens import ChatTemplate
from tests.unit.agent.tokens.byte_tokenizer import ByteTokenizer

_CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

PLAIN = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- '<|im_start|>system\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' }}
            {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
            {{- '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>tool\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# What Qwen's does: thinking is dropped from earlier turns, results of one turn stand in one user turn, and texts of the
# assistant are trimmed.
DROPS_THINKING = """
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content.split('</think>')[-1] | trim }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# What Llama's does: one call a turn at most, the text beside it dropped, the call written anew, another end after it.
RENDERS_CALLS = """
{{- '<|begin_of_text|>' }}
{%- if tools %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting today: ' + strftime_now('%d %b %Y') }}
    {%- for tool in tools %}{{- '\\n\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- '}<|eom_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}{{- {'output': message.content} | tojson }}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

# What GLM's does: no end of a turn, the model stops at the token of the next role.
NO_END = """
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\\n# Tools' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'system' %}
        {{- '<|' + message.role + '|>\\n' + message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '<|assistant|>\\n<think></think>\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>' + call.function.name }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' + value + '</arg_value>' }}
            {%- endfor %}
            {{- '\\n</tool_call>' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""

# What Mistral's does: turns alternate strictly, ids of calls are printed and have nine characters, the text of a turn
# with calls is dropped.
STRICT = """
{{- '<s>' }}
{%- set ns = namespace(index=0, last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {%- if (message.role == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
        {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.index0 == ns.last %}
            {{- '[AVAILABLE_TOOLS] ' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
            {%- endif %}
            {{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}
            {{- ', ' if not loop.last else ']' }}
        {%- endfor %}
        {{- '</s>' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + '</s>' }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id | length != 9 %}
            {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
        {%- endif %}
        {{- '[TOOL_RESULTS] ' }}{{- {'content': message.content, 'call_id': message.tool_call_id} | tojson }}
        {{- '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception('Only user, assistant and tool roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""

# SmolLM2's own, from its tokenizer_config.json: no tools, every role as it is named.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A template with its tokens. `parser` takes apart what `says` writes; `follows` is what stands between a turn and
    the next, given the results, the ids of their calls and what the user said then, without the end of the turn.
    """

    name: str
    template: str
    added: Sequence[str]
    eos: str
    call_end: str
    answer_end: str
    says: Callable[[str, list[str]], str]
    parser: str
    follows: Callable[[list[str], list[str], str | None], str]
    most_calls: int = 3
    tools_in_prompt: bool = True

    def tokenizer(self) -> ByteTokenizer:
        return ByteTokenizer(self.added, self.template, eos=self.eos)

    def chat_template(self, tokenizer: ByteTokenizer) -> ChatTemplate:
        return ChatTemplate(tokenizer, tools_in_prompt=self.tools_in_prompt)


def _says_hermes(text: str, given: list[str]) -> str:
    calls = [f"<tool_call>\n{json.dumps({'name': 'do', 'arguments': {'x': x}})}\n</tool_call>" for x in given]
    return "\n".join([f"<think>\nI think of the {text}  …\n</think>\n\n  {text}", *calls])


def _says_llama(text: str, given: list[str]) -> str:
    return json.dumps({"name": "do", "parameters": {"x": given[0]}}) if given else f" {text} "


def _says_glm(text: str, given: list[str]) -> str:
    calls = [f"<tool_call>do\n<arg_key>x</arg_key>\n<arg_value>{x}</arg_value>\n</tool_call>\n" for x in given]
    return "".join(["\n<think>thinking of it</think>\n", text, *calls])


def _says_mistral(text: str, given: list[str]) -> str:
    if not given:
        return f" {text}"
    made = [{"name": "do", "arguments": {"x": x}, "id": f"{number}aB{len(x):06}"} for number, x in enumerate(given)]
    return f"[TOOL_CALLS] {json.dumps(made)}"


def _chatml_user(user: str | None) -> str:
    return "" if user is None else f"<|im_start|>user\n{user}<|im_end|>\n"


def _follows_plain(results: list[str], ids: list[str], user: str | None) -> str:
    told = "".join(f"<|im_start|>tool\n<tool_response>\n{text}\n</tool_response><|im_end|>\n" for text in results)
    return f"\n{told}{_chatml_user(user)}<|im_start|>assistant\n"


def _follows_qwen(results: list[str], ids: list[str], user: str | None) -> str:
    told = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in results)
    return f"\n<|im_start|>user{told}<|im_end|>\n{_chatml_user(user)}<|im_start|>assistant\n"


def _follows_llama(results: list[str], ids: list[str], user: str | None) -> str:
    def turn(role: str, text: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}"

    told = [turn("ipython", json.dumps({"output": text}, ensure_ascii=False) + "<|eot_id|>") for text in results]
    asked = [] if user is None else [turn("user", f"{user}<|eot_id|>")]
    return "".join([*told, *asked, turn("assistant", "")])


def _follows_glm(results: list[str], ids: list[str], user: str | None) -> str:
    # The model wrote <|observation|> itself.
    told = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in results)
    asked = "" if user is None else f"<|user|>\n{user}"
    return f"{told}{asked}<|assistant|>"


def _follows_mistral(results: list[str], ids: list[str], user: str | None) -> str:
    if user is not None:
        results = [*results[:-1], f"{results[-1]}\n\n{user}"]
    told = [json.dumps({"content": x, "call_id": y}, ensure_ascii=False) for x, y in zip(results, ids, strict=True)]
    return "".join(f"[TOOL_RESULTS] {text}[/TOOL_RESULTS]" for text in told)


def _follows_smollm2(results: list[str], ids: list[str], user: str | None) -> str:
    told = "".join(f"<|im_start|>tool\n{text}<|im_end|>\n" for text in results)
    return f"\n{told}{_chatml_user(user)}<|im_start|>assistant\n"


_TOOL_TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
_LLAMA = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
]
_RESERVED = [f"<|reserved_special_token_{number}|>" for number in range(40)]
_GLM = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
_GLM_TAGS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
]
_MISTRAL = ["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"]
_MISTRAL_TAGS = ["[TOOL_RESULTS]", "[/TOOL_RESULTS]"]

_HERMES = Family(
    "plain", PLAIN, _CHATML, "<|im_end|>", "<|im_end|>", "<|im_end|>", _says_hermes, "hermes", _follows_plain
)

FAMILIES = {
    family.name: family
    for family in (
        _HERMES,
        replace(
            _HERMES,
            name="drops_thinking",
            template=DROPS_THINKING,
            added=[*_CHATML, *_TOOL_TAGS],
            follows=_follows_qwen,
        ),
        Family(
            "renders_calls",
            RENDERS_CALLS,
            [*_LLAMA, *_RESERVED],
            "<|eot_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
            _says_llama,
            "llama3_json",
            _follows_llama,
            most_calls=1,
        ),
        Family(
            "no_end",
            NO_END,
            [*_GLM, *_GLM_TAGS],
            "<|endoftext|>",
            "<|observation|>",
            "<|user|>",
            _says_glm,
            "glm45",
            _follows_glm,
        ),
        Family(
            "strict",
            STRICT,
            [*_MISTRAL, *_MISTRAL_TAGS],
            "</s>",
            "</s>",
            "</s>",
            _says_mistral,
            "mistral",
            _follows_mistral,
        ),
        replace(_HERMES, name="smollm2", template=SMOLLM2, follows=_follows_smollm2, tools_in_prompt=False),
    )
}
