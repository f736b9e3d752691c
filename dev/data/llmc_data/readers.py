"""Documents of a file, in batches: text, JSON lines, parquet, arrow. A file is never read whole, unless it is one
document that no cut is proven for (cuts.py)."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmc_data import rows
from llmc_data.errors import DataError
from llmc_data.shards import UINT16, UINT32

BATCH_BYTES = 1 << 19
READ_BYTES = 1 << 20
ROWS = 256  # read at a time from parquet
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}


@dataclass(frozen=True)
class Reading:
    """How files are read."""

    kind: str = rows.TEXT  # of rows
    field: str | None = "text"  # of a row; none: the usual ones of the kind
    separator: bytes | None = None  # between the documents of a text
    keep_separator: bool = False  # it ends the document before it
    cut: re.Pattern | None = None  # where a long text may be cut

    @property
    def objects(self) -> bool:
        """Rows of a table are read as JSON objects of some of its columns, not as the strings of one."""
        return self.kind != rows.TEXT


@dataclass
class Batch:
    """Pieces of text, each a document; the first may go on from the batch before, the last go on in the next."""

    file: str
    unit: str  # of places: byte, line, row
    json: bool  # pieces are JSON objects that have the text in a field
    first_document: int
    pieces: list[bytes | None]  # None: a table's row has no text
    places: list[int]
    begins: bool  # the first piece begins its document
    ends: bool  # the last piece ends its document
    after: list  # where reading goes on after it
    source_bytes: int  # of the file, so far


@dataclass
class Piece:
    text: bytes | None
    place: int
    after: list
    source_bytes: int
    begins: bool = True
    ends: bool = True


class TextReader:
    """A text file: one document, or several with a separator between them; white space alone is none."""

    unit, json = "byte", False

    def __init__(self, path: Path, reading: Reading):
        self.path, self.reading = path, reading

    def pieces(self, after: list | None) -> Iterator[Piece]:
        offset, begins = after or (0, True)
        buffer, searched, at_end = bytearray(), 0, False
        with open(self.path, "rb") as file:
            file.seek(offset)
            while not at_end:
                part = self.next_part(buffer, searched)
                if part is None:
                    searched = len(buffer)
                    if chunk := file.read(READ_BYTES):
                        buffer += chunk
                        continue
                    part, at_end = (len(buffer), len(buffer), True), True
                length, taken, ends = part
                text = bytes(buffer[:length])
                del buffer[:taken]
                place, offset, searched = offset, offset + taken, 0
                if not (begins and ends and self.is_nothing(text)):
                    yield Piece(text, place, [offset, ends], offset, begins, ends)
                begins = ends

    def next_part(self, buffer: bytearray, searched: int) -> tuple[int, int, bool] | None:
        """How long the next piece is, with what it takes from the file; whether it ends its document. None: read on."""
        separator = self.reading.separator or b""
        if separator and (found := buffer.find(separator, max(0, searched - len(separator)))) >= 0:
            end = found + len(separator)
            return (end if self.reading.keep_separator else found), end, True
        if self.reading.cut and len(buffer) >= 2 * BATCH_BYTES:
            # Not in the last bytes, where a separator may have begun. The chunk before may not have been searched yet.
            first, last = max(BATCH_BYTES, searched - READ_BYTES), len(buffer) - len(separator)
            cut = self.reading.cut.search(buffer, first, last)
            return cut and (cut.end(), cut.end(), False)
        return None

    def is_nothing(self, text: bytes) -> bool:
        separator = self.reading.separator
        return not text or (separator is not None and not text.replace(separator, b"").strip())


class JsonlReader:
    """JSON lines: one document a line. The lines are parsed where they are tokenized."""

    unit, json = "line", True

    def __init__(self, path: Path, reading: Reading):
        self.path = path

    def pieces(self, after: list | None) -> Iterator[Piece]:
        offset, number = after or (0, 0)
        with open(self.path, "rb") as file:
            file.seek(offset)
            for line in file:
                offset, number = offset + len(line), number + 1
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    if line.lstrip().startswith(b"["):
                        raise DataError(
                            f"{self.path}: line 1: a JSON array\n  expected an object a line; jq -c '.[]' writes one so"
                        )
                if not line.isspace():
                    yield Piece(line, number, [offset, number], offset)


class TableReader:
    """What parquet and arrow share: one document a row, the rows of one column; of conversations with their tools."""

    unit = "row"

    def __init__(self, path: Path, reading: Reading):
        self.path, self.reading, self.json = path, reading, reading.objects
        self.size = path.stat().st_size

    def check_columns(self, schema) -> None:
        import pyarrow as pa

        if not self.columns(schema):
            raise DataError(
                f"{self.path}: {rows.missing(schema.names, self.reading.kind, self.reading.field, 'column')}"
            )
        if self.reading.objects:
            return
        kind = schema.field(self.reading.field).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
        if not any(is_text(kind) for is_text in text):
            raise DataError(f"{self.path}: column {self.reading.field} holds {kind}\n  expected text")

    def columns(self, schema) -> list[str]:
        """What is read."""
        return rows.columns(self.reading.kind, self.reading.field, schema.names)

    def texts(self, batch) -> list[bytes | None]:
        """The rows of a record batch, as bytes."""
        import pyarrow as pa

        if self.reading.objects:
            objects = batch.select(self.columns(batch.schema)).to_pylist()
            return [json.dumps(without_nulls(value), default=str).encode() for value in objects]
        column = batch.column(self.reading.field)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return column.cast(pa.large_binary()).to_pylist()


def without_nulls(value):
    """A table has all keys of a column in each of its objects; null says that one did not have the key. What a message
    says stays: there, null says that it says nothing."""
    if isinstance(value, dict):
        return {key: without_nulls(of) for key, of in value.items() if of is not None or key == "content"}
    return [without_nulls(of) for of in value] if isinstance(value, list) else value


class ParquetReader(TableReader):
    """Row group by row group, the columns that are needed."""

    def pieces(self, after: list | None) -> Iterator[Piece]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                self.check_columns(file.schema_arrow)
                yield from self.rows(file, after)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: no parquet file, or a damaged one: {error}") from None

    def rows(self, file, after: list | None) -> Iterator[Piece]:
        first_group, skipped = after or (0, 0)
        groups, columns = file.metadata, self.columns(file.schema_arrow)
        before = sum(groups.row_group(group).num_rows for group in range(first_group))
        for group in range(first_group, groups.num_row_groups):
            row = 0
            for batch in file.iter_batches(ROWS, row_groups=[group], columns=columns):
                if row + len(batch) > skipped:
                    for text in self.texts(batch):
                        row += 1
                        if row > skipped:
                            number = before + row - 1
                            yield Piece(text, number, [group, row], self.size * (number + 1) // groups.num_rows)
                else:
                    row += len(batch)
            before, skipped = before + row, 0


class ArrowReader(TableReader):
    """Arrow's files, and streams, as the datasets library writes them; mapped, record batch by record batch."""

    def pieces(self, after: list | None) -> Iterator[Piece]:
        import pyarrow as pa

        try:
            with pa.memory_map(str(self.path)) as mapped:
                yield from self.rows(mapped, after)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: no arrow file, or a damaged one: {error}") from None

    @staticmethod
    def open(mapped):
        """Its reader, and whether it is a file, not a stream."""
        import pyarrow as pa

        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        return pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped), is_file

    def rows(self, mapped, after: list | None) -> Iterator[Piece]:
        first_batch, skipped = after or (0, 0)
        reader, is_file = self.open(mapped)
        self.check_columns(reader.schema)
        count = reader.num_record_batches if is_file else 0
        batches = (reader.get_batch(i) for i in range(count)) if is_file else reader
        before = 0
        for number, batch in enumerate(batches):
            read = self.size * (number + 1) // count if is_file else mapped.tell()
            for start in range(0, len(batch), ROWS) if number >= first_batch else ():
                if start + ROWS > skipped:
                    for row, text in enumerate(self.texts(batch.slice(start, ROWS)), start):
                        if row >= skipped:
                            yield Piece(text, before + row, [number, row + 1], read)
            skipped = skipped if number < first_batch else 0
            before += len(batch)


def names_of_rows(path: Path, format: str) -> list[str]:
    """The fields of the first row; none of a text, or where the first line is no JSON object."""
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            return pq.read_schema(path).names
        if format == "arrow":
            import pyarrow as pa

            with pa.memory_map(str(path)) as mapped:
                return ArrowReader.open(mapped)[0].schema.names
        if format == "jsonl":
            row = json.loads(next(JsonlReader(path, Reading()).pieces(None)).text)
            return list(row) if isinstance(row, dict) else []
    except (OSError, ValueError, NotImplementedError, StopIteration, DataError):  # Arrow's are of these kinds
        pass  # reading it says what is wrong
    return []


READERS = {"text": TextReader, "jsonl": JsonlReader, "parquet": ParquetReader, "arrow": ArrowReader}


def format_of(path: Path) -> str:
    """By the name, else by the first bytes."""
    if path.suffix.lower() in FORMATS:
        return FORMATS[path.suffix.lower()]
    with open(path, "rb") as file:
        first = file.read(8)
    if first.startswith((b"PAR1", b"ARROW1")):
        return "parquet" if first.startswith(b"PAR1") else "arrow"
    return "text"


UNPACK = {"gzip": "gunzip", "zstd": "unzstd", "xz": "unxz", "bzip2": "bunzip2", "zip": "unzip"}
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"PK\x03\x04": "zip"}


def refuse_binary(path: Path) -> None:
    """What is to be read as text or JSON lines looks like it. The trainer asks the same of texts."""
    with open(path, "rb") as file:
        first = file.read(4096)
    packed = next((name for start, name in PACKED.items() if first.startswith(start)), None)
    if packed or first[4:10] == b"1AY&SY":
        packed = packed or "bzip2"
        raise DataError(f"{path} is compressed with {packed}\n  unpack it: {UNPACK[packed]}")
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16\n  write it as UTF-8: iconv -f utf-16 -t utf-8")
    if path.suffix == ".bin":
        refuse_tokens(path, first)
    if b"\0" in first:
        where = f"byte {first.index(0)} is 0"
        raise DataError(f"{path} is binary: {where}\n  leave it out, or write its text as UTF-8 (without bytes of 0)")
    broken = first.decode(errors="replace").count("\ufffd") - first.count("\ufffd".encode())
    if len(first) >= 64 and broken > len(first) / 4:
        raise DataError(
            f"{path} is binary, or text in another encoding: {broken} of its first {len(first)} bytes begin no"
            " character of UTF-8\n  leave it out, or write it as UTF-8: iconv"
        )


def refuse_tokens(path: Path, first: bytes) -> None:
    """A .bin that holds tokens, of which nothing is left to prepare."""
    magic, size = int.from_bytes(first[:4], "little"), path.stat().st_size
    if magic in (UINT16.magic, UINT32.magic):
        raise DataError(f"{path} is a shard of tokens already\n  train on it: ./train_llama --train-data {path}")
    if size % 2 == 0 and b"\0" in first:
        raise DataError(
            f"{path} is no text; it may be tokens of 2 bytes without a header, as nanoGPT writes them\n"
            "  the trainer reads GPT-2's as they are: --vocab-size 50304 --train-data "
            + shlex.quote(str(path))
        )


def batches(
    path: Path, label: str, format: str, reading: Reading, after: list | None, document: int
) -> Iterator[Batch]:
    """The file's documents from `after` on, numbered from `document`."""
    reader = READERS[format](path, reading)
    batch: Batch | None = None
    size = 0
    for piece in reader.pieces(after):
        if batch is None:
            batch = Batch(label, reader.unit, reader.json, document, [], [], piece.begins, True, [], 0)
            size = 0
        batch.pieces.append(piece.text)
        batch.places.append(piece.place)
        batch.ends, batch.after, batch.source_bytes = piece.ends, piece.after, piece.source_bytes
        size += len(piece.text or b"")
        if size >= BATCH_BYTES or not piece.ends:
            document += len(batch.pieces) - (not piece.ends)
            yield batch
            batch = None
    if batch:
        yield batch
