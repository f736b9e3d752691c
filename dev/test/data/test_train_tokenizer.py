"""dev/data/train_tokenizer: what it writes, and what it refuses."""

import json

from conftest import ROOT, TEXT, encoder, prepare, run, write_jsonl

TRAIN = ROOT / "dev/data/train_tokenizer"


def test_all_sources_give_the_same_tokenizer(tmp_path):
    import pyarrow
    import pyarrow.parquet

    documents = [TEXT[:50_000], TEXT[50_000:90_000]]
    (tmp_path / "texts").mkdir()
    for number, document in enumerate(documents):
        (tmp_path / f"texts/{number}.txt").write_text(document)
    write_jsonl(tmp_path / "lines.jsonl", documents)
    pyarrow.parquet.write_table(pyarrow.table({"text": documents}), tmp_path / "rows.parquet")
    for source, out in (("texts", "a"), ("texts", "b"), ("lines.jsonl", "c"), ("rows.parquet", "d")):
        run(TRAIN, tmp_path / source, "--vocab-size", 500, "--out", tmp_path / out)
    first, *others = ((tmp_path / out / "tokenizer.json").read_bytes() for out in "abcd")
    assert others == [first] * 3
    run(TRAIN, tmp_path / "lines.jsonl", "--vocab-size", 500, "--most", 40_000, "--out", tmp_path / "less")
    run(TRAIN, tmp_path / "texts/0.txt", "--vocab-size", 500, "--out", tmp_path / "one")
    assert (tmp_path / "less/tokenizer.json").read_bytes() == (tmp_path / "one/tokenizer.json").read_bytes() != first
    encode = encoder(tmp_path / "a")
    assert len(encode(documents[0])) < 0.6 * len(documents[0])  # 243 merges of frequent pairs


def test_any_text_comes_back(tmp_path):
    import tokenizers

    write_jsonl(tmp_path / "lines.jsonl", [TEXT[:20_000]])
    run(TRAIN, tmp_path / "lines.jsonl", "--vocab-size", 300, "--out", tmp_path / "out")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    text = "  Naïve\t\u4f60\u597d, \U0001f600\n\n  x = 1;"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text
    assert tokenizer.get_vocab_size() == 300
    prepare(tmp_path / "lines.jsonl", "--tokenizer", tmp_path / "out", "--out", tmp_path / "data", "--val-fraction", 0)
    manifest = json.loads((tmp_path / "data/manifest.json").read_text())
    assert manifest["tokenizer"]["vocabulary"] == 300


def test_refusals(tmp_path):
    write_jsonl(tmp_path / "short.jsonl", ["a short text"])
    said = run(TRAIN, tmp_path / "short.jsonl", "--vocab-size", 5000, "--out", tmp_path / "out", code=1).stderr
    assert "lower --vocab-size" in said and not (tmp_path / "out").exists()
    said = run(TRAIN, tmp_path / "short.jsonl", "--text-field", "body", "--out", tmp_path / "out", code=1).stderr
    assert "line 1: no text in the field body" in said
    assert "256 bytes" in run(TRAIN, tmp_path / "short.jsonl", "--vocab-size", 256, "--out", tmp_path / "out", code=2).stderr
    assert "there is no file" in run(TRAIN, tmp_path / "nothing", "--out", tmp_path / "out", code=1).stderr
