"""A batch of documents → its tokens, in a process of its own."""

import json
import multiprocessing
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

from llmc_data import delimiter, rows
from llmc_data.chat import Chat, texts_of
from llmc_data.counts import Counts
from llmc_data.errors import BadRow, DataError
from llmc_data.readers import Batch
from llmc_data.shards import layout_for
from llmc_data.split import HELD_OUT, TRAIN, Tokens, is_held_out
from llmc_data.template import ChatTemplate
from llmc_data.tokenizer import open_tokenizer

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, which only JSON's escapes can spell
NOT_IN_CHATS = re.compile("[\ud800-\udfff\ufdd0-\ufdd4]")  # nor what template.py and spelt.py put between words


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens."""

    tokenizer: Path | None = None  # none: byte by byte
    delimiter: str = "before"  # one of delimiter.PLACES
    delimiter_token: str | None = None
    val_fraction: float = 0.0
    kind: str = rows.TEXT  # of rows
    field: str | None = "text"  # of a row; none: the usual ones of the kind
    strip: bool = False  # white space around a document goes
    replace_invalid: bool = True  # what is not UTF-8 becomes U+FFFD; else it is an error
    skip_bad_rows: bool = True  # else they are an error
    parse_special: bool = False  # special tokens that texts spell are these tokens, not letters
    template: tuple[str, str] | None = None  # of conversations: its text and name

    @property
    def masked(self) -> bool:
        return self.kind != rows.TEXT


@dataclass
class Encoded:
    """A batch's tokens, for each split that has any."""

    splits: dict[str, Tokens]
    counts: Counts = field(default_factory=Counts)
    replaced: int = 0  # characters that were not UTF-8
    warnings: list[str] = field(default_factory=list)
    bad_rows: list[str] = field(default_factory=list)  # what is wrong with each


@dataclass
class Document:
    """Tokens of one row or piece, without delimiters."""

    piece: int  # which of the batch
    ids: np.ndarray
    text_bytes: int
    mask: bytes | None = None
    end_is_learnt: bool = False  # the delimiter after it is what a model has to say, too


class Encoder:
    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self.tokenizer = open_tokenizer(encoding.tokenizer, encoding.parse_special)
        self.dtype = layout_for(self.tokenizer.vocabulary).dtype
        self.chat = (
            Chat(ChatTemplate(*encoding.template, self.tokenizer), self.tokenizer) if encoding.template else None
        )
        self.delimiter = delimiter.find(encoding.delimiter, encoding.delimiter_token, self.tokenizer)

    def encode(self, batch: Batch) -> Encoded:
        result = Encoded({})
        documents = self.texts(batch, result) if self.encoding.kind == rows.TEXT else self.masked(batch, result)
        result.counts.rows += len(batch.pieces) if batch.unit != "byte" else 0
        result.counts.bad += len(result.bad_rows)
        result.counts.first_bad = result.bad_rows[0] if result.bad_rows else None
        parts: dict[str, list[Document]] = {}
        for document in documents:
            number = batch.first_document + document.piece
            split = HELD_OUT if is_held_out(number, self.encoding.val_fraction) else TRAIN
            parts.setdefault(split, []).append(document)
        result.splits = {split: self.joined(batch, members) for split, members in parts.items()}
        return result

    def texts(self, batch: Batch, result: Encoded) -> list[Document]:
        texts = {}
        for n in range(len(batch.pieces)):
            with self.row_of(batch, n, result):
                texts[n] = self.text(batch, n, result)
        ids = self.tokenizer.encode(list(texts.values()))
        return [Document(n, of, len(text.encode())) for (n, text), of in zip(texts.items(), ids, strict=True)]

    def masked(self, batch: Batch, result: Encoded) -> list[Document]:
        documents = []
        for n in range(len(batch.pieces)):
            with self.row_of(batch, n, result):
                row = self.row(batch, n, result)
                documents += (
                    self.conversation(batch, n, row, result) if self.chat else [self.completion(batch, n, row, result)]
                )
        return documents

    @contextmanager
    def row_of(self, batch: Batch, n: int, result: Encoded) -> Iterator[None]:
        """What is wrong with the row is said with its place; then the row is skipped, unless the command forbids it."""
        try:
            yield
        except BadRow as error:
            error = BadRow(f"{place_of(batch, n)}: {error}")
            if not self.encoding.skip_bad_rows:
                raise error from None
            result.bad_rows.append(str(error))

    def joined(self, batch: Batch, documents: list[Document]) -> Tokens:
        """The tokens of some of a batch's documents, one after the other, with their delimiters."""
        arrays, masks, starts, length, last_piece = [], [], [], 0, len(batch.pieces) - 1
        for document in documents:
            begins, ends = document.piece > 0 or batch.begins, document.piece < last_piece or batch.ends
            if begins:
                starts.append(length)
            before, after = self.delimiter.around(document.ids, rendered=self.chat is not None)
            before, after = before if begins else [], after if ends else []
            arrays += [np.array(before, self.dtype), document.ids, np.array(after, self.dtype)]
            length += len(before) + len(document.ids) + len(after)
            if self.encoding.masked:
                masks += [bytes(len(before)), document.mask, bytes([document.end_is_learnt] * len(after))]
        tokens = np.concatenate(arrays).astype(self.dtype)
        text_bytes = sum(document.text_bytes for document in documents)
        unlearnt = sum(1 not in document.mask for document in documents) if self.encoding.masked else 0
        return Tokens(tokens.tobytes(), b"".join(masks), starts, text_bytes, unlearnt)

    def decode(self, batch: Batch, n: int, result: Encoded) -> str:
        raw = batch.pieces[n]
        if raw is None:
            raise BadRow(f"{self.encoding.field} is null\n  drop the row, or name another field with --text-field")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            text = raw.decode(errors="replace")
            place = place_of(batch, n, error.start)
            self.report_invalid(f"{place}: not UTF-8 (byte 0x{raw[error.start]:02x})", result)
            result.replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
            return text

    def report_invalid(self, what: str, result: Encoded) -> None:
        if not self.encoding.replace_invalid:
            raise DataError(f"{what}\n  convert the file with iconv, or let it be replaced with --invalid-utf8 replace")
        result.warnings.append(what)

    def row(self, batch: Batch, n: int, result: Encoded) -> dict:
        """A JSON object."""
        try:
            row = json.loads(self.decode(batch, n, result))
        except (ValueError, RecursionError) as error:
            raise BadRow(f"not JSON: {error}") from None
        if not isinstance(row, dict):
            wanted = rows.expected(self.encoding.kind, self.encoding.field)
            raise BadRow(f"no field {wanted}\n  it is {type(row).__name__}, expected an object")
        return row

    def field(self, row: dict) -> str:
        """A text of it."""
        name = self.encoding.field
        if name not in row:
            raise BadRow(rows.missing(row, self.encoding.kind, name))
        if row[name] is None:
            raise BadRow(f"{name} is null\n  drop the row, or name another field with --text-field")
        if not isinstance(row[name], str):
            raise BadRow(f"field {name} is {type(row[name]).__name__}, expected a string")
        return row[name]

    def whole(self, text: str, batch: Batch, n: int, result: Encoded) -> str:
        """Without halves of surrogate pairs."""
        if SURROGATE.search(text):
            self.report_invalid(f"{place_of(batch, n)}: half a surrogate pair", result)
            text, halves = SURROGATE.subn("\ufffd", text)
            result.replaced += halves
        return text

    def text(self, batch: Batch, n: int, result: Encoded) -> str:
        """The text to tokenize of what stands in the file."""
        if batch.json:
            text = self.whole(self.field(self.row(batch, n, result)), batch, n, result)
        else:
            text = self.decode(batch, n, result)
        self.note_spelt(text, batch, n, result)
        if self.encoding.strip:
            text = text.lstrip() if n > 0 or batch.begins else text
            text = text.rstrip() if n < len(batch.pieces) - 1 or batch.ends else text
        return text

    def note_spelt(self, text: str, batch: Batch, n: int, result: Encoded) -> None:
        """Counts the special tokens that a text spells."""
        counts = result.counts
        for match in self.tokenizer.spelling.finditer(text):
            counts.spelt += 1
            if counts.first_spelt is None:
                offset = len(text[: match.start()].encode()) if batch.unit == "byte" else 0
                counts.first_spelt = f"{match[0]}, in {place_of(batch, n, offset)}"

    def completion(self, batch: Batch, n: int, row: dict, result: Encoded) -> Document:
        """A prompt and its completion, one text: a token is learnt that has a character of the completion."""
        prompt, completion = (self.whole(of, batch, n, result) for of in rows.pair_of_texts(row))
        if self.encoding.strip:
            prompt, completion = prompt.lstrip(), completion.rstrip()
        text = prompt + completion
        self.note_spelt(text, batch, n, result)
        ids, stops = self.tokenizer.encode_with_stops(text)
        mask = (stops > len(prompt)).astype(np.uint8).tobytes()
        return Document(n, ids, len(text.encode()), mask, end_is_learnt=True)

    def conversation(self, batch: Batch, n: int, row: dict, result: Encoded) -> list[Document]:
        messages, tools, shape = rows.conversation(row, self.encoding.field)
        if odd := NOT_IN_CHATS.search(json.dumps([messages, tools], ensure_ascii=False)):
            name = "half a surrogate pair" if SURROGATE.match(odd[0]) else f"U+{ord(odd[0]):X}, which no text may use,"
            raise BadRow(f"{name} in a message")
        try:
            prepared = self.chat.prepare(messages, tools)
            for document in prepared.documents:
                self.delimiter.refuse_inside(document.ids)
        except DataError as error:
            raise BadRow(str(error)) from None
        counts = result.counts
        counts.add(Counts(shapes={shape: 1}, several=len(prepared.documents) > 1, spelt=prepared.spelt))
        if prepared.spelt and counts.first_spelt is None:
            counts.first_spelt = f"in {place_of(batch, n)}"
        documents = []
        for document in prepared.documents:
            counts.add(Counts(ends=dict(Counter(map(str, document.ends)))))
            said = [words for message in messages[: document.messages] for words in texts_of(message.get("content"))]
            size = sum(len(words.encode()) for words in said)
            documents.append(Document(n, document.ids, size, document.mask))
        return documents


def place_of(batch: Batch, n: int, offset: int = 0) -> str:
    """File and place of a piece; of the byte at this offset in it, where places are bytes."""
    return f"{batch.file}: {batch.unit} {batch.places[n] + (offset if batch.unit == 'byte' else 0)}"


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
