"""Text → tokens: by any tokenizer.json, or byte by byte."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from llmc_data import cuts, spelt
from llmc_data.errors import DataError
from llmc_data.links import own_file
from llmc_data.shards import sha256_of

FILE = "tokenizer.json"
CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
BESIDE = (CONFIG_FILE, "special_tokens_map.json", TEMPLATE_FILE)
PART = 1 << 19  # bytes of a long text that are tokenized at once
# These are taken if no other file of the folder names the tokens that begin and end a text.
USUAL_BEGIN = ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>")
USUAL_END = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
USUALLY_NOTHING = ("<pad>", "[PAD]", "<unk>")  # tokens that stand for nothing in a text


HUB_NAMES = {"gpt2": "openai-community/gpt2"}  # short names that people use for a tokenizer


def download_command(name: str) -> str:
    """What fetches a tokenizer of the hub, and the option that takes it."""
    hub = HUB_NAMES.get(name.lower(), name if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) else "OWNER/NAME")
    folder = hub.split("/")[1]
    return f"hf download {hub} --local-dir {folder} --include '*.json', then --tokenizer {folder}"


class ByteTokenizer:
    """Each byte of the UTF-8 text is a token. The delimiter is 255, a byte that no UTF-8 text has."""

    name, path, files, sha256 = "bytes", None, (), None
    vocabulary, spelling = 256, spelt.any_of(())
    cut = cuts.BETWEEN_CHARACTERS

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def encode_with_stops(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        sizes = [len(character.encode()) for character in text]
        return self.encode([text])[0], np.repeat(np.arange(1, len(text) + 1), sizes)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def delimiter(self, wanted: str | None, ends: bool = False) -> tuple[str, int]:
        if wanted is not None:
            raise DataError(f"--delimiter-token {wanted} needs a --tokenizer: bytes are delimited by byte 255")
        return "byte 255", 255

    def begin_and_end(self) -> tuple[str | None, str | None]:
        return None, None


class Tokenizer:
    """A tokenizer.json, with the other files of its folder that belong to it."""

    def __init__(self, path: Path, parse_special: bool = False):
        """`parse_special`: special tokens that a text spells are these tokens; else text is only text, and they stay
        letters."""
        import tokenizers  # here, so that bytes do not wait for it

        self.path = path / FILE if path.is_dir() else path
        self.name = self.path.resolve().parent.name if self.path.name == FILE else self.path.stem
        if not self.path.is_file():
            raise DataError(
                f"there is no {self.path}\n  --tokenizer takes a tokenizer.json, or the folder that has one; if it is one"
                f" of the Hugging Face hub, fetch it first: {download_command(str(path))}"
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
        self.tokenizer.encode_special_tokens = self.text_only = not parse_special
        self.sha256 = sha256_of(self.path)
        self.vocabulary = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        added = self.tokenizer.get_added_tokens_decoder()
        self.special = {number: token for number, token in added.items() if token.special}
        self.spelling = spelt.any_of(token.content for token in self.special.values())
        self.cut = cuts.proven(self.rules, parse_special)

    @property
    def files(self) -> list[Path]:
        """What belongs to it and is copied into the folder of the shards, too."""
        return [own_file(path) for name in BESIDE if (path := self.path.with_name(name)).is_file()]

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Long texts part by part, where a cut is proven to change no token: each byte takes up to 150 of memory."""
        short = [text for text in texts if len(text) < 2 * PART]
        encodings = iter(self.tokenizer.encode_batch_fast(short, add_special_tokens=False))
        return [
            np.concatenate([self.encode_part(part) for part in self.parts(text)])
            if len(text) >= 2 * PART
            else np.array(next(encodings).ids, dtype=np.uint32)
            for text in texts
        ]

    def encode_part(self, part: str) -> np.ndarray:
        return np.array(self.tokenizer.encode_batch_fast([part], add_special_tokens=False)[0].ids, dtype=np.uint32)

    def parts(self, text: str) -> Iterator[str]:
        rest = text.encode()
        while self.cut and len(rest) >= 2 * PART and (cut := self.cut.search(rest, PART)):
            yield rest[: cut.end()].decode()
            rest = rest[cut.end() :]
        yield rest.decode()

    def encode_with_stops(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a text, and at which character each ends."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        stops = np.array([end for _, end in encoding.offsets], dtype=np.int64)
        return np.array(encoding.ids, dtype=np.uint32), stops

    def encode_rendered(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A conversation with its special tokens, but those that have a guard inside (spelt.py), and at which characters
        each token begins and ends. A token of no character counts as one of the character after it."""
        places = None
        if spelt.GUARD in text:
            text, places = self.stand_ins.put_in(text)
        self.tokenizer.encode_special_tokens = places is not None
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        self.tokenizer.encode_special_tokens = self.text_only
        ids = np.array(encoding.ids, dtype=np.uint32)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        starts, ends = offsets[:, 0], np.maximum(offsets[:, 1], offsets[:, 0] + 1)
        if places is not None:
            ids = self.stand_ins.number_of[ids]
            starts, ends = places[starts], places[ends - 1] + 1
        return ids, starts, ends

    @cached_property
    def stand_ins(self) -> spelt.StandIns:
        return spelt.StandIns(self.tokenizer, self.special)

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
        """The tokens that begin and end a text, as the files next to tokenizer.json name them, else the usual ones."""
        named = self.named_tokens()
        if named is not None:
            return named.get("bos_token"), named.get("eos_token")
        known = [
            [name for name in usual if self.tokenizer.token_to_id(name) is not None]
            for usual in (USUAL_BEGIN, USUAL_END)
        ]
        return tuple(names[0] if names else None for names in known)

    def named_tokens(self) -> dict[str, str | None] | None:
        """bos_token, eos_token, pad_token, …, as the files next to tokenizer.json name them; None if they name neither."""
        named = self.config("special_tokens_map.json") | self.config(CONFIG_FILE)
        if "bos_token" not in named and "eos_token" not in named:
            return None
        return {name: token_text(of) for name, of in named.items() if name.endswith("_token")}

    def config(self, name: str) -> dict:
        path = self.path.with_name(name)
        if not path.is_file():
            return {}
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path}: not JSON: {error}") from None
        return config if isinstance(config, dict) else {}


def token_text(token) -> str | None:
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def open_tokenizer(path: Path | None, parse_special: bool = False) -> ByteTokenizer | Tokenizer:
    return ByteTokenizer() if path is None else Tokenizer(path, parse_special)
