"""Conversations: the tokens are those of the whole rendering, the masks those put together turn by turn."""

import json
import shutil

import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from conftest import INSPECT, SPECIAL, encoder, held_out, manifest_of, mask, prepare, refusal, run, shard, shards_of
from conftest import some_documents, tokens_of, write_lines
from llmc_data.chat import Chat
from llmc_data.errors import DataError
from llmc_data.template import LLAMA3, ChatTemplate, without_tags
from llmc_data.tokenizer import Tokenizer

BOS, EOS, START, END, EOT = range(5)
COMMON = ("--chat", "--name", "x", "--processes", 2)
CHATML = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message.role + '\n' }}"
    "{{ message.content + '<|eot_id|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{{ bos_token }}{%- for message in messages %}\n{%- if message.role == 'assistant' %}\n"
    "{%- generation %}{{ message.content }}{{ '<|eot_id|>' }}{% endgeneration %}\n"
    "{%- else %}{{ message.role + ': ' + message.content }}{% endif %}\n{%- endfor %}"
)


def some_conversations(count: int) -> list[list[dict]]:
    texts = iter(text for text in some_documents(count * 12, seed=9) if "<|" not in text and text.strip())
    conversations = []
    for n in range(count):
        messages = [{"role": "system", "content": next(texts)}] * (n % 3 == 0)
        for _ in range(1 + n % 3):
            messages.append({"role": "user", "content": next(texts)})
            messages.append({"role": "assistant", "content": "\n " + next(texts) + "  "})
        conversations.append(messages + [{"role": "user", "content": "And?"}] * (n % 5 == 0))
    return conversations


def turn_by_turn(encode, messages) -> tuple[list[int], list[int]]:
    """Llama 3's layout by hand: special tokens by number, everything between them tokenized alone."""
    ids, learnt = [BOS], [0]
    for message in messages:
        head = [START, *encode(message["role"]), END, *encode("\n\n")]
        body = [*encode(message["content"].strip()), EOT]
        ids += head + body
        learnt += [0] * len(head) + [int(message["role"] == "assistant")] * len(body)
    return ids, learnt


def write_chat(path, conversations):
    return write_lines(path, ({"messages": messages} for messages in conversations))


def test_llama3(llama3, tmp_path):
    conversations, encode = some_conversations(400), encoder(llama3)
    write_chat(tmp_path / "d.jsonl", conversations)
    arguments = ("--tokenizer", llama3, "--shard-tokens", 40_000, "--val-fraction", 0.1, *COMMON)
    prepare(tmp_path / "d.jsonl", "--out", tmp_path / "o", *arguments)
    whole = tokenizers.Tokenizer.from_file(str(llama3 / "tokenizer.json"))
    whole.no_truncation()
    whole.no_padding()
    template, expected = jinja2.Template(LLAMA3), {}
    for split, first in (("val", 0), ("train", 1)):
        ids, learnt = [], []
        for n, messages in enumerate(conversations):
            if held_out(n, 0.1) == (split == "val"):
                parts = turn_by_turn(encode, messages)
                rendered = template.render(messages=messages, bos_token=SPECIAL[0])
                assert parts[0] == whole.encode(rendered, add_special_tokens=False).ids
                ids, learnt = ids + parts[0], learnt + parts[1]
        for n, at in enumerate(range(0, len(ids), 40_000), first):
            expected[f"x_{split}_{n:06d}.bin"] = shard(ids[at : at + 40_000], masked=True)
            expected[f"x_{split}_{n:06d}.mask"] = mask(learnt[at : at + 40_000])
    assert shards_of(tmp_path / "o") == expected and len(expected) >= 6
    manifest = manifest_of(tmp_path / "o")
    assert all(s["mask"]["learnt"] == expected[s["mask"]["name"]][1024:].count(1) for s in manifest["shards"])
    said = run(INSPECT, *(tmp_path / "o" / name for name in expected)).stdout
    assert "learnt" in said and repr(conversations[0][2]["content"].strip())[1:20] in said
    # The same from a table.
    pq.write_table(pa.table({"messages": conversations}), tmp_path / "d.parquet")
    prepare(tmp_path / "d.parquet", "--out", tmp_path / "p", *arguments)
    assert shards_of(tmp_path / "p") == expected


def chat_of(folder, template: str) -> Chat:
    tokenizer = Tokenizer(folder)
    return Chat(ChatTemplate(template, "t", tokenizer), tokenizer)


def documents_of(folder, template: str, messages, tools=None) -> list[tuple[str, list[str]]]:
    """Each document's text, and its learnt parts, decoded."""
    chat, found = chat_of(folder, template), []
    for document in chat.prepare(messages, tools).documents:
        edges = np.flatnonzero(np.diff(np.frombuffer(document.mask, "i1"), prepend=0, append=0)).reshape(-1, 2)
        parts = [document.ids[first:last] for first, last in [(0, len(document.ids)), *edges]]
        text, *learnt = [chat.tokenizer.decode(part.tolist()) for part in parts]
        found.append((text, learnt))
    return found


def learnt_text(folder, template: str, messages) -> list[str]:
    """The learnt parts of the only document."""
    [(_, learnt)] = documents_of(folder, template, messages)
    return learnt


CONVERSATION = [
    {"role": "user", "content": "Who is there?"},
    {"role": "assistant", "content": "古池や, nobody."},
    {"role": "user", "content": "Nobody?"},
    {"role": "assistant", "content": "Nobody."},
]


def test_what_stands_behind_the_end_of_turn_is_not_learnt(llama3):
    assert learnt_text(llama3, CHATML, CONVERSATION) == ["古池や, nobody.<|eot_id|>", "Nobody.<|eot_id|>"]
    assert learnt_text(llama3, LLAMA3, CONVERSATION) == ["古池や, nobody.<|eot_id|>", "Nobody.<|eot_id|>"]
    no_end = CHATML.replace("<|eot_id|>", "")
    assert learnt_text(llama3, no_end, CONVERSATION[:2]) == ["古池や, nobody.\n"]
    # A special token among the words ends no turn.
    words = "It is <|eot_id|> that ends a turn."
    talk = [CONVERSATION[0], {"role": "assistant", "content": words}]
    assert learnt_text(llama3, no_end, talk) == [words + "\n"]
    assert learnt_text(llama3, CHATML, talk) == [words + "<|eot_id|>"]
    # Nor does one with which they end, if the template has none there.
    talk = [CONVERSATION[0], {"role": "assistant", "content": "It ends with <|eot_id|>"}]
    assert learnt_text(llama3, no_end, talk) == ["It ends with <|eot_id|>\n"]
    assert learnt_text(llama3, CHATML, talk) == ["It ends with <|eot_id|><|eot_id|>"]
    assert chat_of(llama3, no_end).prepare(talk).documents[0].ends == []


def test_an_assistant_that_begins(llama3):
    """Templates of Llama 3.1's kind ask who says the first message, and render no empty conversation."""
    asks = "{% if messages[0].role == 'system' %}{{ 'system' }}{% endif %}"
    expected = [f"{words}<|eot_id|>" for words in ("Welcome!", "Nobody.")]
    talk = [{"role": "assistant", "content": "Welcome!"}, *CONVERSATION[2:]]
    for template in (asks + CHATML, CHATML, "Hello. " + asks + CHATML, LLAMA3):
        assert learnt_text(llama3, template, talk) == expected
    assert learnt_text(llama3, "{{ bos_token }}" + CHATML, talk) == expected


def test_marked_template(llama3):
    assert learnt_text(llama3, MARKED, CONVERSATION) == ["古池や, nobody.<|eot_id|>", "Nobody.<|eot_id|>"]
    assert "\ufdd0" not in chat_of(llama3, MARKED).renderings(CONVERSATION, None)[0].text


PROMPT = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant\n' }}{% endif %}"
# As Qwen 3's: the thinking of answers before the last question is left out.
FORGETS_THINKING = (
    "{% set last = namespace(question=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set words = m.content %}"
    "{% if m.role == 'assistant' and loop.index0 < last.question %}{% set words = words.split('</think>')[-1] %}{% endif %}"
    "{{ '<|start_header_id|>' + m.role + '\n' + words + '<|eot_id|>\n' }}{% endfor %}" + PROMPT
)


def turn(role: str, words: str) -> str:
    """ChatML's."""
    return f"<|start_header_id|>{role}\n{words}<|eot_id|>\n"


def test_an_answer_that_is_rendered_differently_later(llama3):
    """It is learnt in a document of its own, as the model sees it when it answers."""
    says = [("user", "Why?"), ("assistant", "<think>hm</think>So."), ("user", "And?"), ("assistant", "<think>oh</think>No.")]
    talk = [{"role": role, "content": words} for role, words in says]
    first = "".join(turn(role, words) for role, words in says[:2])
    whole = turn(*says[0]) + turn("assistant", "So.") + turn(*says[2]) + turn(*says[3])
    own = [(first, ["<think>hm</think>So.<|eot_id|>"]), (whole, ["<think>oh</think>No.<|eot_id|>"])]
    assert documents_of(llama3, FORGETS_THINKING, talk) == own
    # No document has the messages after the last answer, if nothing is learnt in them.
    assert documents_of(llama3, FORGETS_THINKING, [*talk, {"role": "user", "content": "Oh?"}]) == own
    # Answers that stand unchanged together stay together: two since one question, and one without thoughts.
    says[0:0] = [("user", "Hello."), ("assistant", "Hello.")]
    says[4:4] = [("tool", "noon"), ("assistant", "<think>ah</think>Noon.")]
    talk = [{"role": role, "content": words} for role, words in says]
    learnt = [learnt for _, learnt in documents_of(llama3, FORGETS_THINKING, talk)]
    assert learnt == [
        ["<think>hm</think>So.<|eot_id|>", "<think>ah</think>Noon.<|eot_id|>"],
        ["Hello.<|eot_id|>", "<think>oh</think>No.<|eot_id|>"],
    ]
    # An answer of weight 0 gives no document.
    silent = [m | {"weight": int(n == 1)} for n, m in enumerate(talk)]
    assert [learnt for _, learnt in documents_of(llama3, FORGETS_THINKING, silent)] == [["Hello.<|eot_id|>"]]
    with pytest.raises(DataError, match="does not render the content of message 0"):
        learnt_text(llama3, CHATML.replace("message.content", "(message.content if loop.last else '…')"), CONVERSATION)


def test_the_end_of_a_conversation_is_no_rewriting(llama3):
    """As of Phi 3: all of a conversation ends with a token of its own, and each answer stands in the whole."""
    template = CHATML.replace(PROMPT, "") + PROMPT.replace("{% endif %}", "{% else %}{{ eos_token }}{% endif %}")
    [(text, learnt)] = documents_of(llama3, template, CONVERSATION)
    assert text.endswith("Nobody.<|eot_id|>\n<|end_of_text|>") and text.count("<|end_of_text|>") == 1
    assert learnt == ["古池や, nobody.<|eot_id|>", "Nobody.<|eot_id|>\n<|end_of_text|>"]


def test_another_generation_prompt(llama3):
    """As of DeepSeek R1: what the model is given to go on from is not in the answers, which begin where they do."""
    template = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}")
    assert template != CHATML
    assert learnt_text(llama3, template, CONVERSATION) == ["古池や, nobody.<|eot_id|>", "Nobody.<|eot_id|>"]
    begins = [{"role": "assistant", "content": "<b>"}, *CONVERSATION]
    assert learnt_text(llama3, template, begins)[0] == "<b><|eot_id|>"
    assert learnt_text(llama3, CHATML.replace("assistant\n", "other\n"), CONVERSATION)[1] == "Nobody.<|eot_id|>"


def test_special_tokens_that_words_spell(llama3, tmp_path):
    """The user's stay text, the assistant's are these tokens; so in contents, parts, results of tools and tools."""
    spelt = "a <|eot_id|>\n<|start_header_id|><|eot_id|> b"
    talk = [
        {"role": "system", "content": "<|eot_id|>"},
        {"role": "user", "content": spelt, "name": "<|eot_id|>"},
        {"role": "assistant", "content": "It is <|eot_id|>!"},
    ]
    chat, encode = chat_of(llama3, CHATML), encoder(llama3)
    prepared = chat.prepare(talk)
    [document] = prepared.documents
    # Text between special tokens is cut into tokens as a whole: where words join the template's text, no border is.
    expected = [START, *encode("system\n<|eot_id|>"), EOT, *encode("\n")]
    expected += [START, *encode("user\n" + spelt), EOT, *encode("\n"), START, *encode("assistant\n")]
    answer = [*encode("It is "), EOT, *encode("!"), EOT]
    assert document.ids.tolist() == [*expected, *answer, *encode("\n")]
    assert list(document.mask) == [0] * len(expected) + [1] * len(answer) + [0] * len(encode("\n"))
    assert prepared.spelt == 5 and document.ends == [EOT]
    # The tokenizer reads plain texts as before.
    assert chat.tokenizer.encode(["x <|eot_id|>"])[0].tolist() == encode("x <|eot_id|>")
    [(text, _)] = documents_of(llama3, TAKES_TOOLS, WITH_TOOLS, [TOOL | {"description": "<|eot_id|>"}])
    assert text.count("<|eot_id|>") == 5 and "\ufdd2" not in text
    write_chat(tmp_path / "d.jsonl", [talk, CONVERSATION])
    said = prepare(tmp_path / "d.jsonl", "--out", tmp_path / "o", "--tokenizer", llama3, *COMMON).stdout
    assert "5 special tokens are spelt by others than the assistant; they stay text\n" in said


def test_the_manifest_names_template_and_end_of_turn(llama3, tmp_path):
    """The special tokens that end learnt turns, the most frequent first; none where none ends them."""
    for template, ends in (
        (LLAMA3, [EOT]),
        (MARKED, [EOT]),
        (CHATML.replace("<|eot_id|>", ""), []),
        (CHATML.replace("'<|eot_id|>'", "('<|eot_id|>' if loop.index == 2 else eos_token)"), [EOS, EOT]),
    ):
        (tmp_path / "t.jinja").write_text(template)
        arguments = ("--tokenizer", llama3, "--template", tmp_path / "t.jinja", "--val-fraction", 0, "--restart", *COMMON)
        talks = [CONVERSATION, [*CONVERSATION, *CONVERSATION[2:]]]
        write_chat(tmp_path / "d.jsonl", talks)
        prepare(tmp_path / "d.jsonl", "--out", tmp_path / "o", *arguments)
        assert manifest_of(tmp_path / "o")["chat"] == {"template": "chat_template.jinja", "end_of_turn": ends}
    (tmp_path / "d.txt").write_text("text")
    prepare(tmp_path / "d.txt", "--out", tmp_path / "text", "--tokenizer", llama3)
    assert "chat" not in manifest_of(tmp_path / "text")


def test_where_the_template_comes_from(llama3, tmp_path):
    """--template, chat_template.jinja, tokenizer_config.json, Llama 3's; and the begin of text stands there once."""
    shutil.copytree(llama3, tmp_path / "t")
    write_chat(tmp_path / "d.jsonl", [CONVERSATION])
    (tmp_path / "given.jinja").write_text("{{ bos_token }}given" + CHATML)
    encode = encoder(llama3)

    def head(*arguments) -> list[int]:
        common = (tmp_path / "d.jsonl", "--out", tmp_path / "o", "--tokenizer", tmp_path / "t", *COMMON, "--restart")
        prepare(*common, *arguments)
        return tokens_of(tmp_path / "o").tolist()[:8]

    assert head()[:3] == [BOS, START, *encode("user")][:3]
    config = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    (tmp_path / "t/tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "config" + CHATML}))
    assert head()[: 1 + len(encode("config"))] == [BOS, *encode("config")]
    (tmp_path / "t/chat_template.jinja").write_text("beside" + CHATML)
    assert head()[: 1 + len(encode("beside"))] == [BOS, *encode("beside")]
    assert head("--template", tmp_path / "given.jinja")[: 1 + len(encode("given"))] == [BOS, *encode("given")]


def test_the_template_goes_along(llama3, tmp_path):
    """chat_template.jinja beside the shards is what was trained with, without what plain jinja does not know; and
    tokenizer_config.json says the same."""
    shutil.copytree(llama3, tmp_path / "t")
    write_chat(tmp_path / "d.jsonl", [CONVERSATION])
    arguments = (tmp_path / "d.jsonl", "--tokenizer", tmp_path / "t", *COMMON, "--out")
    prepare(*arguments, tmp_path / "built_in")
    assert (tmp_path / "built_in/chat_template.jinja").read_text() == LLAMA3
    config = (llama3 / "tokenizer_config.json").read_bytes()
    assert (tmp_path / "built_in/tokenizer_config.json").read_bytes() == config
    # The one given wins over those of the tokenizer.
    (tmp_path / "t/tokenizer_config.json").write_text(json.dumps(json.loads(config) | {"chat_template": "config"}))
    (tmp_path / "t/chat_template.jinja").write_text("beside")
    (tmp_path / "given.jinja").write_text(MARKED)
    prepare(*arguments, tmp_path / "given", "--template", tmp_path / "given.jinja")
    written = (tmp_path / "given/chat_template.jinja").read_text()
    config = json.loads((tmp_path / "given/tokenizer_config.json").read_text())
    assert config == {"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[1]}, "chat_template": written}
    # Without --chat the tokenizer's own files are copied as they are.
    (tmp_path / "d.txt").write_text("text")
    prepare(tmp_path / "d.txt", "--tokenizer", tmp_path / "t", "--out", tmp_path / "text")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "text" / name).read_bytes() == (tmp_path / "t" / name).read_bytes()


@pytest.mark.parametrize("opened", ["{% generation %}", "{%- generation -%}", "{%-generation%}", "{%+ generation -%}"])
@pytest.mark.parametrize("closed", ["{% endgeneration %}", "{%- endgeneration -%}", "{%- endgeneration +%}"])
def test_templates_without_tags_render_the_same(opened, closed, llama3):
    source = MARKED.replace("{%- generation %}", "   " + opened + "\n  ").replace("{% endgeneration %}", "\n " + closed)
    assert source.count(opened) == source.count(closed) == 1
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(without_tags(source))
    rendered = chat_of(llama3, source).renderings(CONVERSATION, None)[0].text
    assert plain.render(messages=CONVERSATION, bos_token=SPECIAL[0]) == rendered


CALL = {"type": "function", "function": {"name": "time", "arguments": {"zone": "UTC"}}}
WITH_TOOLS = [
    {"role": "user", "content": "When is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "noon"},
    {"role": "assistant", "content": "Noon."},
]
TOOL = {"type": "function", "function": {"name": "time", "parameters": {"zone": "string"}}}
TAKES_TOOLS = (
    "{% if tools is not none %}{{ 'tools: ' + (tools | tojson) }}{% endif %}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '\n' }}"
    "{% if 'tool_calls' in message %}{{ 'content' if 'content' in message }}"
    "{{ message.tool_calls | tojson }}{% endif %}"
    "{% if message.content is not none %}{{ message.content }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant\n' }}{% endif %}"
)


def test_tools(llama3, tmp_path):
    """A template that takes them gets the same of JSON lines and of tables, with null for what is not there."""
    (tmp_path / "t.jinja").write_text(TAKES_TOOLS)
    other = {"type": "function", "function": {"name": "place", "arguments": {"depth": 3}}}
    rows = [
        {"messages": WITH_TOOLS, "tools": [TOOL]},
        {"messages": CONVERSATION},
        {"messages": [CONVERSATION[0], {"role": "assistant", "content": "So:", "tool_calls": [other]}]},
    ]
    nulls = [rows[0] | {"tools": json.dumps([TOOL])}, rows[1] | {"tools": None}, rows[2] | {"tools": ""}]
    nulls[1]["messages"] = [message | {"tool_calls": None} for message in CONVERSATION]
    table = pa.Table.from_pylist([{"messages": row["messages"], "tools": row.get("tools")} for row in rows])
    assert table.column("messages")[1].as_py()[0]["tool_calls"] is None  # as tables have it
    pq.write_table(table, tmp_path / "table.parquet")
    with pa.ipc.new_stream(str(tmp_path / "table.arrow"), table.schema) as writer:
        writer.write_table(table)
    write_lines(tmp_path / "lines.jsonl", rows)
    write_lines(tmp_path / "nulls.jsonl", nulls)
    options = ("--tokenizer", llama3, "--template", tmp_path / "t.jinja", "--val-fraction", 0, *COMMON)
    written = []
    for name in ("lines.jsonl", "nulls.jsonl", "table.parquet", "table.arrow"):
        prepare(tmp_path / name, "--out", tmp_path / f"{name}.out", *options)
        written.append(shards_of(tmp_path / f"{name}.out"))
    assert written[1:] == written[:1] * 3
    tokens = tokens_of(tmp_path / "lines.jsonl.out")
    text = Tokenizer(llama3).decode(tokens.tolist())
    for call, beside in ((CALL, ""), (other, "So:")):
        assert f"assistant\ncontent{json.dumps([call])}{beside}<|eot_id|>" in text
    assert text.count("tools: ") == 1 and f"tools: {json.dumps([TOOL])}<|start" in text
    assert "null" not in text and "None" not in text
    learnt = np.frombuffer(written[0]["x_train_000001.mask"][1024:], "u1") == 1
    assert json.dumps([CALL]) in Tokenizer(llama3).decode(tokens[learnt].tolist())


TAKES_PARTS = CHATML.replace(
    "message.content +", "(message.content if message.content is string else message.content | map(attribute='text') | join('')) +"
)
ONLY_PARTS = CHATML.replace("message.content +", "message.content | map(attribute='text') | join('') +")
PRINTS_LISTS = CHATML.replace("message.content +", "message.content ~")


@pytest.mark.parametrize("template", [TAKES_PARTS, ONLY_PARTS, PRINTS_LISTS, CHATML, LLAMA3])
def test_content_in_parts(template, llama3):
    """Given as they are to a template that takes them, else joined."""
    talk = [m | {"content": [{"type": "text", "text": m["content"][:3]}, {"type": "text", "text": m["content"][3:]}]}
            for m in CONVERSATION]  # fmt: skip
    assert chat_of(llama3, template).template.takes_parts == (template in (TAKES_PARTS, ONLY_PARTS))
    usual = LLAMA3 if template == LLAMA3 else CHATML
    assert documents_of(llama3, template, talk) == documents_of(llama3, usual, CONVERSATION)
    talk[2]["content"].append({"type": "image_url", "image_url": "x"})
    with pytest.raises(DataError, match="message 2 has a part of the type image_url\n"):
        documents_of(llama3, template, talk)


IGNORES = CHATML.replace("message.content", "(message.content or '')").replace(
    "messages %}", "messages if message.role != 'system' %}"
)


@pytest.mark.parametrize(
    "row, message",
    [
        ({"messages": WITH_TOOLS}, "does not render the tool_calls of message 1, whose role is assistant\n  leave"),
        ({"messages": CONVERSATION, "tools": [TOOL]}, "does not render its tools\n  leave"),
        ({"messages": [CONVERSATION[0], CONVERSATION[1] | {"function_call": CALL}]}, "the function_call of message 1"),
        (
            {"messages": [{"role": "system", "content": "Be brief."}, *CONVERSATION]},
            "does not render the content of message 0, whose role is system\n  leave",
        ),
    ],
)
def test_what_the_template_ignores_is_refused(row, message, llama3, tmp_path):
    (tmp_path / "t.jinja").write_text(IGNORES)
    write_lines(tmp_path / "d.jsonl", [{"messages": CONVERSATION, "tools": []}, row])
    arguments = ("--out", tmp_path / "o", "--tokenizer", llama3, "--template", tmp_path / "t.jinja", *COMMON)
    said = refusal(tmp_path / "d.jsonl", *arguments, "--bad-rows", "error")
    assert f"{tmp_path}/d.jsonl: line 2: the template t.jinja " in said and message in said


def test_answers_under_another_role(llama3, tmp_path):
    """A conversation whose answers would not be learnt is refused, unless the template marks them."""
    options = ("--tokenizer", llama3, "--val-fraction", 0, "--restart", "--bad-rows", "error", *COMMON)
    for role in ("model", "gpt", "bot", "Assistant"):
        renamed = [m | {"role": role} if m["role"] == "assistant" else m for m in CONVERSATION]
        write_chat(tmp_path / "d.jsonl", [CONVERSATION, renamed])
        said = refusal(tmp_path / "d.jsonl", "--out", tmp_path / "o", *options)
        assert f"line 2: no message has the role assistant, whose messages are learnt, and one has the role {role}" in said
        assert len(learnt_text(llama3, MARKED.replace("'assistant'", f"'{role}'"), renamed)) == 2


def test_what_is_learnt_is_counted(llama3, tmp_path):
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    silent = [m | {"weight": 0} for m in CONVERSATION]
    write_chat(tmp_path / "d.jsonl", [CONVERSATION, asked, silent])
    said = prepare(tmp_path / "d.jsonl", "--out", tmp_path / "o", "--tokenizer", llama3, "--val-fraction", 0, *COMMON)
    train = manifest_of(tmp_path / "o")["splits"]["train"]
    encode = encoder(llama3)
    learnt = sum(len(encode(m["content"])) + 1 for m in CONVERSATION if m["role"] == "assistant")
    assert (train["learnt"], train["documents_not_learnt"]) == (learnt, 2)
    assert f"learnt: {learnt:,} of {train['tokens']:,} tokens\n" in said.stdout
    assert "nothing is learnt of 2 of 3 conversations\n" in said.stdout


def test_messages_of_weight_0_are_not_learnt(llama3):
    talk = [message | {"weight": weight} for message, weight in zip(CONVERSATION, (1, 0, 0, 1), strict=True)]
    for template in (CHATML, LLAMA3, MARKED):
        assert learnt_text(llama3, template, talk) == ["Nobody.<|eot_id|>"]
    with pytest.raises(DataError, match="message 3 has the weight 0.5\n  expected 0 or 1"):
        learnt_text(llama3, CHATML, [*CONVERSATION[:3], CONVERSATION[3] | {"weight": 0.5}])
    twice = MARKED.replace("{{ message.content }}", "{{ message.content }}{% endgeneration %}{% generation %}")
    with pytest.raises(DataError, match="marks 4 parts, and 2 messages have the role assistant"):
        learnt_text(llama3, twice, talk)


INSIDE = "inside the conversation, too"


def test_delimiter_inside_a_conversation(llama3, tmp_path):
    """As where <|im_end|> ends both turns and texts, or <s> begins each turn: not chosen, or refused if asked for, and
    the ways out lead on."""
    one_turn = [{"role": "user", "content": "Who?"}]
    write_chat(tmp_path / "d.jsonl", [one_turn, CONVERSATION])
    begins = "{% for m in messages %}{{ bos_token + m.role + m.content }}{% endfor %}"
    ends = "{% for m in messages %}{{ m.role + m.content + eos_token }}{% endfor %}"
    around = "{% for m in messages %}{{ bos_token + m.role + m.content + eos_token }}{% endfor %}"
    generation = "{% if add_generation_prompt %}{{ PROMPT }}{% endif %}"

    def command(template: str, *arguments) -> tuple:
        prompt = "bos_token + 'assistant'" if "bos_token" in template else "'assistant'"
        (tmp_path / "t.jinja").write_text(template + generation.replace("PROMPT", prompt))
        options = ("--template", tmp_path / "t.jinja", "--val-fraction", 0, "--bad-rows", "error")
        return tmp_path / "d.jsonl", "--out", tmp_path / "o", "--tokenizer", llama3, *options, "--restart", *COMMON, *arguments

    def refused(line: int, token: int, *arguments) -> None:
        said = refusal(*command(*arguments))
        assert f"{tmp_path}/d.jsonl: line {line}: the delimiter {SPECIAL[token]} ({token}) is {INSIDE}: token " in said
        assert "--delimiter-token TOKEN" in said and "--delimiter none" in said
        assert not shards_of(tmp_path / "o")

    def tokens(*arguments) -> list[int]:
        prepare(*command(*arguments))
        return tokens_of(tmp_path / "o").tolist()

    refused(2, BOS, begins, "--delimiter", "before")
    refused(2, EOS, ends, "--delimiter", "after")
    refused(1, EOS, ends, "--delimiter-token", SPECIAL[EOS])  # at the other border
    refused(2, BOS, around, "--delimiter", "both")
    refused(2, EOS, ends, "--delimiter", "both")
    plain = tokens(begins, "--delimiter", "none")
    assert plain.count(BOS) == 5 and plain[0] == BOS
    # If the user names none, the delimiter is a token that no turn has, after each conversation.
    chosen = tokens(begins)
    assert [token for token in chosen if token != EOS] == plain and chosen[-1] == EOS and chosen.count(EOS) == 2
    assert manifest_of(tmp_path / "o")["delimiter"] == {"place": "after", "token": SPECIAL[EOS], "id": EOS}
    # Both of the tokenizer's are inside, as of Llama 2: nothing stands between conversations, or a token that has no use.
    assert tokens(around) == tokens(around, "--delimiter", "none")
    assert "nothing stands between conversations" in prepare(*command(around)).stdout
    config = {"bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS], "pad_token": SPECIAL[EOT]}
    shutil.copytree(llama3, tmp_path / "padded")
    (tmp_path / "padded/tokenizer_config.json").write_text(json.dumps(config))
    padded = tokens(around, "--tokenizer", tmp_path / "padded")
    assert [token for token in padded if token != EOT] == tokens(around) and padded.count(EOT) == 2 and padded[-1] == EOT
    other = tokens(begins, "--delimiter-token", SPECIAL[EOT])
    assert other.count(BOS) == 5 and other.index(EOT) == 0 and other.count(EOT) == 2
    # At its border it is no second one, and not refused.
    write_chat(tmp_path / "d.jsonl", [one_turn, one_turn])
    once = tokens(around, "--delimiter", "both")
    assert [token for token in once if token < 5] == [BOS, EOS, BOS, EOS]
    assert once == tokens(around, "--delimiter", "none")
    assert tokens("{% for m in messages %}{{ m.content }}{% endfor %}", "--delimiter", "both")[0] == BOS


@pytest.mark.parametrize(
    "row, message",
    [
        ({"messages": WITH_TOOLS}, "message 1 has tool_calls, and this template renders text alone\n  leave"),
        ({"messages": CONVERSATION, "tools": [TOOL]}, "it has tools, and this template renders text alone\n  leave"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}, "0 has a part of the type image\n"),
        ({"messages": [{"role": "user", "content": 3}]}, "is no conversation"),
        ({"messages": [{"role": "user", "content": "\ufdd2"}]}, "line 2: U+FDD2, which no text may use, in a message"),
        ({"conversations": [{"from": "nobody", "value": "x"}]}, "message 0 is from 'nobody'\n  expected one of human"),
        ({"prompt": "x", "completion": ["y"]}, "prompt and completion are neither two strings nor two lists of messages"),
        ({"messages": CONVERSATION, "tools": "{"}, "line 2: tools is a string, but not JSON: "),
        ({"messages": CONVERSATION, "tools": {"a": 1}}, "line 2: tools is dict\n  expected a list"),
        ({"messages": CONVERSATION, "tools": ["\ud83d"]}, "line 2: half a surrogate pair"),
        ({"text": "x"}, "no field messages"),
        ({"messages": "x"}, "is no conversation"),
        ({"messages": [{"content": "x"}]}, "is no conversation"),
        ({"messages": []}, "is no conversation"),
        ({"messages": [{"role": "user"}]}, "is no conversation"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "half a surrogate pair"),
    ],
)
def test_bad_conversations(row, message, llama3, tmp_path):
    """Of a template that takes text alone, as the built-in one does."""
    write_lines(tmp_path / "d.jsonl", [{"messages": CONVERSATION, "tools": []}, row])
    arguments = (tmp_path / "d.jsonl", "--out", tmp_path / "o", "--tokenizer", llama3, "--bad-rows", "error", *COMMON)
    refused = refusal(*arguments)
    assert f"{tmp_path}/d.jsonl: line 2: " in refused and message in refused
    assert not shards_of(tmp_path / "o")


def test_bad_templates(llama3, tmp_path):
    write_chat(tmp_path / "d.jsonl", [CONVERSATION])
    (tmp_path / "d.txt").write_text("x")
    (tmp_path / "bad.jinja").write_text("{% for %}")
    (tmp_path / "strict.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    common = ("--out", tmp_path / "o", "--tokenizer", llama3, *COMMON)
    for source, template, message in (
        ("d.jsonl", "bad.jinja", "no chat template"),
        ("d.jsonl", "strict.jinja", "line 1: the template strict.jinja refuses the conversation: roles"),
        ("d.jsonl", "none.jinja", "there is no template"),
        ("d.txt", "strict.jinja", "not text files"),
    ):
        assert message in refusal(tmp_path / source, "--template", tmp_path / template, *common)
    rules = json.loads((llama3 / "tokenizer.json").read_text().replace("<|eot_id|>", "<|other|>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    arguments = (tmp_path / "d.jsonl", "--out", tmp_path / "o", "--tokenizer", tmp_path, *COMMON)
    assert "it has no <|eot_id|>, as Llama 3's needs" in refusal(*arguments)
