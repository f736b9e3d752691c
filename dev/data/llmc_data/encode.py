"""A batch of documents → its tokens, in a process of its own."""

import json
import multiprocessing
import os
import re
import signal
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

from llmc_data import delimiter
from llmc_data.chat import ChatTemplate
from llmc_data.errors import DataError
from llmc_data.readers import TOOLS, Batch
from llmc_data.shards import layout_for
from llmc_data.split import HELD_OUT, TRAIN, Tokens, is_held_out
from llmc_data.tokenizer import open_tokenizer

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, which only JSON's escapes can spell


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens."""

    tokenizer: Path | None = None  # none: byte by byte
    delimiter: str = "before"  # one of delimiter.PLACES
    delimiter_token: str | None = None
    val_fraction: float = 0.0
    field: str = "text"
    strip: bool = False  # white space around a document goes
    replace_invalid: bool = True  # what is not UTF-8 becomes U+FFFD; else it is an error
    template: tuple[str, str] | None = None  # of conversations: its text and name


@dataclass
class Encoded:
    """A batch's tokens, for each split that has any."""

    splits: dict[str, Tokens]
    replaced: int = 0  # characters that were not UTF-8
    warnings: list[str] = field(default_factory=list)


class Encoder:
    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self.tokenizer = open_tokenizer(encoding.tokenizer)
        self.dtype = layout_for(self.tokenizer.vocabulary).dtype
        self.template = ChatTemplate(*encoding.template, self.tokenizer) if encoding.template else None
        self.delimiter = delimiter.find(encoding.delimiter, encoding.delimiter_token, self.tokenizer)

    def encode(self, batch: Batch) -> Encoded:
        result = Encoded({})
        values = [self.decode(batch, n, result) for n in range(len(batch.pieces))]
        if self.template:
            documents = [self.conversation(batch, n, value) for n, value in enumerate(values)]
        else:
            texts = [self.text(batch, n, value, result) for n, value in enumerate(values)]
            documents = [
                (ids, None, len(text.encode())) for ids, text in zip(self.tokenizer.encode(texts), texts, strict=True)
            ]
        parts: dict[str, list[int]] = {}
        for n in range(len(documents)):
            split = HELD_OUT if is_held_out(batch.first_document + n, self.encoding.val_fraction) else TRAIN
            parts.setdefault(split, []).append(n)
        for split, members in parts.items():
            result.splits[split] = self.joined(batch, documents, members)
        return result

    def joined(self, batch: Batch, documents: list, members: list[int]) -> Tokens:
        """The tokens of some of a batch's documents, one after the other, with their delimiters."""
        arrays, masks, starts, length = [], [], [], 0
        for n in members:
            ids, mask, _ = documents[n]
            begins, ends = n > 0 or batch.begins, n < len(documents) - 1 or batch.ends
            if begins:
                starts.append(length)
            before, after = self.delimiter.around(ids, rendered=self.template is not None)
            before, after = before if begins else [], after if ends else []
            arrays += [np.array(before, self.dtype), ids, np.array(after, self.dtype)]
            length += len(before) + len(ids) + len(after)
            if self.template:
                masks += [bytes(len(before)), mask, bytes(len(after))]
        tokens = np.concatenate(arrays).astype(self.dtype)
        text_bytes = sum(documents[n][2] for n in members)
        unlearnt = sum(1 not in documents[n][1] for n in members) if self.template else 0
        return Tokens(tokens.tobytes(), b"".join(masks), starts, text_bytes, unlearnt)

    def decode(self, batch: Batch, n: int, result: Encoded) -> str:
        raw = batch.pieces[n]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            text = raw.decode(errors="replace")
            offset = error.start + (batch.places[n] if batch.unit == "byte" else 0)
            place = f"byte {offset}" if batch.unit == "byte" else f"{batch.unit} {batch.places[n]}"
            self.report_invalid(f"{batch.file}: {place}: not UTF-8 (byte 0x{raw[error.start]:02x})", result)
            result.replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
            return text

    def report_invalid(self, what: str, result: Encoded) -> None:
        if not self.encoding.replace_invalid:
            raise DataError(f"{what}\n  convert the file with iconv, or let it be replaced with --invalid-utf8 replace")
        result.warnings.append(what)

    def row(self, batch: Batch, n: int, text: str):
        """A JSON object that has the field."""
        where, name = f"{batch.file}: {batch.unit} {batch.places[n]}", self.encoding.field
        try:
            row = json.loads(text)
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if isinstance(row, dict) and name in row and row[name] is None:
            raise DataError(f"{where}: {name} is null\n  drop the {batch.unit}, or name another with --text-field")
        if not isinstance(row, dict) or name not in row:
            found = f"it has {', '.join(row) or 'none'}" if isinstance(row, dict) else f"it is {type(row).__name__}"
            raise DataError(f"{where}: no field {name}\n  {found}: name the right one with --text-field")
        return row

    def text(self, batch: Batch, n: int, text: str, result: Encoded) -> str:
        """The text to tokenize of what stands in the file."""
        if batch.json:
            text = self.row(batch, n, text)[self.encoding.field]
            where = f"{batch.file}: {batch.unit} {batch.places[n]}"
            if not isinstance(text, str):
                raise DataError(f"{where}: field {self.encoding.field} is {type(text).__name__}, expected a string")
            if SURROGATE.search(text):
                self.report_invalid(f"{where}: half a surrogate pair", result)
                text, halves = SURROGATE.subn("\ufffd", text)
                result.replaced += halves
        if self.encoding.strip:
            text = text.lstrip() if n > 0 or batch.begins else text
            text = text.rstrip() if n < len(batch.pieces) - 1 or batch.ends else text
        return text

    def conversation(self, batch: Batch, n: int, text: str) -> tuple[np.ndarray, bytes, int]:
        row, where = self.row(batch, n, text), f"{batch.file}: {batch.unit} {batch.places[n]}"
        messages, tools = row[self.encoding.field], tools_of(row, where)
        if SURROGATE.search(json.dumps([messages, tools], ensure_ascii=False)):
            raise DataError(f"{where}: half a surrogate pair in a message")
        if not (isinstance(messages, list) and messages and all(map(is_message, messages))):
            raise DataError(
                f'{where}: {self.encoding.field} is no conversation\n  expected [{{"role": …, "content": …}}, …]'
            )
        try:
            ids, mask = self.template.tokens_and_mask([without_null_keys(m) for m in messages], tools)
            self.delimiter.refuse_inside(ids)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        return ids, mask, sum(len(m["content"].encode()) for m in messages if isinstance(m.get("content"), str))


def is_message(value) -> bool:
    said = isinstance(value, dict) and (value.get("content") is not None or value.get("tool_calls") is not None)
    return said and isinstance(value.get("role"), str)


def without_null_keys(message: dict) -> dict:
    """So that a template that asks whether a message has tool_calls is told what counts. Null is a content."""
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def tools_of(row: dict, where: str) -> list | None:
    """A conversation's tools: a list, perhaps as JSON in a string, for columns that hold tools of many shapes."""
    tools = row.get(TOOLS)
    if isinstance(tools, str):
        try:
            tools = json.loads(tools or "null")
        except ValueError as error:
            raise DataError(f"{where}: {TOOLS} is a string, but not JSON: {error}") from None
    if not isinstance(tools, list | None):
        raise DataError(
            f"{where}: {TOOLS} is {type(tools).__name__}\n  expected a list, or a string that is one in JSON"
        )
    return tools


_encoder: Encoder


def start_worker(encoding: Encoding) -> None:
    """A worker leaves Ctrl-C to its parent, and ends when that does, also when it is killed."""
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    _encoder = Encoder(encoding)


def encode(batch: Batch) -> Encoded:
    return _encoder.encode(batch)
