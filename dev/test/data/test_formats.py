"""Every source format, delimiter and split, against shards that were written independently."""

import json
import re
import shutil
import sys
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from conftest import INSPECT, PREPARE, ROOT, SPECIAL, TEXT, encoder, expected_shards, files_of, held_out, manifest_of, prepare
from conftest import mask, refusal, run, sha256, shard, shards_of, some_documents, tokens_of, write_jsonl, write_lines
from llmc_data import cuts, readers, shards
from llmc_data.delimiter import Delimiter, find
from llmc_data.prepare import name_of
from llmc_data.tokenizer import ByteTokenizer, Tokenizer

SHARD_TOKENS, FRACTION = 60_000, 0.15
COMMON = ("--name", "x", "--shard-tokens", SHARD_TOKENS, "--val-fraction", FRACTION, "--processes", 2)


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return some_documents(4000)


@pytest.fixture(scope="module")
def expected(documents, gpt2) -> dict[str, bytes]:
    encode = encoder(gpt2)
    return expected_shards("x", [[0, *encode(text)] for text in documents], SHARD_TOKENS, FRACTION)


def test_held_out():
    assert pytest.approx(0.8833, abs=1e-4) == 0xE220A8397B1DCDAF / 2**64  # splitmix64's first number for seed 0
    assert held_out(0, 0.8834) and not held_out(0, 0.8833)
    assert sum(held_out(n, 0.01) for n in range(100_000)) == pytest.approx(1000, abs=100)


def test_jsonl(documents, expected, gpt2, tmp_path):
    source = write_jsonl(tmp_path / "d.jsonl", documents)
    prepare(source, "--out", tmp_path / "o", "--tokenizer", gpt2, *COMMON)
    files = files_of(tmp_path / "o")
    assert shards_of(tmp_path / "o") == expected and len(expected) > 4
    assert set(files) == {*expected, "manifest.json", "tokenizer.json", "tokenizer_config.json"}
    check_manifest(manifest_of(tmp_path / "o"), files, documents, source.read_bytes())
    # Once more: nothing is done; with another option: refused; with --restart: the other shards.
    assert "complete already" in prepare(source, "--out", tmp_path / "o", "--tokenizer", gpt2, *COMMON).stdout
    other = (source, "--out", tmp_path / "o", "--tokenizer", gpt2, *COMMON, "--delimiter", "none")
    assert "another command: delimiter" in refusal(*other)
    prepare(*other, "--restart", "--shard-tokens", 10**6)
    assert set(shards_of(tmp_path / "o")) == {"x_val_000000.bin", "x_train_000001.bin"}


def test_links_of_a_model(documents, gpt2, tmp_path):
    """What stands beside the shards is the model's, not a file of the user's; the hub's cache consists of links."""
    source, model = write_jsonl(tmp_path / "d.jsonl", documents[:10]), tmp_path / "model"
    (tmp_path / "id_rsa").write_text("{}")
    for name in ("chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"):
        shutil.copytree(gpt2, model)
        shutil.copy(gpt2 / "tokenizer.json", tmp_path / "other.json")
        (model / name).unlink(missing_ok=True)
        (model / name).symlink_to("../other.json" if name == "tokenizer.json" else "../id_rsa")
        refused = refusal(source, "--out", tmp_path / "o", "--tokenizer", model, *COMMON)
        assert f"{name} is a link to " in refused and "outside of its folder" in refused
        assert not (tmp_path / "o" / name).exists()
        shutil.rmtree(model)
    repository = tmp_path / "models--me--model"
    shutil.copytree(gpt2, repository / "blobs")
    (repository / "snapshots" / "main").mkdir(parents=True)
    for path in (repository / "blobs").iterdir():
        (repository / "snapshots" / "main" / path.name).symlink_to(f"../../blobs/{path.name}")
    prepare(source, "--out", tmp_path / "p", "--tokenizer", repository / "snapshots" / "main", *COMMON)
    assert files_of(tmp_path / "p")["tokenizer.json"] == (gpt2 / "tokenizer.json").read_bytes()


def check_manifest(manifest, files, documents, source):
    for split in ("train", "val"):
        members = [text for n, text in enumerate(documents) if held_out(n, FRACTION) == (split == "val")]
        of, shards = manifest["splits"][split], [s for s in manifest["shards"] if s["split"] == split]
        assert of["documents"] == len(members) == sum(s["documents"] for s in shards)
        assert of["text_bytes"] == sum(len(text.encode()) for text in members)
        assert of["tokens"] == sum(s["tokens"] for s in shards)
    for s in manifest["shards"]:
        tokens = np.frombuffer(files[s["name"]][1024:], "<u2")
        assert (len(tokens), sha256(files[s["name"]])) == (s["tokens"], s["sha256"])
        assert s["documents"] == (tokens == 0).sum()
        assert s["xxh64"] == [xxhash.xxh64(files[s["name"]]).hexdigest()]
    assert manifest["xxh64_block_bytes"] == 4 << 20
    assert manifest["tokenizer"]["sha256"] == sha256(files["tokenizer.json"])
    assert manifest["tokenizer"]["vocabulary"] == 800 and manifest["tokenizer"]["name"] == "gpt2"
    assert manifest["delimiter"] == {"place": "before", "token": SPECIAL[0], "id": 0}
    [described] = manifest["sources"]
    assert (described["sha256"], described["bytes"]) == (sha256(source), len(source))


def test_checksums_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "READ_BYTES", 1000)
    monkeypatch.setattr(shards, "BLOCK_BYTES", 3000)
    for size in (1, 999, 1000, 2999, 3000, 3001, 6000, 10_001):
        content = bytes(n * 7 % 251 for n in range(size))
        (tmp_path / "file").write_bytes(content)
        blocks = [content[at : at + 3000] for at in range(0, size, 3000)]
        expected = {"sha256": sha256(content), "xxh64": [xxhash.xxh64(block).hexdigest() for block in blocks]}
        assert shards.checksums_of(tmp_path / "file") == expected
        with monkeypatch.context() as without:
            without.setattr(shards, "xxhash", None)
            assert shards.checksums_of(tmp_path / "file") == {"sha256": sha256(content)}


def write_arrow(new, path, table):
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)


def write_dictionary(path, table):
    column = table.column("text").combine_chunks().dictionary_encode()
    pq.write_table(pa.table({"text": column}), path, row_group_size=900)


def write_content(path, table):
    pq.write_table(pa.table({"content": table.column("text").cast(pa.large_string())}), path)


def write_separated(path, table):
    path.write_bytes("\n<|doc|>\n".join(table.column("text").to_pylist()).encode() + b"\n<|doc|>\n")


SOURCES = {  # what writes the documents, and the options that they need
    "d.parquet": (lambda path, table: pq.write_table(table, path, row_group_size=900),),
    "dictionary.parquet": (write_dictionary,),
    "file.arrow": (partial(write_arrow, pa.ipc.new_file),),
    "stream.arrow": (partial(write_arrow, pa.ipc.new_stream),),
    "parquet_without_suffix": (lambda path, table: pq.write_table(table, path),),
    "large_strings.parquet": (write_content, "--text-field", "content"),
    "separated.txt": (write_separated, "--document-separator", r"\n<|doc|>\n"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name, documents, expected, gpt2, tmp_path):
    write, *options = SOURCES[name]
    write(tmp_path / name, pa.table({"n": list(range(len(documents))), "text": documents}))
    prepare(tmp_path / name, "--out", tmp_path / "o", "--tokenizer", gpt2 / "tokenizer.json", *options, *COMMON)
    assert shards_of(tmp_path / "o") == expected


def test_several_sources(documents, expected, gpt2, tmp_path):
    """Documents are numbered through all sources: a folder, a pattern, files."""
    (tmp_path / "a").mkdir()
    write_jsonl(tmp_path / "a/1.jsonl", documents[:900])
    write_arrow(pa.ipc.new_stream, tmp_path / "a/2.arrow", pa.table({"text": documents[900:1500]}))
    write_jsonl(tmp_path / "b1.ndjson", documents[1500:2000])
    write_jsonl(tmp_path / "b2.ndjson", documents[2000:3998])
    (tmp_path / "c").write_bytes(documents[3998].encode())
    (tmp_path / "d.txt").write_bytes(documents[3999].encode())
    sources = (tmp_path / "a", f"{tmp_path}/b*.ndjson", tmp_path / "c", tmp_path / "d.txt")
    prepare(*sources, "--out", tmp_path / "o", "--tokenizer", gpt2, *COMMON)
    assert shards_of(tmp_path / "o") == expected


def test_shards_beside_their_sources(documents, expected, gpt2, tmp_path):
    """A folder that is source and --out at once: what stands beside shards is no data."""
    write_jsonl(tmp_path / "d.jsonl", documents)
    for said in ("train_llama", "complete already"):
        assert said in prepare(tmp_path, "--out", tmp_path, "--tokenizer", gpt2, *COMMON).stdout
        assert shards_of(tmp_path) == expected
    prepare(tmp_path, "--out", tmp_path, "--tokenizer", gpt2, *COMMON, "--restart")
    assert shards_of(tmp_path) == expected


@pytest.mark.parametrize("delimiter", ["before", "after", "none"])
@pytest.mark.parametrize("of_bytes", [False, True])
def test_delimiters(of_bytes, delimiter, documents, gpt2, tmp_path):
    encode, token = encoder(gpt2), SPECIAL.index("<|eot_id|>")
    options = ("--tokenizer", gpt2, "--delimiter-token", "<|eot_id|>")
    if of_bytes:
        encode, token, options = (lambda text: text.encode()), 255, ()
    before, after = [token] * (delimiter == "before"), [token] * (delimiter == "after")
    source = write_jsonl(tmp_path / "d.jsonl", documents[:500])
    prepare(source, "--out", tmp_path / "o", "--delimiter", delimiter, *options, *COMMON)
    tokens = [[*before, *encode(text), *after] for text in documents[:500]]
    assert shards_of(tmp_path / "o") == expected_shards("x", tokens, SHARD_TOKENS, FRACTION)
    assert manifest_of(tmp_path / "o")["tokenizer"]["vocabulary"] == (256 if of_bytes else 800)


def test_delimiter_of_the_tokenizer(gpt2, tmp_path):
    """Begin of text if there is one, else end of text; named beside the tokenizer, or by its usual name."""
    shutil.copytree(gpt2, tmp_path / "t")
    begin, end = ((name, number) for number, name in enumerate(SPECIAL[:2]))
    for config, place, expected in (
        ({"bos_token": "<|eot_id|>", "eos_token": end[0]}, "before", Delimiter(begin=("<|eot_id|>", 4))),
        ({"bos_token": None, "eos_token": end[0]}, "before", Delimiter(begin=end)),
        ({"bos_token": begin[0], "eos_token": None}, "after", Delimiter(end=begin)),
        (None, "before", Delimiter(begin=begin)),
        (None, "after", Delimiter(end=end)),
        (None, "both", Delimiter(begin, end)),
    ):
        (tmp_path / "t/tokenizer_config.json").unlink(missing_ok=True)
        if config:
            (tmp_path / "t/tokenizer_config.json").write_text(json.dumps(config))
        assert find(place, None, Tokenizer(tmp_path / "t")) == expected


def test_both_delimiters(documents, gpt2, tmp_path):
    source, encode = write_jsonl(tmp_path / "d.jsonl", documents[:500]), encoder(gpt2)
    prepare(source, "--out", tmp_path / "o", "--tokenizer", gpt2, "--delimiter", "both", *COMMON)
    tokens = [[0, *encode(text), 1] for text in documents[:500]]
    assert shards_of(tmp_path / "o") == expected_shards("x", tokens, SHARD_TOKENS, FRACTION)
    both = {"place": "both", "token": SPECIAL[0], "id": 0, "end_token": SPECIAL[1], "end_id": 1}
    assert manifest_of(tmp_path / "o")["delimiter"] == both
    train = sum(not held_out(n, FRACTION) for n in range(500))
    said = run(INSPECT, tmp_path / "o/x_train_000001.bin").stdout
    assert f"{train} delimiters (<|begin_of_text|>, 0), {train} delimiters (<|end_of_text|>, 1)" in said
    # Two tokens it must be.
    refused = refusal(source, "--out", tmp_path / "p", "--delimiter", "both")
    assert "bytes begins a text with none and ends it with none\n  give --delimiter before" in refused
    shutil.copytree(gpt2, tmp_path / "t")
    (tmp_path / "t/tokenizer_config.json").write_text(json.dumps({"bos_token": SPECIAL[1], "eos_token": SPECIAL[1]}))
    arguments = (source, "--out", tmp_path / "p", "--tokenizer", tmp_path / "t", "--delimiter", "both")
    assert f"begins a text with {SPECIAL[1]} and ends it with {SPECIAL[1]}" in refusal(*arguments)
    assert "goes with --delimiter before or after" in refusal(*arguments, "--delimiter-token", "x", code=2)


def test_wide_tokens(gpt2, tmp_path):
    """A vocabulary with an id beyond 16 bits, and holes before it, gives uint32."""
    rules = json.loads((gpt2 / "tokenizer.json").read_text())
    rules["added_tokens"].append(rules["added_tokens"][0] | {"id": 70000, "content": "<|far|>", "special": False})
    rules["model"]["vocab"]["<|far|>"] = 70000
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    (tmp_path / "d.txt").write_text("to be <|far|> not")
    prepare(tmp_path / "d.txt", "--out", tmp_path / "o", "--tokenizer", tmp_path, "--name", "x", "--processes", 1)
    encode = encoder(tmp_path)
    tokens = [0, *encode("to be <|far|> not")]
    assert 70000 in tokens
    assert shards_of(tmp_path / "o") == expected_shards("x", [tokens], 10**8, 0.01, wide=True)


def test_names():
    for source, name in {
        "/a/books.txt": "books", "/a/b/*.jsonl": "b", "books/": "books", "*.txt": "data", "fineweb-edu": "fineweb-edu",
        "https://host/a/d.jsonl?x=1#sha256=0": "d", "some/text@main:data/*.parquet": "text", "a b/c d.txt": "c_d",
    }.items():  # fmt: skip
        assert name_of(source) == name


def test_processes(documents, gpt2, tmp_path):
    source = write_jsonl(tmp_path / "d.jsonl", documents * 3)
    for processes in (1, 3):
        arguments = ("--tokenizer", gpt2, "--shard-tokens", 70_000, "--processes", processes)
        prepare(source, "--out", tmp_path / str(processes), *arguments)
    assert files_of(tmp_path / "1") == files_of(tmp_path / "3") and len(files_of(tmp_path / "1")) > 10


def test_named_text(tmp_path):
    """The bundled text: a document a speech; without delimiters the documents put together are the text."""
    prepare("tinyshakespeare", "--out", tmp_path / "o", "--delimiter", "none", "--val-fraction", 0, "--processes", 2)
    [shard] = shards_of(tmp_path / "o")
    assert tokens_of(tmp_path / "o", shard).astype("u1").tobytes().decode() == TEXT
    train = manifest_of(tmp_path / "o")["splits"]["train"]
    assert train == {"tokens": 1115394, "documents": 7222, "text_bytes": 1115394}


@pytest.mark.parametrize("of_bytes", [False, True])
def test_prompts_with_completions(of_bytes, gpt2, tmp_path):
    """One text each, cut into tokens as a whole; the completion is learnt, and the token that ends it."""
    pairs = [("Who is there? ", "Nobody."), ("古池", "や"), ("To be", ", or not"), ("", "Alone.")]
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in pairs]
    write_lines(tmp_path / "d.jsonl", [rows[0] | {"id": 1}, *rows[1:], {"prompt": "x"}])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    encode = encoder(gpt2)
    ids, learnt = [], []
    for prompt, completion in pairs:
        whole = list((prompt + completion).encode()) if of_bytes else encode(prompt + completion)
        before = len(prompt.encode()) if of_bytes else len(whole) - len(encode(completion))
        ids += whole + [255] if of_bytes else [0, *whole, 1]
        learnt += [0] * (before + (not of_bytes)) + [1] * (len(whole) - before + 1)
    expected = {"x_train_000001.bin": shard(ids, masked=True), "x_train_000001.mask": mask(learnt)}
    options = ("--val-fraction", 0, "--name", "x", *(() if of_bytes else ("--tokenizer", gpt2)))
    for name in ("d.jsonl", "d.parquet"):
        said = prepare(tmp_path / name, "--out", tmp_path / f"o_{name}", *options).stdout
        assert shards_of(tmp_path / f"o_{name}") == expected
        assert f"learnt: {sum(learnt)} of {len(ids)} tokens" in said and "--packed-documents on" in said
    assert manifest_of(tmp_path / "o_d.jsonl")["rows"] == {"read": 5, "skipped": 1}
    # A token at the border that has a character of the completion is learnt.
    write_lines(tmp_path / "e.jsonl", [{"prompt": "Who is the", "completion": "re?"}])
    prepare(tmp_path / "e.jsonl", "--out", tmp_path / "e", "--tokenizer", gpt2, "--val-fraction", 0, "--name", "x")
    tokens, learnt = tokens_of(tmp_path / "e").tolist(), (tmp_path / "e/x_train_000001.mask").read_bytes()[1024:]
    assert tokens == [0, *encode("Who is there?"), 1] and len(tokens) - learnt.index(1) == len(encode(" there?")) + 1
    (tmp_path / "f.txt").write_text("text")
    assert "give them to one command each" in refusal(tmp_path / "d.jsonl", tmp_path / "f.txt", "--out", tmp_path / "p")


def test_strip(gpt2, tmp_path):
    (tmp_path / "d.txt").write_text("\n one \n\n|\n\n|\ntwo\n")
    arguments = ("--document-separator", "|", "--strip", "--val-fraction", 0, "--name", "x", "--processes", 1)
    prepare(tmp_path / "d.txt", "--out", tmp_path / "o", *arguments)
    expected = expected_shards("x", [[255, *b"one"], [255, *b"two"]], 10**8, 0)
    assert shards_of(tmp_path / "o") == expected


def test_inspect(documents, gpt2, tmp_path):
    source = write_jsonl(tmp_path / "d.jsonl", documents[:300])
    prepare(source, "--out", tmp_path / "o", "--tokenizer", gpt2, *COMMON)
    said = run(INSPECT, *(tmp_path / "o" / name for name in shards_of(tmp_path / "o"))).stdout
    train = sum(not held_out(n, FRACTION) for n in range(300))
    assert f"{train} delimiters (<|begin_of_text|>, 0)" in said and "as in the manifest" in said
    first = next(text for n, text in enumerate(documents) if not held_out(n, FRACTION))
    assert repr("<|begin_of_text|>" + first)[1:40] in said
    (tmp_path / "o/manifest.json").unlink()
    run(INSPECT, *(tmp_path / "o" / name for name in shards_of(tmp_path / "o")))


# ---- long texts are cut where that changes no token ----


ODD = ["<|added|>", "<|single|>", "<|left|>"] * 3  # of dev/test/tokenizers/llama3.json: not special, and two look around


def long_text(length: int, seed: int, more=()) -> str:
    """Characters around newlines that tokenizers treat in ways of their own."""
    rng = np.random.default_rng(seed)
    spaces = ["\n", "\n", "\n", "\r\n", "\n\n", " ", "  ", "\t", "\u3000", "\u00a0", "\u0085", "\u2028", "\u200b"]
    words = ["'s", "'re", "'", "a", "word", "Word", ".", "!?", "12", "1234", "/", "<|eot_id|>"]
    parts = spaces + words + ["é", "ж", "古", "、", "。", "，", "：", "한", "\U0001f9ed", "\u0301", "ſ", "<", "0", *more]
    return "".join(parts[i] for i in rng.integers(0, len(parts), length))


def tokens_of_parts(path, tokenizer, cut) -> list[int]:
    reader = readers.TextReader(path, readers.Reading(cut=cut))
    pieces = [piece.text.decode() for piece in reader.pieces(None)]
    assert len(pieces) > 100 or cut is None
    return [token for ids in tokenizer.encode(pieces) for token in ids.tolist()]


@pytest.fixture
def small_reads(monkeypatch):
    monkeypatch.setattr(readers, "BATCH_BYTES", 100)
    monkeypatch.setattr(readers, "READ_BYTES", 333)


@pytest.mark.parametrize("which", ["gpt2", "llama3", "olmo2"])
@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_cuts_change_no_token(which, normalizer, small_reads, request, tmp_path):
    folder = tmp_path / which
    shutil.copytree(request.getfixturevalue("llama3" if which == "olmo2" else which), folder)
    rules = json.loads((folder / "tokenizer.json").read_text()) | {"normalizer": normalizer}
    if which == "olmo2":
        rules["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    tokenizer, encode, path = Tokenizer(folder), encoder(folder), tmp_path / "d.txt"
    assert tokenizer.cut.pattern == b"|".join((cuts.AFTER_A_LINE, cuts.BEFORE_A_SPACE, cuts.AFTER_LETTERS))
    for seed in range(6):
        text = long_text(30_000, seed)
        path.write_bytes(text.encode())
        assert tokens_of_parts(path, tokenizer, tokenizer.cut) == encode(text)
    # Cuts at other places would be seen.
    assert tokens_of_parts(path, tokenizer, re.compile(rb"\n(?=\n)|(?<=[a-z ])(?=[a-z ])")) != encode(text)


@pytest.mark.parametrize("kind", cuts.KINDS)
@pytest.mark.parametrize("which", ["gpt2", "llama3", "odd"])
def test_each_cut_changes_no_token(which, kind, request):
    """At all places at once; also for a tokenizer whose added tokens look around, of the kinds that it leaves."""
    folder = ROOT / "dev/test/tokenizers" if which == "odd" else request.getfixturevalue(which)
    folder, words = (folder / "llama3.json", ODD) if which == "odd" else (folder, [])
    tokenizer = Tokenizer(folder)
    if kind not in tokenizer.cut.pattern:
        pytest.skip("it matters to an added token")
    for seed in range(6):
        raw = long_text(20_000, seed, words).encode()
        places = [0, *(match.end() for match in re.finditer(kind, raw)), len(raw)]
        assert len(places) > 100
        parts = [raw[first:last].decode() for first, last in zip(places, places[1:], strict=False)]
        assert [token for ids in tokenizer.encode(parts) for token in ids.tolist()] == tokenizer.encode([raw.decode()])[0].tolist()


def test_no_cut_divides_an_added_token(gpt2):
    """One that is looked for in texts takes the kinds of places that it has inside."""
    rules = json.loads((gpt2 / "tokenizer.json").read_text())
    plain = {"special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "id": 900}
    for content, left in (
        ("<tool_call>", ("AFTER_A_LINE", "BEFORE_A_SPACE")),
        ("a b", ("AFTER_A_LINE", "AFTER_LETTERS")),
        ("\n\n", ("AFTER_A_LINE", "BEFORE_A_SPACE", "AFTER_LETTERS")),
        ("\nx", ("BEFORE_A_SPACE", "AFTER_LETTERS")),
        ("    ", ("AFTER_A_LINE", "BEFORE_A_SPACE", "AFTER_LETTERS")),
        ({"content": "x", "lstrip": True}, ("BEFORE_A_SPACE", "AFTER_LETTERS")),
        ({"content": "x", "rstrip": True}, ("AFTER_A_LINE", "AFTER_LETTERS")),
        ({"content": "x", "single_word": True}, ("AFTER_A_LINE", "BEFORE_A_SPACE")),
    ):
        added = {"added_tokens": [*rules["added_tokens"], plain | (content if isinstance(content, dict) else {"content": content})]}
        assert cuts.proven(rules | added).pattern == b"|".join(getattr(cuts, kind) for kind in left)
    assert cuts.proven(rules, special_in_texts=True).pattern == b"|".join((cuts.AFTER_A_LINE, cuts.BEFORE_A_SPACE))


def test_cut_bytes(small_reads, tmp_path):
    content = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8).tobytes() + "古池や".encode() * 3000
    (tmp_path / "d.txt").write_bytes(content)
    reader = readers.TextReader(tmp_path / "d.txt", readers.Reading(cut=ByteTokenizer.cut))
    pieces = list(reader.pieces(None))
    assert len(pieces) > 500 and max(len(piece.text) for piece in pieces) < 1000
    assert "".join(piece.text.decode(errors="replace") for piece in pieces) == content.decode(errors="replace")


def test_nothing_is_proven_for_others(gpt2):
    rules = json.loads((gpt2 / "tokenizer.json").read_text())
    assert cuts.proven(rules) is not None
    for change in (
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}},
        {"pre_tokenizer": None},
    ):
        assert cuts.proven(rules | change) is None


MEMORY_OF = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize("name", ["d.txt", "d.jsonl"])
def test_a_long_line(name, llama3, tmp_path):
    """Its tokens are those of the whole, and no process takes 150 bytes of memory for each byte of it: 4 MB are 0.6 GB."""
    text = " ".join(TEXT.split()) * 4
    if name == "d.txt":
        (tmp_path / name).write_text(text)
    else:
        write_jsonl(tmp_path / name, [text])
    options = ("--tokenizer", llama3, "--val-fraction", 0, "--processes", 1, "--name", "x")
    command = (PREPARE, tmp_path / name, "--out", tmp_path / "o", *options)
    kilobytes = int(run(sys.executable, "-c", MEMORY_OF, *command).stdout)
    assert shards_of(tmp_path / "o") == expected_shards("x", [[0, *encoder(llama3)(text)]], 10**8, 0)
    assert kilobytes < 350_000, kilobytes


@pytest.mark.parametrize("name", ["d.txt", "d.jsonl"])
def test_special_tokens_in_texts(name, gpt2, tmp_path):
    """They stay letters, and the output says so; or they become these tokens."""
    text = "One.<|end_of_text|>\nTwo <|eot_id|>."
    if name == "d.txt":
        (tmp_path / name).write_text(text)
    else:
        write_jsonl(tmp_path / name, ["None.", text])
    encode, others = encoder(gpt2), [[0, *encoder(gpt2)("None.")]] * (name == "d.jsonl")
    options = ("--tokenizer", gpt2, "--val-fraction", 0, "--processes", 1, "--name", "x")
    said = prepare(tmp_path / name, "--out", tmp_path / "o", *options).stdout
    assert shards_of(tmp_path / "o") == expected_shards("x", [*others, [0, *encode(text)]], 10**8, 0)
    place = f"{tmp_path}/{name}: " + ("byte 4" if name == "d.txt" else "line 2")
    assert f"2 special tokens are spelt in the texts, the first <|end_of_text|>, in {place}; they are cut" in said
    assert manifest_of(tmp_path / "o")["special_tokens_spelt"]["count"] == 2
    said = prepare(tmp_path / name, "--out", tmp_path / "p", *options, "--special-tokens", "parse").stdout
    parsed = [0, *encode("One."), 1, *encode("\nTwo "), 4, *encode(".")]
    assert shards_of(tmp_path / "p") == expected_shards("x", [*others, parsed], 10**8, 0)
    assert "are spelt" not in said
    assert "another command: special_tokens" in refusal(tmp_path / name, "--out", tmp_path / "p", *options)
    assert "needs a --tokenizer" in refusal(tmp_path / name, "--out", "o", "--special-tokens", "parse", code=2)


def test_long_text(llama3, tmp_path):
    """A text of several batches, one document, on two processes: its tokens are those of the whole."""
    text = "\n".join(some_documents(9000, seed=5))
    (tmp_path / "d.txt").write_bytes(text.encode())
    options = ("--tokenizer", llama3, "--shard-tokens", 300_000, "--delimiter", "after", "--processes", 2)
    prepare(tmp_path / "d.txt", "--out", tmp_path / "o", "--name", "x", *options)
    expected = expected_shards("x", [[*encoder(llama3)(text), 1]], 300_000, 0.01)
    assert shards_of(tmp_path / "o") == expected
    assert sum(s["documents"] for s in manifest_of(tmp_path / "o")["shards"]) == 1
