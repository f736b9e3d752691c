"""Text → tokens: by any tokenizer.json, or byte by byte."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llmc_data import cuts
from llmc_data.errors import DataError
from llmc_data.links import own_file
from llmc_data.shards import sha256_of

FILE = "tokenizer.json"
CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
BESIDE = (CONFIG_FILE, "special_tokens_map.json", TEMPLATE_FILE)
# Where nothing beside tokenizer.json names the tokens that begin and end a text.
USUAL_BEGIN = ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>")
USUAL_END = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class ByteTokenizer:
    """Each byte of the UTF-8 text is a token. The delimiter is 255, a byte that no UTF-8 text has."""

    name, path, files, sha256 = "bytes", None, (), None
    vocabulary, special_ids = 256, frozenset()
    cut = cuts.BETWEEN_CHARACTERS

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def delimiter(self, wanted: str | None, ends: bool = False) -> tuple[str, int]:
        if wanted is not None:
            raise DataError(f"--delimiter-token {wanted} needs a --tokenizer: bytes are delimited by byte 255")
        return "byte 255", 255

    def begin_and_end(self) -> tuple[str | None, str | None]:
        return None, None


class Tokenizer:
    """A tokenizer.json, with what stands beside it. Text is only text: special tokens that it spells stay letters."""

    def __init__(self, path: Path):
        import tokenizers  # here, so that bytes do not wait for it

        self.path = path / FILE if path.is_dir() else path
        self.name = self.path.resolve().parent.name if self.path.name == FILE else self.path.stem
        if not self.path.is_file():
            raise DataError(
                f"there is no {self.path}\n  --tokenizer takes a tokenizer.json, or the folder that has one"
            )
        try:
            self.rules = json.loads(self.path.read_text(encoding="utf-8"))
            self.tokenizer = tokenizers.Tokenizer.from_file(str(self.path))
        except Exception as error:  # tokenizers raises bare Exceptions
            raise DataError(
                f"{self.path} is no tokenizer that the tokenizers library reads: {error}\n"
                "  expected the tokenizer.json of a Hugging Face model; token ids must fit in uint32"
            ) from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        self.sha256 = sha256_of(self.path)
        self.vocabulary = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        added = self.tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self.cut = cuts.proven(self.rules)

    @property
    def files(self) -> list[Path]:
        """What belongs to it and stands beside the shards, too."""
        return [own_file(path) for name in BESIDE if (path := self.path.with_name(name)).is_file()]

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def encode_rendered(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """A conversation with its special tokens, and at which character each token begins."""
        self.tokenizer.encode_special_tokens = False
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        self.tokenizer.encode_special_tokens = True
        return np.array(encoding.ids, dtype=np.uint32), np.array(
            [start for start, _ in encoding.offsets], dtype=np.int64
        )

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def delimiter(self, wanted: str | None, ends: bool = False) -> tuple[str, int]:
        """The token between documents: the one asked for, else that which begins (ends) a text, else the other."""
        begin, end = self.begin_and_end()
        name = wanted or (end or begin if ends else begin or end)
        number = None if name is None else self.tokenizer.token_to_id(name)
        if number is None:
            what = f"has no token {name}" if name else "names no token that begins or ends a text"
            raise DataError(f"{self.path} {what}\n  name one with --delimiter-token, or give --delimiter none")
        return name, number

    def begin_and_end(self) -> tuple[str | None, str | None]:
        """The tokens that begin and end a text, as the files beside tokenizer.json name them, else the usual ones."""
        named = self.config("special_tokens_map.json") | self.config(CONFIG_FILE)
        if "bos_token" in named or "eos_token" in named:
            return token_text(named.get("bos_token")), token_text(named.get("eos_token"))
        known = [
            [name for name in usual if self.tokenizer.token_to_id(name) is not None]
            for usual in (USUAL_BEGIN, USUAL_END)
        ]
        return tuple(names[0] if names else None for names in known)

    def config(self, name: str) -> dict:
        path = self.path.with_name(name)
        if not path.is_file():
            return {}
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path}: not JSON: {error}") from None
        return config if isinstance(config, dict) else {}


def token_text(token: str | dict | None) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def open_tokenizer(path: Path | None) -> ByteTokenizer | Tokenizer:
    return ByteTokenizer() if path is None else Tokenizer(path)
