"""What the tests of dev/data share: tokenizers, documents, and shards written independently from llm.c's layout."""

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[3]
PREPARE, INSPECT = ROOT / "dev/data/prepare", ROOT / "dev/data/inspect"
TEXT = (ROOT / "dev/data/tinyshakespeare.txt").read_text()
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
sys.path.insert(0, str(ROOT / "dev/data"))


def run(*arguments, code: int | None = 0, **options) -> subprocess.CompletedProcess:
    """Runs prepare or inspect, and expects an exit code (None: any but 0, with a message and no traceback)."""
    environment = os.environ | {"LLMC_DATA_PYTHON": sys.executable} | options.pop("env", {})
    command = [str(argument) for argument in arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(command, text=True, errors="replace", env=environment, timeout=100, **streams | options)
    assert (done.returncode == code) if code is not None else (done.returncode in (1, 2)), f"{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def prepare(*arguments, **options) -> subprocess.CompletedProcess:
    return run(PREPARE, *arguments, **({"code": 0} | options))


def refusal(*arguments, code: int = 1, **options) -> str:
    """What prepare says when it refuses."""
    return prepare(*arguments, code=code, **options).stderr


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def tokens_of(folder: Path, name: str = "x_train_000001.bin") -> np.ndarray:
    """The tokens of a narrow shard."""
    return np.frombuffer((folder / name).read_bytes()[1024:], "<u2")


def files_of(folder: Path) -> dict[str, bytes]:
    """All that a command left, but the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def shards_of(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in files_of(folder).items() if name.endswith((".bin", ".mask"))}


def shard(tokens, wide: bool = False, masked: bool = False) -> bytes:
    """llm.c's layout, once more."""
    magic, version, dtype = (20240801, 7, "<u4") if wide else (20240520, 1, "<u2")
    return np.array([magic, version, len(tokens), int(masked)] + [0] * 252, "<i4").tobytes() + np.array(tokens, dtype).tobytes()


def mask(values) -> bytes:
    return np.array([20241121, 1, len(values)] + [0] * 253, "<i4").tobytes() + bytes(values)


def held_out(document: int, fraction: float) -> bool:
    """splitmix64 of the document's number, in arithmetic of 64 bits."""
    with np.errstate(over="ignore"):
        z = np.uint64(document) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return int(z) / 2**64 < fraction


def expected_shards(
    name: str, documents: list[list[int]], shard_tokens: int, fraction: float, wide=False
) -> dict[str, bytes]:
    """Files of documents that are tokens, delimiters included."""
    files = {}
    for split, first in (("val", 0), ("train", 1)):
        members = [d for n, d in enumerate(documents) if held_out(n, fraction) == (split == "val")]
        tokens = [token for document in members for token in document]
        for n, start in enumerate(range(0, len(tokens), shard_tokens), first):
            files[f"{name}_{split}_{n:06d}.bin"] = shard(tokens[start : start + shard_tokens], wide)
    return files


def train_tokenizer(folder: Path, llama3: bool) -> Path:
    """A byte-level BPE that was trained on the bundled text, with the traps of real ones: it truncates, pads and adds a
    token to each text when called as it is."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not llama3)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level]) if llama3 else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT[:300_000], "\n\n\n\n" * 50, "\r\n\r\n" * 50, "   " * 50], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[(SPECIAL[0], 0)]
    )
    tokenizer.enable_truncation(max_length=50)
    tokenizer.enable_padding(length=30)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[1]}})
    )
    return folder


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory) -> Path:
    return train_tokenizer(tmp_path_factory.mktemp("tokenizers") / "gpt2", llama3=False)


@pytest.fixture(scope="session")
def llama3(tmp_path_factory) -> Path:
    return train_tokenizer(tmp_path_factory.mktemp("tokenizers") / "llama3", llama3=True)


def encoder(folder: Path):
    """text → tokens, plainly, with the tokenizers library alone."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def some_documents(count: int, seed: int = 1) -> list[str]:
    """Speeches, other scripts, special tokens spelled out, and odd ones."""
    rng = random.Random(seed)
    speeches = [speech for speech in TEXT.split("\n\n") if speech]
    odd = [
        "Ὦ ξεῖν', ἀγγέλλειν Λακεδαιμονίοις", "古池や\n蛙飛び込む\n水の音",
        "\U0001f9ed e\u0301 \u0000 \u200b\ufeff \ufffd", "a\r\nb\r\n",
        "  leading and trailing  ",
        "of <|end_of_text|> and <|eot_id|>", "\"quoted\" \\ back", "\u2028 and \u0085", "Ж" * 700,
    ]  # fmt: skip
    return [rng.choice(odd) if rng.random() < 0.1 else rng.choice(speeches) for _ in range(count)]


def write_lines(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_jsonl(path: Path, documents: list[str]) -> Path:
    return write_lines(path, ({"id": n, "text": text} for n, text in enumerate(documents)))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
