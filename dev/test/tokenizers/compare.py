"""Compares the tokenizer with the `tokenizers` library: ids and texts must be the same (make test-tokenizer).

    build/tokenizer/bin/python dev/test/tokenizers/compare.py build/cpu/test/tokenize

Files in the style of Llama 3, GPT-2, Qwen and Llama 2 are trained on the bundled text and on texts.py, and varied. For
each: encode short pieces, whole documents and byte strings without sense, also with special tokens as letters and in as
many parts as a text can be cut into; decode what came out, and ids by chance, whole
and token by token, with and without special tokens. Patterns are tried on code points in company, with a vocabulary whose
ids show where each word ends. Then stand-ins for the tokenizers of public models (models.py): each has the library's ids
and texts, or is refused by the name of what is not supported. Code points that one of the two Unicode versions knows and the other does not are left out, counted, and compared by
themselves. Ends with "N passed, N failed".
"""

import copy
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import files
import models
import texts
import tokenizers
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

HERE = pathlib.Path(__file__).parent
SHAKESPEARE = HERE.parents[1] / "data" / "tinyshakespeare.txt"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHORT_FOLDS = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"


def with_added(file, tokens):
    """The file with more added tokens: those that the vocabulary has keep their ids, the others come behind it."""
    file = copy.deepcopy(file)
    vocabulary = file["model"]["vocab"]
    end = len(vocabulary)
    for content, flags in tokens:
        file["added_tokens"].append(files.added(vocabulary.get(content, end), content, **flags))
        end += content not in vocabulary
    return file


def changed(file, model=None, **parts):
    file = copy.deepcopy(file) | parts
    file["model"] |= model or {}
    return file


def without(file, tokens):
    """Without these tokens of the vocabulary, and so without the merges that need them; ids stay."""
    file = copy.deepcopy(file)
    model = file["model"]
    for token in tokens:
        del model["vocab"][token]
    model["merges"] = [(a, b) for a, b in model["merges"] if {a, b, a + b} <= model["vocab"].keys()]
    return file


def word_ends(file):
    """The same words of bytes that are not merged; the last one of a word has an id of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c + end: i + 256 * bool(end) for end in ["", "</w>"] for i, c in enumerate(alphabet)}
    model = {"vocab": vocabulary, "merges": [], "end_of_word_suffix": "</w>", "ignore_merges": False}
    return changed(file, model, added_tokens=[], post_processor=None)


def marked_words(lines):
    """The older kind of file: parts of a word that do not begin it are marked, and so is its end."""
    tokenizer = Tokenizer(tokenizers.models.BPE(unk_token="[UNK]", continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["[UNK]"], continuing_subword_prefix="##",
        end_of_word_suffix="</w>", show_progress=False,
    )
    tokenizer.train_from_iterator(files.only_frequent(lines, 200), trainer)
    return json.loads(tokenizer.to_str())


def variants(lines):
    words, level, sequence = files.split, files.byte_level, files.sequence
    llama3, llama2 = files.llama3(lines, 6000), files.llama2(lines, 5000)
    plain = changed(llama3, {"ignore_merges": False})
    split = lambda *steps: {"pre_tokenizer": sequence("pretokenizers", *steps, level(use_regex=False))}
    metaspace = lambda **f: {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"} | f, "normalizer": None,
                             "decoder": {"type": "Metaspace", "replacement": "▁"} | f}
    yield "llama3", llama3
    yield "llama3, merges as strings", changed(llama3, {"merges": [" ".join(pair) for pair in llama3["model"]["merges"]]})
    yield "llama3, no ignore_merges", plain
    yield "gpt2", changed(plain, pre_tokenizer=level(), post_processor=level())
    yield "gpt2, add_prefix_space", changed(plain, pre_tokenizer=level(add_prefix_space=True))
    yield "bytes, a text is a word", changed(plain, pre_tokenizer=level(use_regex=False))
    yield "cl100k's pattern", changed(llama3, **split(words(CL100K)))
    yield "o200k's pattern", changed(llama3, **split(words(O200K)))
    yield "qwen2's pattern", changed(plain, **split(words(QWEN2)))
    all_special = changed(plain, added_tokens=[token | {"special": True, "normalized": False} for token in plain["added_tokens"]])
    digits = lambda single: {"type": "Digits", "individual_digits": single}
    for single in [True, False]:
        yield f"digits {'one by one' if single else 'together'}, gpt2", changed(
            all_special, pre_tokenizer=sequence("pretokenizers", digits(single), level()))
    yield "digits one by one, llama3", changed(all_special, **split(digits(True), words(files.LLAMA3_WORDS)))
    yield "gpt2, all special", changed(all_special, pre_tokenizer=level())
    yield "llama3, all special", all_special
    yield "folding a class", changed(plain, **split(words(SHORT_FOLDS)))
    yield "several splits", changed(plain, **split(words(r"\p{N}{1,3}"), words("[一-龥぀-ゟ゠-ヿ]+"), words(QWEN2)))
    yield "prefix space each", changed(
        plain, pre_tokenizer=sequence("pretokenizers", words(r"\d|[^\S\n]\x{41}?|[\s\-a-c]{,2}x"), level(add_prefix_space=True)))
    for behavior in ["Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            yield f"{behavior}{', inverted' if invert else ''}", changed(plain, **split(words(r"\s|[aeé]", behavior, invert)))
        yield f"{behavior}, empty matches", changed(plain, **split(words(r"x*|(?=e)", behavior)))
    yield "a string", changed(plain, **split(words("x") | {"pattern": {"String": ". "}}))
    yield "llama2", llama2
    yield "llama2, merges as strings", changed(llama2, {"merges": [" ".join(pair) for pair in llama2["model"]["merges"]]})
    some = ["<0x80>", "<0x9F>", "<0xE1>", "<0x00>"]
    yield "llama2, bytes missing", without(llama2, some)
    yield "llama2, unknown not fused", changed(without(llama2, some), {"fuse_unk": False})
    yield "llama2, no bytes", changed(llama2, {"byte_fallback": False})
    yield "llama2, no unknown token", changed(llama2, {"byte_fallback": False, "unk_token": None})
    # Special tokens that are normalized are left out: the library does not skip them when its normalizer changes them.
    yield "llama2, added tokens", with_added(llama2, [
        ("<|added|>", {"normalized": True, "special": False}), ("<|single|>", {"normalized": True, "single_word": True, "special": False}),
        ("<|strips|>", {"lstrip": True, "rstrip": True}), ("   ", {"special": False}), ("the", {"single_word": True}),
        ("<|le", {}), ("<|left|>", {"lstrip": True, "normalized": True, "special": False}), (" <|right|>", {"rstrip": True, "special": False})])
    for scheme in ["always", "first", "never"]:
        for cut in [True, False]:
            yield f"metaspace {scheme}{'' if cut else ', not split'}", changed(llama2, **metaspace(prepend_scheme=scheme, split=cut))
    yield "metaspace of old", changed(llama2, **metaspace(add_prefix_space=True, str_rep="▁"))
    yield "replacements", changed(
        llama2,
        normalizer=sequence("normalizers", {"type": "Replace", "pattern": {"Regex": r"[ \t]{2,}|l+"}, "content": "<l>"},
                            sequence("normalizers", {"type": "Prepend", "prepend": "▁▁"})),
        decoder=sequence("decoders", {"type": "Replace", "pattern": {"String": "th"}, "content": "TH"},
                         {"type": "Strip", "content": "▁", "start": 2, "stop": 0}, {"type": "ByteFallback"},
                         {"type": "Fuse"}, {"type": "Replace", "pattern": {"Regex": "▁+e"}, "content": " E"}))
    yield "no decoder", changed(llama2, decoder=None)
    yield "marked words", marked_words(lines)


# ---- both programs ---------------------------------------------------------------------------------------------------


def write_documents(path, documents, size):
    with open(path, "wb") as file:
        for document in documents:
            file.write(struct.pack("<I", len(document) // size) + document)


def read_documents(path, size):
    data, at, documents = path.read_bytes(), 0, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        documents.append(data[at + 4 : at + 4 + count * size])
        at += 4 + count * size
    return documents


class Ours:
    """The program under test, on a file."""

    def __init__(self, program, scratch, file):
        self.program, self.scratch, self.path = program, scratch, scratch / "tokenizer.json"
        self.path.write_text(json.dumps(file, ensure_ascii=False))
        self.seconds = 0.0

    def run(self, verb, *words):
        source, result = self.scratch / "in", self.scratch / "out"
        done = subprocess.run([self.program, verb, self.path, source, result, *words], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{verb}: {done.stderr}")
        said = done.stdout.split()
        self.seconds = float(said[said.index("seconds") + 1]) if "seconds" in said else 0.0
        return result

    def refusal(self):
        """What it says of a file that it does not take."""
        write_documents(self.scratch / "in", [], 1)
        words = [self.program, "encode", self.path, self.scratch / "in", self.scratch / "out"]
        return subprocess.run(words, capture_output=True, text=True).stderr.partition("\n")[0]

    def encode(self, documents, special, verb="encode"):
        write_documents(self.scratch / "in", documents, 1)
        result = read_documents(self.run(verb, *(["special"] if special else [])), 4)
        return [list(struct.unpack(f"<{len(ids) // 4}i", ids)) for ids in result]

    def decode(self, verb, documents, skip):
        write_documents(self.scratch / "in", [struct.pack(f"<{len(ids)}i", *ids) for ids in documents], 4)
        return [text.decode() for text in read_documents(self.run(verb, *(["skip"] if skip else [])), 1)]


class Comparison:
    def __init__(self, program, scratch):
        self.program, self.scratch = program, scratch
        self.passed = self.failed = 0

    def check(self, what, documents, ours, theirs):
        different = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
        self.passed, self.failed = self.passed + (not different), self.failed + bool(different)
        if different:
            i = min(different, key=lambda i: len(documents[i]))
            at = next((k for k, (a, b) in enumerate(zip(ours[i], theirs[i])) if a != b), min(len(ours[i]), len(theirs[i])))
            print(f"FAIL {what}: {len(different)} of {len(documents)} differ, for instance {documents[i][:200]!r}")
            print(f"     at {at}: {ours[i][max(0, at - 3):at + 12]!r}\n     not   {theirs[i][max(0, at - 3):at + 12]!r}")

    def variant(self, name, file, document_sets):
        ours, library = Ours(self.program, self.scratch, file), Tokenizer.from_str(json.dumps(file))
        r, failed, begin = random.Random(name), self.failed, time.time()
        ids_by_chance = [[r.randrange(library.get_vocab_size() + 5) for _ in range(r.randrange(30))] for _ in range(2000)]
        bytes_, tokens = 0, 0
        for kind, documents in document_sets.items():
            decoded = [document.decode("utf-8", "replace") for document in documents]
            for special in [False, True] if kind == "pieces" else [True]:
                ids = [library.encode(text, add_special_tokens=special).ids for text in decoded]
                self.check(f"{name}: encode {kind}", documents, ours.encode(documents, special), ids)
            library.encode_special_tokens = True
            letters = [library.encode(text, add_special_tokens=False).ids for text in decoded]
            library.encode_special_tokens = False
            self.check(f"{name}: parts of {kind}", documents, ours.encode(documents, False, "parts"), letters)
            bytes_, tokens = bytes_ + sum(map(len, documents)), tokens + sum(map(len, ids))
            for verb in ["decode", "stream"]:
                for skip in [False, True] if kind == "pieces" else [False]:
                    self.check_decode(f"{name}: {verb} {kind}", library, ours, verb, ids, skip)
        for verb in ["decode", "stream"]:
            for skip in [False, True]:
                self.check_decode(f"{name}: {verb} ids by chance", library, ours, verb, ids_by_chance, skip)
        result = "ok  " if self.failed == failed else "FAIL"
        print(f"{result} {name:34} {bytes_ / 1e6:6.2f} MB, {tokens:8} tokens, {time.time() - begin:5.1f} s", flush=True)

    def model(self, facts, file):
        """Encodes short texts with and without the tokens around them, whole and in parts; decodes what came out."""
        name, ours, library = facts["models"][0], Ours(self.program, self.scratch, file), Tokenizer.from_str(json.dumps(file))
        library.no_truncation()
        library.no_padding()
        documents = texts.pieces_with([content for content, _ in facts["added"]], 1500, name)
        decoded = [document.decode("utf-8", "replace") for document in documents]
        for around in [False, True]:
            ids = [library.encode(text, add_special_tokens=around).ids for text in decoded]
            self.check(f"{name}: encode", documents, ours.encode(documents, around), ids)
        library.encode_special_tokens = True
        letters = [library.encode(text, add_special_tokens=False).ids for text in decoded]
        library.encode_special_tokens = False
        self.check(f"{name}: parts", documents, ours.encode(documents, False, "parts"), letters)
        # The library does not skip special tokens that its normalizer spells in another way.
        respelled = file["normalizer"] and any(flags.get("normalized") for _, flags in facts["added"])
        for verb in ["decode", "stream"]:
            for skip in [False] if respelled else [False, True]:
                self.check_decode(f"{name}: {verb}", library, ours, verb, ids, skip)

    def refusal(self, name, file, part):
        """What our program says of a file that the library reads; it must name the part."""
        Tokenizer.from_str(json.dumps(file))
        said = Ours(self.program, self.scratch, file).refusal()
        self.passed, self.failed = self.passed + (part in said), self.failed + (part not in said)
        return said

    def check_decode(self, what, library, ours, verb, documents, skip):
        expected = [library.decode(ids, skip_special_tokens=skip) for ids in documents]
        self.check(what, documents, ours.decode(verb, documents, skip), expected)


# ---- normalizers -----------------------------------------------------------------------------------------------------


def compare_forms(comparison):
    """Each code point in each form, and sequences of them. Of characters after Unicode 3.2 the two programs may know
    different ones: these are counted where they stand alone, and left out of the sequences."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = {"version": "1.0", "added_tokens": [], "pre_tokenizer": files.byte_level(use_regex=False), "decoder": files.byte_level(),
             "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(alphabet)}, "merges": []}}
    known = [c for c in range(0x110000) if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs")]
    old, r = set(known), random.Random(8)
    changed_ = [c for c in known if unicodedata.normalize("NFKD", chr(c)) != chr(c) or unicodedata.combining(chr(c))]
    sequences = ["".join(chr(r.choice(r.choice([known, changed_]))) for _ in range(r.randrange(2, 10))) for _ in range(40_000)]
    alone = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for name in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"]:
        ours, library = Ours(comparison.program, comparison.scratch, plain | {"normalizer": {"type": name}}), getattr(normalizers, name)()
        ids = ours.encode([text.encode() for text in alone + sequences], False)
        made, expected = ours.decode("decode", ids, False), [library.normalize_str(text) for text in alone + sequences]
        newer = [i for i, c in enumerate(alone) if ord(c) not in old and made[i] != expected[i]]
        for i in newer:
            made[i] = expected[i]
        failed = comparison.failed
        comparison.check(name, alone + sequences, made, expected)
        print(f"{'ok  ' if comparison.failed == failed else 'FAIL'} {name}: {len(newer)} newer characters differ (no failure)", flush=True)


# ---- public models ---------------------------------------------------------------------------------------------------


def compare_models(comparison, lines):
    """Prints a line for each file, and how many models have which result."""
    of_bytes, of_pieces = files.llama3(lines, 6000), files.llama2(lines, 5000)
    same, refused = 0, {}
    for facts in models.MODELS:
        file, failed = models.stand_in(facts, of_bytes, of_pieces), comparison.failed
        if "refused" in facts:
            said = comparison.refusal(facts["models"][0], file, facts["refused"])
            print(f"{'ok  ' if comparison.failed == failed else 'FAIL'} {facts['models'][0]}: refused: {said}")
            refused[facts["refused"]] = refused.get(facts["refused"], []) + facts["models"]
        else:
            comparison.model(facts, file)
            same += len(facts["models"]) * (comparison.failed == failed)
            print(f"{'ok  ' if comparison.failed == failed else 'FAIL'} {', '.join(facts['models'])}", flush=True)
    count = sum(len(facts["models"]) for facts in models.MODELS)
    print(f"{same} of {count} public models: the library's ids and texts, by stand-ins of the same components")
    for name, of_models in refused.items():
        print(f"  refused for {name}: {', '.join(of_models)}")


# ---- Unicode's versions ----------------------------------------------------------------------------------------------


def unassigned_there():
    """The code points that the library does not know."""
    known = pre_tokenizers.Split(Regex(r"\p{Cn}"), "removed")
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    return {c for c in points if not known.pre_tokenize_str(chr(c))}


def newer_digits():
    """The numbers that the library's Digits knows, by Rust's tables, and its patterns do not."""
    by_rust, by_pattern = pre_tokenizers.Digits(), pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    points = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]
    return {c for c in points if len(by_rust.pre_tokenize_str("a" + chr(c))) != len(by_pattern.pre_tokenize_str("a" + chr(c)))}


def newer_code_points(program):
    here = {int(line, 16) for line in subprocess.check_output([program, "unassigned"], text=True).split()}
    there = unassigned_there()
    print(f"code points that only the library's Unicode knows: {len(here - there)}, only PCRE2's: {len(there - here)}")
    digits = newer_digits()
    print(f"numbers that only the library's Digits knows: {len(digits)}")
    return (here ^ there) | digits


def compare_newer(program, scratch, file, newer):
    """How many of them are split elsewhere: no failure, but not to be passed over."""
    documents = [f"a{chr(c)}b {chr(c)}1 '{chr(c)} ".encode() for c in sorted(newer)]
    library = Tokenizer.from_str(json.dumps(file))
    theirs = [library.encode(document.decode()).ids for document in documents]
    ours = Ours(program, scratch, file).encode(documents, True)
    print(f"  Llama 3's pattern splits at {sum(a != b for a, b in zip(ours, theirs))} of {len(newer)} of them otherwise (no failure)")


def compare_speed(program, scratch, name, file, what, document):
    library, ours = Tokenizer.from_str(json.dumps(file)), Ours(program, scratch, file)
    lines = document.decode("utf-8", "replace").splitlines(keepends=True)
    for unit, texts_ in {"one document": ["".join(lines)], "lines": lines}.items():
        encoded = [text.encode() for text in texts_]
        size = sum(map(len, encoded)) / 1e6
        begin = time.perf_counter()
        for text in texts_:
            library.encode(text)
        seconds = time.perf_counter() - begin
        ours.encode(encoded, True)
        print(f"  {name:7} {what:12} {unit:13} {size / ours.seconds:7.1f} MB/s here, {size / seconds:5.1f} MB/s from Python")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    lines = SHAKESPEARE.read_text().splitlines(keepends=True)
    lines += [texts.document(2000, seed).decode("utf-8", "replace") for seed in range(300)]
    lines += [text for text in texts.SCRIPTS.values() for _ in range(40)]
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        print(f"tokenizers {tokenizers.__version__}")
        newer = newer_code_points(program)
        mixed = texts.document(1_200_000, 2)
        sets = {
            "pieces": texts.pieces(4000, 1),
            "documents": [texts.document(300_000, 3), SHAKESPEARE.read_bytes()[:100_000]],
            "bytes": texts.random_bytes(5000, 4),
        }
        more = sets | {"documents": sets["documents"] + [mixed]}
        every = {"code points": texts.code_points(newer), "documents": [mixed]}
        comparison, files_by_name = Comparison(program, scratch), {}
        for name, file in variants(lines):
            files_by_name[name] = file
            comparison.variant(name, file, more if name in ["llama3", "gpt2", "llama2"] else sets)
        compare_forms(comparison)
        compare_models(comparison, lines)
        for name in ["llama3", "gpt2", "cl100k's pattern", "o200k's pattern", "qwen2's pattern", "folding a class",
                     "digits one by one, gpt2", "digits together, gpt2", "digits one by one, llama3"]:
            comparison.variant(f"word ends: {name}", word_ends(files_by_name[name]), every)
        compare_newer(program, scratch, word_ends(files_by_name["llama3"]), newer)
        print("encoding speed, a thread each:")
        for name in ["llama3", "gpt2", "llama2"]:
            compare_speed(program, scratch, name, files_by_name[name], "Shakespeare", SHAKESPEARE.read_bytes())
            compare_speed(program, scratch, name, files_by_name[name], "mixed text", mixed)
    print(f"{comparison.passed} passed, {comparison.failed} failed")
    sys.exit(comparison.failed > 0)


if __name__ == "__main__":
    main()
