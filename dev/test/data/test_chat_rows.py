"""Conversations: rows of ShareGPT and prompts with completions are those of messages; what prepare prints of them."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import manifest_of, prepare, shards_of, write_lines
from llmc_data.template import LLAMA3
from test_chat import COMMON, CONVERSATION, write_chat


def written(folder, tmp_path, rows, *arguments, table: bool = False) -> tuple[dict, str]:
    """The shards of rows, and what the command says."""
    path = tmp_path / ("d.parquet" if table else "d.jsonl")
    pq.write_table(pa.Table.from_pylist(rows), path) if table else write_lines(path, rows)
    options = ("--tokenizer", folder, "--val-fraction", 0, "--bad-rows", "error", "--restart", *COMMON)
    said = prepare(path, "--out", tmp_path / "o", *options, *arguments).stdout
    return shards_of(tmp_path / "o"), said


@pytest.mark.parametrize("table", [False, True])
def test_sharegpt(table, llama3, tmp_path):
    """Its names of roles, and what stands beside the conversation."""
    roles = [("system", "system"), ("human", "user"), ("gpt", "assistant"), ("observation", "tool"), ("gpt", "assistant")]
    talk = [{"role": role, "content": f"As {name}."} for name, role in roles]
    turns = [{"from": name, "value": f"As {name}.", "weight": int(n != 2)} for n, (name, _) in enumerate(roles)]
    plain = [message | {"weight": int(n != 2)} for n, message in enumerate(talk)]
    expected, _ = written(llama3, tmp_path, [{"messages": plain}, {"messages": [talk[0], *CONVERSATION]}])
    of_sharegpt = [{"from": {"assistant": "gpt"}.get(m["role"], "human"), "value": m["content"]} for m in CONVERSATION]
    rows = [{"conversations": turns, "system": ""}, {"conversations": of_sharegpt, "system": "As system."}]
    shards, said = written(llama3, tmp_path, rows, table=table)
    assert shards == expected and "2 conversations from conversations of ShareGPT\n" in said
    kinds = manifest_of(tmp_path / "o")["rows"]["kinds"]
    assert kinds == {"conversations of ShareGPT": 2}
    # Under another name, and messages under this one.
    shards, _ = written(llama3, tmp_path, [{"talk": turns}, {"talk": [talk[0], *CONVERSATION]}], "--text-field", "talk")
    assert shards == expected
    shards, said = written(llama3, tmp_path, [{"conversations": plain}, {"conversations": [talk[0], *CONVERSATION]}])
    assert shards == expected and "2 conversations from conversations\n" in said


@pytest.mark.parametrize("table", [False, True])
def test_prompts_with_completions(table, llama3, tmp_path):
    """With --chat: of strings a user's message and the answer; of messages, what the prompt says is not learnt."""
    strings = [{"prompt": m["content"], "completion": CONVERSATION[n + 1]["content"]} for n, m in enumerate(CONVERSATION[:1])]
    expected, _ = written(llama3, tmp_path, [{"messages": CONVERSATION[:2]}])
    shards, said = written(llama3, tmp_path, strings, table=table)
    assert shards == expected and "1 conversation from prompt and completion\n" in said
    silent = [CONVERSATION[1] | {"weight": 0}]
    expected, _ = written(llama3, tmp_path, [{"messages": CONVERSATION[:1] + silent + CONVERSATION[2:]}])
    shards, _ = written(llama3, tmp_path, [{"prompt": CONVERSATION[:3], "completion": CONVERSATION[3:]}], table=table)
    assert shards == expected


def test_what_prepare_prints_of_conversations(llama3, tmp_path):
    """One of them as it is rendered, and a line that trains on them: whole only of a model that has weights."""
    write_chat(tmp_path / "d.jsonl", [CONVERSATION] * 100)
    model = shutil.copytree(llama3, tmp_path / "model")
    (model / "config.json").write_text("{}")
    common = ("--chat", "--name", "x", "--tokenizer", model)
    said = prepare(tmp_path / "d.jsonl", "--out", tmp_path / "o", "--val-fraction", 0, *common).stdout
    assert "a conversation: '<|begin_of_text|>" in said and "Who is there?" in said
    assert "       learnt: '古池や, nobody.<|eot_id|>'\n" in said
    data = f"./train_llama --model {model} --train-data '{tmp_path}/o/x_train_*.bin' --packed-documents on"
    assert said.endswith(data + "\n")
    (model / "model.safetensors").write_bytes(b"")
    said = prepare(tmp_path / "d.jsonl", "--out", tmp_path / "o", "--val-fraction", 0, *common).stdout
    assert said.endswith(data + " --seq-len 512 --epochs 4 --lr 3e-4 --out runs/tuned\n")
    # For few conversations the line has a shorter sequence and more epochs, so that it trains.
    write_chat(tmp_path / "e.jsonl", [CONVERSATION])
    said = prepare(tmp_path / "e.jsonl", "--out", tmp_path / "e", "--val-fraction", 0, *common).stdout
    assert f" --seq-len {manifest_of(tmp_path / 'e')['splits']['train']['tokens'] - 1} --epochs 12" in said
    # Prompts with completions are rendered with --chat alone.
    write_lines(tmp_path / "f.jsonl", [{"prompt": "Who?", "completion": "Nobody."}])
    plain = ("--out", tmp_path / "f", "--val-fraction", 0, "--tokenizer", model)
    assert "chat template" not in prepare(tmp_path / "f.jsonl", *plain).stdout
    (model / "chat_template.jinja").write_text(LLAMA3)
    assert "--chat renders them with it" in prepare(tmp_path / "f.jsonl", *plain).stdout
