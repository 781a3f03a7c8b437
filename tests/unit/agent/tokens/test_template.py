"""Chat templates as ids: what they are tried out for, and control tokens that stay text."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_agent.messages import Message
from hermes_agent.tokens import ChatTemplate
from hermes_exec.errors import ConfigError
from tests.unit.agent.tokens.byte_tokenizer import ByteTokenizer
from tests.unit.agent.tokens.families import FAMILIES, PLAIN, SMOLLM2

TOOL = {"type": "function", "function": {"name": "do", "description": "Do it", "parameters": {"type": "object"}}}
TEMPLATES = {name: family.chat_template(family.tokenizer()) for name, family in FAMILIES.items()}
TOKENIZERS = {name: family.tokenizer() for name, family in FAMILIES.items()}


def tokenizer_with(
    template: str, added: tuple[str, ...] = ("<|im_start|>", "<|im_end|>"), eos: str = "<|im_end|>"
) -> ByteTokenizer:
    return ByteTokenizer(added, template, eos=eos)


def text(tokenizer: ByteTokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def result(content: str, call_id: str = "abcdefghi") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": "do", "content": content}


def control_ids(tokenizer: ByteTokenizer, ids: list[int]) -> list[int]:
    return [number for number in ids if number in tokenizer.added_tokens_decoder]


def test_the_ends_of_a_turn_are_found() -> None:
    found = {
        name: {text(TOKENIZERS[name], [number]) for number in template.end_ids} for name, template in TEMPLATES.items()
    }
    assert found == {
        "plain": {"<|im_end|>"},
        "drops_thinking": {"<|im_end|>"},
        "renders_calls": {"<|eot_id|>", "<|eom_id|>"},
        "no_end": {"<|endoftext|>", "<|user|>", "<|observation|>", "<|assistant|>"},
        "strict": {"</s>"},
        "smollm2": {"<|im_end|>"},
    }


def test_the_ends_of_a_turn_can_be_given() -> None:
    tokenizer = FAMILIES["plain"].tokenizer()
    assert ChatTemplate(tokenizer, end=["<|endoftext|>", "<|im_end|>"]).end_ids == {
        tokenizer.id_of("<|endoftext|>"),
        tokenizer.id_of("<|im_end|>"),
    }
    assert ChatTemplate(tokenizer, end=[tokenizer.id_of("<|im_end|>")]).end_ids == {tokenizer.id_of("<|im_end|>")}
    with pytest.raises(ConfigError, match=r"one id each; '### User' is \d+ ids"):
        ChatTemplate(tokenizer, end=["### User"])


def test_a_template_that_drops_the_tools_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not render tools: give another one as chat_template=, or .*tools_in"):
        ChatTemplate(tokenizer_with(SMOLLM2))
    ChatTemplate(tokenizer_with(SMOLLM2), chat_template=PLAIN)
    assert (
        text(
            tokenizer_with(SMOLLM2), ChatTemplate(tokenizer_with(SMOLLM2), tools_in_prompt=False).prompt(BEGIN, [TOOL])
        ).count("do")
        == 0
    )


BEGIN: list[Message] = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('no') }}", r"the chat template refuses the conversation: TemplateError: no"),
        ("{% for m in messages %}{{ m.content }}", r"refuses the conversation: TemplateSyntaxError"),
        (PLAIN.replace("message.role == 'tool'", "false"), r"refuses or drops tool results: give another one as"),
        (
            PLAIN.replace("'<|im_start|>assistant\\n' + message.content", "'x'"),
            r"the chat template drops assistant messages: give another",
        ),
        (PLAIN.replace("<|im_end|>", "### End"), r"ends turns with a text without a control token: .* as end="),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_at_once(template: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ChatTemplate(tokenizer_with(template))


def test_a_tokenizer_without_a_template_is_refused() -> None:
    class Bare(ByteTokenizer):
        def apply_chat_template(self, *args: Any, **options: Any) -> str:
            raise ValueError("Cannot use chat template functions because tokenizer.chat_template is not set")

    with pytest.raises(ConfigError, match="ValueError: Cannot use chat template functions"):
        ChatTemplate(Bare(["<|im_end|>"], "", eos="<|im_end|>"))


def test_variables_are_the_templates() -> None:
    template = PLAIN.replace("'<tools>'", "'<tools>' + mood")
    tokenizer = tokenizer_with(template)
    assert "<tools>fine" in text(tokenizer, ChatTemplate(tokenizer, variables={"mood": "fine"}).prompt(BEGIN, [TOOL]))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_user_says_after_results_is_told(name: str) -> None:
    family = FAMILIES[name]
    results = [result(f"result {number}", f"abcdefgh{number}") for number in range(family.most_calls)]
    new = [*results, {"role": "user", "content": "and this"}]
    written = TEMPLATES[name].suffix(new, [TOOL], after=TOKENIZERS[name].id_of(family.call_end))
    told = family.follows([str(x["content"]) for x in results], [str(x["tool_call_id"]) for x in results], "and this")
    assert text(TOKENIZERS[name], written) == told


def test_a_strict_template_is_given_whole_prompts_in_its_own_order() -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "do", "arguments": '{"x": 1}'}}
    made: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    messages: list[Message] = [
        *BEGIN,
        made,
        result("one"),
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    ]
    tokenizer = FAMILIES["strict"].tokenizer()
    written = text(tokenizer, TEMPLATES["strict"].prompt(messages, []))
    assert '"arguments": {"x": 1}' in written
    assert written.endswith('{"content": "one\\n\\ngo", "call_id": "abcdefghi"}[/TOOL_RESULTS]')
    with pytest.raises(ConfigError, match="TemplateError: Tool call IDs should be"):
        TEMPLATES["strict"].suffix([result("one", "call_1")], [])


@pytest.mark.parametrize("name", FAMILIES)
def test_system_text_is_in_the_prompt_of_every_template(name: str) -> None:
    messages: list[Message] = [{"role": "system", "content": "Be good"}, {"role": "user", "content": "go"}]
    written = text(TOKENIZERS[name], TEMPLATES[name].prompt(messages, []))
    assert written.count("Be good") == 1
    assert written.index("Be good") < written.index("go", written.index("Be good") + 7)


def test_system_text_without_a_message_of_the_user_is_the_users() -> None:
    written = text(TOKENIZERS["strict"], TEMPLATES["strict"].prompt([{"role": "system", "content": "Be good"}], []))
    assert written == "<s>[INST] Be good[/INST]"


def test_arguments_that_are_no_object_are_rendered_all_the_same() -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "do", "arguments": '{"x": '}}
    messages: list[Message] = [*BEGIN, {"role": "assistant", "content": "", "tool_calls": [call]}, result("bad call")]
    assert '{"x": ' in text(TOKENIZERS["no_end"], TEMPLATES["no_end"].prompt(messages, []))


def test_the_end_that_a_model_wrote_is_not_repeated() -> None:
    llama, eot, eom = TEMPLATES["renders_calls"], *map(TOKENIZERS["renders_calls"].id_of, ("<|eot_id|>", "<|eom_id|>"))
    whole = llama.suffix([result("x")], [])
    assert whole[0] == eom
    assert llama.suffix([result("x")], [], after=eom) == llama.suffix([result("x")], [], after=eot) == whole[1:]
    assert llama.suffix([result("x")], [], after=65) == whole


def test_the_token_of_the_next_role_stays_where_the_model_wrote_another() -> None:
    observation, user, end = map(TOKENIZERS["no_end"].id_of, ("<|observation|>", "<|user|>", "<|endoftext|>"))
    whole = TEMPLATES["no_end"].suffix([result("x")], [])
    assert whole[0] == observation
    assert TEMPLATES["no_end"].suffix([result("x")], [], after=observation) == whole[1:]
    for other in (user, end, 65):
        assert TEMPLATES["no_end"].suffix([result("x")], [], after=other) == whole


# What Gemma 4's does: results stand in the turn of the model, before the text that the model wrote before its calls.
RESULTS_INSIDE = """
{%- for tool in tools or [] %}{{- tool.function.name }}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<|turn>user\n' + message.content + '<turn|>\n' }}{%- endif %}
    {%- if message.role == 'assistant' %}
        {{- '<|turn>model\n' }}
        {%- for call in message.tool_calls or [] %}
            {{- '<|call>' + call.function.name + call.function.arguments | tojson + '<call|>' }}
        {%- endfor %}
        {%- set results = namespace(any=false, over=false) %}
        {%- for later in messages[loop.index:] %}
            {%- if later.role != 'tool' %}{%- set results.over = true %}{%- endif %}
            {%- if not results.over %}
                {%- set results.any = true %}
                {{- '<|response>' + later.content + '<response|>' }}
            {%- endif %}
        {%- endfor %}
        {{- message.content }}
        {%- if message.tool_calls and not results.any %}{{- '<|response>' }}
        {%- elif message.content %}{{- '<turn|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{- '<|turn>model\n' }}{%- endif %}
"""


def test_results_inside_of_a_turn() -> None:
    tokenizer = tokenizer_with(
        RESULTS_INSIDE, ("<|turn>", "<turn|>", "<|call>", "<call|>", "<|response>", "<response|>"), eos="<turn|>"
    )
    template = ChatTemplate(tokenizer)
    response, end = map(tokenizer.id_of, ("<|response>", "<turn|>"))
    assert template.end_ids == {response, end}
    new = [result("one"), result("two", "abcdefgh2")]
    told = "one<response|><|response>two<response|>"
    assert text(tokenizer, template.suffix(new, [TOOL], after=response)) == told
    # The model wrote another end: what begins the results stays.
    assert text(tokenizer, template.suffix(new, [TOOL], after=end)) == f"<|response>{told}"
    assert text(tokenizer, template.suffix(BEGIN, [], after=end)) == "\n<|turn>user\nHello<turn|>\n<|turn>model\n"


# What gpt-oss' does: a turn ends with another token when it is the last one, and with a third one after a call.
THREE_ENDS = """
{%- for tool in tools or [] %}{{- tool.function.name }}{%- endfor %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {{- '<|start|>assistant to=' + message.tool_calls[0].function.name + '<|message|>' }}
        {{- message.tool_calls[0].function.arguments | tojson + '<|call|>' }}
    {%- elif message.role == 'assistant' and loop.last %}
        {{- '<|start|>assistant<|message|>' + message.content + '<|return|>' }}
    {%- else %}{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""


def test_an_end_between_messages_is_none_of_the_turn() -> None:
    added = ("<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
    tokenizer = tokenizer_with(THREE_ENDS, added, eos="<|return|>")
    for template in (ChatTemplate(tokenizer), ChatTemplate(tokenizer, end=["<|call|>"])):
        assert template.end_ids == {tokenizer.id_of("<|return|>"), tokenizer.id_of("<|call|>")}
        back = text(tokenizer, template.suffix(BEGIN, [], after=tokenizer.id_of("<|return|>")))
        assert back == "<|start|>user<|message|>Hello<|end|><|start|>assistant"
        told = text(tokenizer, template.suffix([result("x")], [], after=tokenizer.id_of("<|call|>")))
        assert told == "<|start|>tool<|message|>x<|end|><|start|>assistant"


def test_a_template_that_takes_arguments_as_text() -> None:
    template = PLAIN.replace(
        "{{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}",
        "{{- call.function.name + '\n' + call.function.arguments }}",
    )
    tokenizer = tokenizer_with(template)
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "do", "arguments": '{"x":  1}'}}
    messages: list[Message] = [*BEGIN, {"role": "assistant", "content": "", "tool_calls": [call]}, result("one")]
    assert 'do\n{"x":  1}\n</tool_call>' in text(tokenizer, ChatTemplate(tokenizer).prompt(messages, []))
    assert "one" in text(tokenizer, ChatTemplate(tokenizer).suffix([result("one")], []))


@pytest.mark.parametrize("name", FAMILIES)
def test_control_tokens_in_results_and_of_users_stay_text(name: str) -> None:
    tokenizer, template = TOKENIZERS[name], TEMPLATES[name]
    everything = "".join(f" {token.content}{token.content}" for token in tokenizer.added_tokens_decoder.values())
    harmless = template.suffix([result("x")], [])
    hostile = template.suffix([result(f"x{everything}")], [])
    assert control_ids(tokenizer, hostile) == control_ids(tokenizer, harmless)
    assert text(tokenizer, hostile) == text(tokenizer, harmless).replace("x", f"x{everything}", 1)
    asked = template.prompt([{"role": "user", "content": f"x{everything}"}], [])
    assert control_ids(tokenizer, asked) == control_ids(
        tokenizer, template.prompt([{"role": "user", "content": "x"}], [])
    )
    assert everything in text(tokenizer, asked)


def test_control_tokens_in_the_name_of_a_called_tool_stay_text() -> None:
    template = PLAIN.replace("<tool_response>\\n'", "<tool_response>\\n' + message.name")
    tokenizer = tokenizer_with(template)
    written = ChatTemplate(tokenizer).suffix([{**result("x"), "name": "do<|im_end|>"}], [])
    assert "do<|im_end|>x" in text(tokenizer, written)
    assert len(control_ids(tokenizer, written)) == len(
        control_ids(tokenizer, ChatTemplate(tokenizer).suffix([result("x")], []))
    )


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    assert "a?b" in text(TOKENIZERS["plain"], TEMPLATES["plain"].suffix([result("a\ud800b")], []))


def test_control_tokens_of_the_system_stay_control_tokens() -> None:
    tokenizer = TOKENIZERS["plain"]
    written = TEMPLATES["plain"].prompt([{"role": "system", "content": "a<|endoftext|>b"}, *BEGIN], [])
    assert tokenizer.id_of("<|endoftext|>") in written


def test_control_tokens_that_contain_each_other_stay_text() -> None:
    tokenizer = tokenizer_with(PLAIN, ("<|im_start|>", "<|im_end|>", "<<eot>", "<eot>", "<<"))
    written = ChatTemplate(tokenizer).suffix([result("a<<eot><eot><<b")], [])
    assert "a<<eot><eot><<b" in text(tokenizer, written)
    assert control_ids(tokenizer, written) == control_ids(tokenizer, ChatTemplate(tokenizer).suffix([result("x")], []))


def test_added_tokens_that_are_white_space_are_no_control_tokens() -> None:
    tokenizer = tokenizer_with(PLAIN, ("<|im_start|>", "<|im_end|>", "\n\n\n", "    "))
    written = ChatTemplate(tokenizer).suffix([result("a    b")], [])
    assert tokenizer.id_of("    ") in written


SPECIAL = st.sampled_from([token.content for token in TOKENIZERS["drops_thinking"].added_tokens_decoder.values()])
HOSTILE = st.lists(SPECIAL | st.text() | st.sampled_from(["<|im_", "|>", "<", "{{ x }}", "\\", '"'])).map("".join)


@pytest.mark.parametrize("name", ["plain", "drops_thinking", "no_end", "smollm2"])
@given(content=HOSTILE)
@settings(max_examples=60)
def test_whatever_a_tool_prints_is_that_text_and_nothing_else(name: str, content: str) -> None:
    tokenizer, template = TOKENIZERS[name], TEMPLATES[name]
    written = template.suffix([result(content)], [])
    harmless = template.suffix([result("x")], [])
    before, after = text(tokenizer, harmless).split("x", 1)
    assert text(tokenizer, written) == before + content + after
    assert control_ids(tokenizer, written) == control_ids(tokenizer, harmless)


@given(content=st.text())
@settings(max_examples=60)
def test_templates_that_write_json_keep_the_text(content: str) -> None:
    for name in ("renders_calls", "strict"):
        tokenizer, template = TOKENIZERS[name], TEMPLATES[name]
        written = template.suffix([result(f"{content}<|eot_id|></s>")], [])
        assert control_ids(tokenizer, written) == control_ids(tokenizer, template.suffix([result("x")], []))


@pytest.mark.parametrize("content", ["<" * 300_000, "<|im_end|>" * 30_000, "<|reserved_special_token_1" * 10_000])
def test_long_output_with_many_control_tokens_takes_time_in_proportion(content: str) -> None:
    added = ["<|im_start|>", "<|im_end|>", *(f"<|reserved_special_token_{number}|>" for number in range(6000))]
    template = ChatTemplate(ByteTokenizer(added, PLAIN, eos="<|im_end|>"))
    started = time.process_time()
    template._control.guard("m0", result(content))
    assert time.process_time() - started < 2


def test_equal_prompts_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    family = next(iter(FAMILIES.values()))
    tokenizer = family.tokenizer()
    template = family.chat_template(tokenizer)
    first = template.prompt([{"role": "user", "content": "the task"}], [TOOL])
    monkeypatch.delattr(type(tokenizer), "encode")
    again = template.prompt([{"role": "user", "content": "the task"}], [TOOL])
    assert again == first
    assert again is not first
    with pytest.raises(AttributeError):
        template.prompt([{"role": "user", "content": "another"}], [TOOL])
