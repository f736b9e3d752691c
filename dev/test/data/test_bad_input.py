"""Bad input: a message that names file and place, an exit code, and nothing under a final name."""

import bz2
import gzip
import json
import lzma
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import INSPECT, expected_shards, files_of, manifest_of, mask, prepare, refusal, run, shard, shards_of, write_jsonl

COMMON = ("--name", "x", "--processes", 1, "--val-fraction", 0)
GOOD = b'{"text": "good"}\n'


def parquet(table: dict, damage=lambda content: content):
    def write(path):
        pq.write_table(pa.table(table), path)
        path.write_bytes(damage(path.read_bytes()))

    return write


def arrow(table: dict, length: int | None = None):
    def write(path):
        table_ = pa.table(table)
        with pa.ipc.new_stream(str(path), table_.schema) as writer:
            writer.write_table(table_)
        path.write_bytes(path.read_bytes()[:length])

    return write


BAD = {  # name: (content or what writes it, message)
    "empty.txt": (b"", "empty.txt is empty"),
    "blank.jsonl": (b"\n \n", "no document in"),
    "broken.jsonl": (GOOD * 3 + b'{"text": "bad\n', "broken.jsonl: line 4: not JSON: "),
    "cut.jsonl": (GOOD * 3 + b'{"te', "cut.jsonl: line 4: not JSON: "),
    "array.json": (b'[{"text": "x"}]', "array.json: line 1: a JSON array\n  expected an object a line"),
    "missing.jsonl": (GOOD + b'{"content": "x"}\n', "missing.jsonl: line 2: no field text\n  it has content"),
    "null.jsonl": (GOOD + b'{"text": null}\n', "null.jsonl: line 2: text is null\n  drop the row, or name another"),
    "number.jsonl": (GOOD + b'{"text": 3}\n', "number.jsonl: line 2: field text is int, expected a string"),
    "list.jsonl": (GOOD + b'["text"]\n', "list.jsonl: line 2: no field text\n  it is list"),
    "column.parquet": (parquet({"content": ["x"], "n": [1]}), "no column text\n  it has content, n: name"),
    "type.parquet": (parquet({"text": [1]}), "column text holds int64\n  expected text"),
    "null.parquet": (parquet({"text": ["x"] * 300 + [None]}), "null.parquet: row 300: text is null"),
    "cut.parquet": (parquet({"text": ["x"] * 999}, lambda c: c[: len(c) // 2]), "no parquet file, or a damaged one"),
    "damaged.parquet": (
        parquet({"text": ["x" * 99] * 999}, lambda c: c[:30] + b"\xff" * 30 + c[60:]),
        "damaged.parquet: ",
    ),
    "text.parquet": (b"this is no parquet file", "text.parquet: no parquet file, or a damaged one"),
    "column.arrow": (arrow({"content": ["x"]}), "no column text"),
    "null.arrow": (arrow({"text": ["x", None]}), "null.arrow: row 1: text is null"),
    "cut.arrow": (arrow({"text": ["x" * 100] * 99}, 3000), "cut.arrow: no arrow file, or a damaged one"),
    "text.arrow": (b"this is no arrow file", "text.arrow: no arrow file, or a damaged one"),
    "gzip.txt.gz": (gzip.compress(b"text " * 99), "is compressed with gzip\n  unpack it: gunzip"),
    "gzip.jsonl": (gzip.compress(GOOD), "is compressed with gzip\n  unpack it: gunzip"),
    "bzip2.txt": (bz2.compress(b"text " * 99), "is compressed with bzip2\n  unpack it: bunzip2"),
    "xz.txt": (lzma.compress(b"text " * 99), "is compressed with xz\n  unpack it: unxz"),
    "zstd.txt": (b"\x28\xb5\x2f\xfd" + b"x" * 99, "is compressed with zstd\n  unpack it: unzstd"),
    "zip.txt": (b"PK\x03\x04" + b"x" * 99, "is compressed with zip\n  unpack it: unzip"),
    "utf16.txt": ("text".encode("utf-16"), "is UTF-16\n  write it as UTF-8: iconv"),
    "zero.txt": (b"text\0" * 99, "is binary: byte 4 is 0"),
    "cyrillic.txt": ("Текст в другой кодировке. ".encode("cp1251") * 9, "is binary, or text in another encoding"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sources(name, tmp_path):
    content, message = BAD[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        content(tmp_path / name)
    refused = refusal(tmp_path / name, "--out", tmp_path / "o", "--bad-rows", "error", *COMMON)
    assert message in refused and str(tmp_path / name) in refused
    assert not (tmp_path / "o").exists() or not shards_of(tmp_path / "o")


def test_bad_rows_are_skipped(tmp_path):
    """With a warning each, up to five, and counted; the other documents keep their numbers, so what is held out stays."""
    rows = [b'{"text": "%d"}\n' % n for n in range(400)]
    bad = {3: b"{", 50: b'{"text": 3}', 51: b"[1]", 52: b'{"content": "x"}', 53: b'{"text": null}', 390: b"no JSON"}
    for n, line in bad.items():
        rows[n] = line + b"\n"
    (tmp_path / "d.jsonl").write_bytes(b"".join(rows))
    common = (tmp_path / "d.jsonl", "--name", "x", "--val-fraction", 0.2)
    done = prepare(*common, "--out", tmp_path / "o", "--processes", 2)
    documents = [[] if n in bad else [255, *b"%d" % n] for n in range(400)]
    assert shards_of(tmp_path / "o") == expected_shards("x", documents, 10**8, 0.2)
    assert done.stderr.count("the row is skipped") == 5 and "d.jsonl: line 4: not JSON" in done.stderr
    assert "skipped 6 of 400 rows" in done.stdout
    manifest = manifest_of(tmp_path / "o")
    assert manifest["rows"] == {"read": 400, "skipped": 6} and manifest["special_tokens_spelt"]["count"] == 0
    assert sum(split["documents"] for split in manifest["splits"].values()) == 394
    # From a table; and what does not start at the first row goes on with what was counted.
    table = {"text": [None if n in bad else str(n) for n in range(400)]}
    pq.write_table(pa.table(table), tmp_path / "d.parquet")
    said = prepare(tmp_path / "d.parquet", *common[1:], "--out", tmp_path / "p").stdout
    assert "skipped 6 of 400 rows" in said and shards_of(tmp_path / "p") == shards_of(tmp_path / "o")


def test_many_bad_rows_are_refused(tmp_path):
    """More than half, or a thousand and none of them good: the wrong field or file."""
    (tmp_path / "half.jsonl").write_bytes(GOOD * 5 + b"{\n" * 5)
    assert "skipped 5 of 10 rows" in prepare(tmp_path / "half.jsonl", "--out", tmp_path / "half", *COMMON).stdout
    (tmp_path / "more.jsonl").write_bytes(GOOD * 5 + b"{\n" * 6)
    for _ in range(2):
        refused = refusal(tmp_path / "more.jsonl", "--out", tmp_path / "more", *COMMON)
        assert "more.jsonl: line 6: not JSON" in refused and "6 of 11 rows are bad" in refused
    (tmp_path / "all.jsonl").write_bytes(b'{"body": "%s"}\n' % (b"x" * 99) * 40_000)
    refused = refusal(tmp_path / "all.jsonl", "--out", tmp_path / "all", *COMMON)
    assert "all.jsonl: line 1: no field text\n  it has body" in refused and "40000" not in refused
    assert "of 40000 rows" not in refused and not shards_of(tmp_path / "all")
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi."}]}\n')
    assert "are prepared with --chat" in refusal(tmp_path / "chat.jsonl", "--out", tmp_path / "o", *COMMON)


def test_empty_files_are_skipped(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    for name in ("b.txt", "c.jsonl"):
        (tmp_path / name).touch()
    said = prepare(*(tmp_path / name for name in ("b.txt", "a.txt", "c.jsonl")), "--out", tmp_path / "o", *COMMON).stdout
    assert f"skipped 2 empty files: {tmp_path}/b.txt, {tmp_path}/c.jsonl" in said
    assert manifest_of(tmp_path / "o")["empty_files"] == [f"{tmp_path}/b.txt", f"{tmp_path}/c.jsonl"]
    assert shards_of(tmp_path / "o") == expected_shards("x", [[255, *b"text"]], 10**8, 0)


def test_files_of_tokens(tmp_path):
    """llm.c's and nanoGPT's are trained on as they are, which is said."""
    tokens = np.arange(3000, dtype="<u2")
    (tmp_path / "mine.bin").write_bytes(shard(tokens))
    refused = refusal(tmp_path / "mine.bin", "--out", tmp_path / "o", *COMMON)
    assert f"is a shard of tokens already\n  train on it: ./train_llama --train-data {tmp_path}/mine.bin" in refused
    (tmp_path / "train.bin").write_bytes(tokens.tobytes())
    refused = refusal(tmp_path / "train.bin", "--out", tmp_path / "o", *COMMON)
    assert "without a header, as nanoGPT writes them" in refused
    assert refused.strip().endswith(f"--vocab-size 50304 --train-data {tmp_path}/train.bin")


def test_a_bad_line_behind_complete_shards(tmp_path):
    """They stay; with the line mended the same command goes on."""
    good = b'{"text": "' + b"x" * 999 + b'"}\n'
    (tmp_path / "d.jsonl").write_bytes(good * 3000 + b"{bad" + good[4:] + good)
    arguments = (tmp_path / "d.jsonl", "--out", tmp_path / "o", "--shard-tokens", 400_000, "--bad-rows", "error", *COMMON)
    for _ in range(2):  # the second one goes on behind complete shards: the same line
        assert "line 3001: not JSON" in refusal(*arguments)
    kept = shards_of(tmp_path / "o")
    assert len(kept) >= 3
    (tmp_path / "d.jsonl").write_bytes(good * 3002)
    prepare(*arguments)
    expected = expected_shards("x", [[255, *b"x" * 999]] * 3002, 400_000, 0)
    assert shards_of(tmp_path / "o") == expected and kept.items() <= expected.items()


def test_invalid_utf8(tmp_path):
    """Replaced as Python does, counted, and named; or an error."""
    (tmp_path / "d.txt").write_bytes(b"good \xff\xfe bad \xe2\x82 end")
    (tmp_path / "d.jsonl").write_bytes(GOOD + b'{"text": "a\xc3("}\n{"text": "\\ud83d alone"}\n')
    column = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], "i4").tobytes()), pa.py_buffer(b"\xe9x")]
    )
    pq.write_table(pa.table({"text": column}), tmp_path / "d.parquet")
    sources = [tmp_path / name for name in ("d.txt", "d.jsonl", "d.parquet")]
    done = prepare(*sources, "--out", tmp_path / "o", *COMMON)
    texts = ["good \ufffd\ufffd bad \ufffd end", "good", "a\ufffd(", "\ufffd alone", "\ufffdx"]
    assert shards_of(tmp_path / "o") == expected_shards("x", [[255, *text.encode()] for text in texts], 10**8, 0)
    places = ("d.txt: byte 5: not UTF-8 (byte 0xff)", "d.jsonl: line 2: not UTF-8 (byte 0xc3)",
              "d.jsonl: line 3: half a surrogate pair",
              "d.parquet: row 0: not UTF-8 (byte 0xe9)")  # fmt: skip
    assert all(place in done.stderr for place in places), done.stderr
    assert "6 characters were not UTF-8" in done.stdout
    manifest = manifest_of(tmp_path / "o")
    assert manifest["replaced_characters"] == 6
    assert manifest["splits"]["train"]["text_bytes"] == sum(len(text.encode()) for text in texts)
    for source, place in zip(sources, (places[0], places[1], places[3]), strict=True):
        refused = refusal(source, "--out", tmp_path / "p", "--invalid-utf8", "error", *COMMON)
        assert place in refused and "iconv" in refused


def test_bad_tokenizers(gpt2, tmp_path):
    (tmp_path / "d.txt").write_text("text")
    rules = json.loads((gpt2 / "tokenizer.json").read_text())

    def refused(change, *arguments) -> str:
        content = change if isinstance(change, str) else json.dumps(rules | change)
        (tmp_path / "tokenizer.json").write_text(content)
        command = (tmp_path / "d.txt", "--out", tmp_path / "o", "--tokenizer", tmp_path, *arguments, *COMMON)
        return refusal(*command)

    def with_id(number: int) -> dict:
        return {"model": rules["model"] | {"vocab": rules["model"]["vocab"] | {"far": number}}}

    assert "is no tokenizer that the tokenizers library reads" in refused("{bad")
    assert "is no tokenizer that the tokenizers library reads" in refused("{}")
    assert "vocabulary has 4294967296 entries\n  expected at most 2147483648" in refused(with_id(2**32 - 1))
    assert "token ids must fit in uint32" in refused(with_id(2**32))
    assert "has no token <|none|>\n  name one with --delimiter-token" in refused({}, "--delimiter-token", "<|none|>")
    plain = {"added_tokens": [], "post_processor": None}
    plain["model"] = rules["model"] | {"vocab": {k.replace("<|", "<"): v for k, v in rules["model"]["vocab"].items()}}
    assert "names no token that begins or ends a text" in refused(plain)
    assert "there is no" in refusal(tmp_path / "d.txt", "--out", tmp_path / "o", "--tokenizer", "/none")
    assert not (tmp_path / "o").exists()


def test_bad_commands(tmp_path):
    (tmp_path / "d.txt").write_text("text")
    (tmp_path / "folder").mkdir()
    for arguments, message in (
        (("none.txt",), "there is no file none.txt\n  a source is a file, a folder"),
        (("none",), "there is no file none\n"),
        ((tmp_path / "folder",), "has no file that ends in"),
        ((tmp_path / "d.txt", "--shard-tokens", "0"), "--shard-tokens: invalid"),
        ((tmp_path / "d.txt", "--shard-tokens", "3e9"), "--shard-tokens: invalid"),
        ((tmp_path / "d.txt", "--val-fraction", "1"), "--val-fraction: invalid"),
        ((tmp_path / "d.txt", "--delimiter-token", "x"), "needs a --tokenizer"),
        ((tmp_path / "d.txt", "--chat"), "--chat needs a --tokenizer"),
        ((tmp_path / "d.txt", "--document-separator", ""), "it is empty"),
        ((tmp_path / "d.txt", "--processes", "0"), "--processes: at least 1"),
        ((), "required: SOURCE"),
    ):
        assert message in refusal(*arguments, "--out", tmp_path / "o", code=None)
    (tmp_path / "o2").write_text("a file")
    assert "o2" in refusal(tmp_path / "d.txt", "--out", tmp_path / "o2")
    assert "empty: name" not in prepare(tmp_path / "d.txt", "--out", tmp_path / "o", *COMMON).stderr


def test_files_of_others_stay(gpt2, tmp_path):
    """A folder that has another tokenizer, as a model's has: nothing of it is overwritten, nothing put beside it."""
    (tmp_path / "d.txt").write_text("text")
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
    for name in (*names, "manifest.json", "progress.json"):
        (tmp_path / name / "o").mkdir(parents=True)
        (tmp_path / name / "o" / name).write_text('{"somebody": "else"}')
        for options in ((), ("--tokenizer", gpt2), ("--tokenizer", gpt2, "--restart")):
            arguments = (tmp_path / "d.txt", "--out", tmp_path / name / "o", *options, *COMMON)
            refused = refusal(*arguments)
            assert f"{tmp_path}/{name}/o/{name}" in refused
            assert "give another --out" in refused or "move it" in refused
            assert files_of(tmp_path / name / "o") == {name: b'{"somebody": "else"}'}
    # The tokenizer's own folder has nothing else to lose; nor has one that an earlier command wrote.
    own = shutil.copytree(gpt2, tmp_path / "own/gpt2")
    prepare(tmp_path / "d.txt", "--out", own, "--tokenizer", own, *COMMON)
    prepare(tmp_path / "d.txt", "--out", tmp_path / "o", "--tokenizer", gpt2, *COMMON)
    (tmp_path / "o/tokenizer.json").write_text("{}")
    prepare(tmp_path / "d.txt", "--out", tmp_path / "o", "--tokenizer", gpt2, *COMMON, "--restart")
    assert files_of(tmp_path / "o") == files_of(own)


def test_which_python():
    """PYTHON is what scripts/python_environment makes environments of: it decides nothing here."""
    assert "SOURCE" in prepare("--help", env={"PYTHON": "/none"}).stdout
    refused = refusal("--help", env={"LLMC_DATA_PYTHON": "/none"})
    assert "there is no Python /none; first: make data-environment, or name one with LLMC_DATA_PYTHON" in refused


def test_a_folder_tells_what_it_leaves_out(tmp_path):
    source = tmp_path / "texts"
    (source / "deeper").mkdir(parents=True)
    (source / "a.txt").write_text("text")
    assert "left out" not in prepare(source, "--out", tmp_path / "all", *COMMON).stdout
    for name in ("b.txt.gz", "c.pdf", "deeper/d.text", "README.txt", ".hidden"):
        (source / name).write_text("text")
    said = prepare(source, "--out", tmp_path / "o", *COMMON).stdout
    assert f"{source}: left out README.txt, b.txt.gz, c.pdf, deeper/d.text: no data by their names" in said
    assert shards_of(tmp_path / "o") == shards_of(tmp_path / "all")
    (source / "a.txt").unlink()
    assert "it has README.txt, b.txt.gz" in refusal(source, "--out", tmp_path / "p", *COMMON)
    for n in range(20):
        (source / f"{n:02}.gz").write_text("x")
    assert "07.gz and 16 more: unpack" in refusal(source, "--out", tmp_path / "p", *COMMON)


def test_a_source_that_changed_at_equal_size(tmp_path):
    """The shards that are complete were made of other bytes."""
    source, arguments = tmp_path / "d.txt", (tmp_path / "d.txt", "--out", tmp_path / "o", *COMMON)
    source.write_text("text of before")
    prepare(*arguments)
    assert "is complete already" in prepare(*arguments).stdout
    source.write_text("text of now...")
    assert "d.txt changed after the shards" in refusal(*arguments)
    prepare(*arguments, "--restart")
    assert shards_of(tmp_path / "o") == expected_shards("x", [[255, *b"text of now..."]], 10**8, 0)


def test_a_source_that_changed_where_it_was_read(tmp_path):
    """A command that ended in the middle does not go on from other bytes; those it has not read may change."""
    line, bad = b'{"text": "' + b"x" * 999 + b'"}\n', b"{bad\n"
    other = line.replace(b"x", b"y")
    sources = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    arguments = (*sources, "--out", tmp_path / "o", "--shard-tokens", 400_000, "--save-every", 0, *COMMON)
    for contents in ([other + line * 9, line * 3000 + bad], [line * 10, other + line * 2999 + bad]):
        for path, content in zip(sources, [line * 10, line * 3000 + bad], strict=True):
            path.write_bytes(content)
        assert "line 3001: not JSON" in refusal(*arguments, "--bad-rows", "error", "--restart")
        for path, content in zip(sources, contents, strict=True):
            path.write_bytes(content)
        assert "jsonl changed after this command had read of it" in refusal(*arguments, "--bad-rows", "error")
    sources[1].write_bytes(line * 3000 + b"\n" * len(bad))
    prepare(*arguments)
    assert shards_of(tmp_path / "o") == expected_shards("x", [[255, *b"x" * 999]] * 3010, 400_000, 0)


def test_few_documents_say_so(tmp_path):
    (tmp_path / "d.txt").write_text("text")
    said = prepare(tmp_path / "d.txt", "--out", tmp_path / "o").stdout
    assert "nothing is held out of 1 document: give more; --document-separator divides a text file into several" in said


def test_the_command_that_is_printed(tmp_path):
    """Its sequences are not longer than the data, and it names no held-out split of a few tokens."""

    def last_lines(documents: int, *options) -> list[str]:
        source = write_jsonl(tmp_path / "d.jsonl", ["some words of a text"] * documents)
        return prepare(source, "--out", tmp_path / "o", "--restart", *options).stdout.splitlines()[-2:]

    few = "give a larger --val-fraction than 0.01, or more documents"
    shards = f"{tmp_path}/o/d_train_*.bin"
    assert last_lines(3) == [
        f"nothing is held out of 3 documents: {few}",
        f"./train_llama --train-data '{shards}' --seq-len 32",
    ]
    assert last_lines(200) == [
        f"too little is held out (21 tokens) of 200 documents: {few}",
        f"./train_llama --train-data '{shards}'",
    ]
    command = f"./train_llama --train-data '{shards}' --val-data '{tmp_path}/o/d_val_*.bin'"
    assert last_lines(200, "--val-fraction", 0.2)[-1] == command


def test_a_tokenizer_that_is_not_here(tmp_path):
    (tmp_path / "d.txt").write_text("text")
    names = {"GPT2": "openai-community/gpt2", "Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B", "some": "OWNER/NAME"}
    for name, hub in names.items():
        refused = refusal(tmp_path / "d.txt", "--out", tmp_path / "o", "--tokenizer", name)
        assert f"fetch it first: hf download {hub} --local-dir {hub.split('/')[1]} --include '*.json'" in refused


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "0 bytes\n  expected a header of 1024"),
        (shard([1, 2])[:1000], "1000 bytes\n  expected a header of 1024"),
        (shard([1, 2])[:-1], "header says 2 tokens, the file has 1027 bytes\n  expected 1028: the copy was cut short"),
        (shard([1, 2]) + b"\0", "expected 1028: something was added"),
        (shard([]), "header says 0 tokens"),
        (b"text " * 300, "magic 1954047348\n  expected 20240520 (uint16)"),
        (np.array([20240520, 2] + [0] * 254, "<i4").tobytes(), "version 2 of magic 20240520\n  expected 1"),
        (mask([0, 1, 2]), "a mask that holds 2\n  expected 0 or 1"),
    ],
)
def test_bad_shards(content, message, tmp_path):
    (tmp_path / "x.bin").write_bytes(content)
    refused = run(INSPECT, tmp_path / "x.bin", code=1).stderr
    assert message in refused and str(tmp_path / "x.bin") in refused


def test_shards_that_are_not_the_manifests(tmp_path):
    (tmp_path / "d.txt").write_text("text " * 99)
    prepare(tmp_path / "d.txt", "--out", tmp_path / "o", *COMMON)
    [path] = (tmp_path / "o").glob("*.bin")
    good = path.read_bytes()
    path.write_bytes(good[:-2] + b"\x41\x00")
    assert "its sha256 is not the manifest's" in run(INSPECT, path, code=1).stderr
    path.write_bytes(good[:-2] + b"\x00\x01")
    assert "token 256\n  expected tokens below the vocabulary of 256" in run(INSPECT, path, code=1).stderr
    path.write_bytes(good)
    path.with_suffix(".mask").write_bytes(mask([1, 0]))
    assert "2 tokens\n  expected 496, as in" in run(INSPECT, path, code=1).stderr
    assert "No such file" in run(INSPECT, tmp_path / "none.bin", code=1).stderr
