"""Sources → shards and manifest: batches are read in order, tokenized by several processes, written in order."""

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

from llmc_data import manifest, progress, template
from llmc_data.counts import Counts
from llmc_data.encode import Encoded, Encoding, encode, start_worker
from llmc_data.errors import DataError
from llmc_data.links import own_file
from llmc_data.readers import Batch, Reading, batches
from llmc_data.shards import layout_for, sha256_of, write_whole
from llmc_data.sources import Source
from llmc_data.split import HELD_OUT, TRAIN, SplitWriter
from llmc_data.tokenizer import BESIDE, TEMPLATE_FILE, ByteTokenizer, Tokenizer
from llmc_data.tokenizer import FILE as TOKENIZER_FILE
from llmc_data.unchanged import BytesRead

WARNINGS = 5  # of a kind that are printed; the rest is counted
ALL_BAD = 1000  # rows, none of them good: the wrong field or file
LARGE_BYTES = 200_000_000  # for a document that is tokenized whole
MEMORY_PER_BYTE = 150  # of it, measured with a vocabulary of 800; large vocabularies need less


@dataclass
class Conversion:
    """A command, resolved: what is converted, how, and into which folder."""

    sources: list[Source]
    empty: list[str]  # sources that have no byte
    reading: Reading
    encoding: Encoding
    tokenizer: ByteTokenizer | Tokenizer
    folder: Path
    name: str
    shard_tokens: int
    processes: int
    save_every: float  # seconds
    command: dict  # what decides about the bytes, for progress and manifest

    def __post_init__(self):
        self.layout = layout_for(self.tokenizer.vocabulary)
        self.writers = {
            split: SplitWriter(self.folder, self.name, split, self.layout, self.shard_tokens, self.encoding.masked)
            for split in (HELD_OUT, TRAIN)
        }
        self.bytes_read, self.source_bytes = BytesRead(self.sources), 0
        self.sizes = [source.path.stat().st_size for source in self.sources]

    def run(self) -> dict:
        """Writes what is missing. Returns the manifest."""
        self.progress = progress.load(self.folder, self.command) or progress.Progress(self.command)
        if self.progress.read:
            self.bytes_read.restore(self.progress.read)
            self.source_bytes = self.progress.read["bytes"]
        for split, saved in self.progress.splits.items():
            self.writers[split].restore(saved)
        self.counts = Counts(**self.progress.counts)
        self.note_large_documents()
        with ThreadPoolExecutor(1) as pool:
            digests = [pool.submit(sha256_of, s.path) for s in self.sources if s.sha256 is None]
            self.convert()
            digests = iter(digests)
            sources = [manifest.describe_source(s, s.sha256 or next(digests).result()) for s in self.sources]
        return self.finish(sources)

    def convert(self) -> None:
        self.saved_at = time.monotonic()
        self.warned = {"replaced": 0, "skipped": 0}
        self.meter = progress.Meter(sum(self.sizes), self.bytes_before(self.progress.source))
        try:
            for source, batch, encoded in in_order(self.batches(), self.encoding, self.processes):
                self.take(source, batch, encoded)
        finally:
            self.meter.close()

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """From where the progress stands."""
        after, document = self.progress.after, self.progress.document
        for number in range(self.progress.source, len(self.sources)):
            source = self.sources[number]
            for batch in batches(source.path, source.label, source.format, self.reading_of(source), after, document):
                document = batch.first_document + len(batch.pieces) - (not batch.ends)
                yield number, batch
            after = None

    def reading_of(self, source: Source) -> Reading:
        """A source's own separator counts where the command names none."""
        if self.reading.separator is not None or source.separator is None:
            return self.reading
        own = {"separator": source.separator.encode(), "keep_separator": source.keep_separator}
        return Reading(**vars(self.reading) | own)

    def take(self, source: int, batch: Batch, encoded: Encoded) -> None:
        """Appends a batch's tokens; the progress is then after it."""
        complete = [self.writers[split].append(part) for split, part in encoded.splits.items()]
        here = self.progress
        here.source, here.after, self.source_bytes = source, batch.after, batch.source_bytes
        here.document = batch.first_document + len(batch.pieces) - (not batch.ends)
        here.replaced += encoded.replaced
        self.counts.add(encoded.counts)
        here.counts = asdict(self.counts)
        self.refuse_bad_rows(at_end=False)
        if any(complete) or time.monotonic() - self.saved_at >= self.save_every:
            self.save()
        self.warn("replaced", [f"{warning}: replaced by U+FFFD" for warning in encoded.warnings])
        self.warn("skipped", [f"{error}\n  the row is skipped" for error in encoded.bad_rows])
        parts = encoded.splits.values()
        tokens = sum(len(part.tokens) for part in parts) // self.layout.width
        done = self.bytes_before(source) + batch.source_bytes
        self.meter.update(done, sum(part.text_bytes for part in parts), tokens)

    def warn(self, kind: str, warnings: list[str]) -> None:
        for warning in warnings[: max(0, WARNINGS - self.warned[kind])]:
            self.meter.warn(warning)
        self.warned[kind] += len(warnings)

    def refuse_bad_rows(self, at_end: bool) -> None:
        """If more than half of the rows are bad, or many and none of them good, something else is wrong."""
        bad, rows = self.counts.bad, self.counts.rows
        if bad and (2 * bad > rows if at_end else bad == rows >= ALL_BAD):
            those = "the only row is" if rows == 1 else f"{bad} of {rows} rows are"
            raise DataError(
                f"{self.counts.first_bad}\n  {those} bad: is this the right file, and the right --text-field?"
            )

    def save(self) -> None:
        """First the tokens are on disk, then the progress says so, then complete shards get their names."""
        self.bytes_read.advance(self.progress.source, self.source_bytes)
        self.progress.read = self.bytes_read.saved()
        self.progress.splits = {split: writer.save() for split, writer in self.writers.items()}
        self.progress.save(self.folder)
        for writer in self.writers.values():
            writer.publish()
        self.saved_at = time.monotonic()

    def finish(self, sources: list[dict]) -> dict:
        for writer in self.writers.values():
            writer.finish_shard()
        self.refuse_bad_rows(at_end=True)
        if not any(writer.tokens for writer in self.writers.values()):
            raise DataError(f"no document in {', '.join(source.label for source in self.sources)}")
        self.save()
        for name, content in self.files_beside().items():
            write_whole(self.folder / name, content)
        content = manifest.make(
            self.command,
            self.layout,
            manifest.describe_tokenizer(self.tokenizer),
            sources,
            list(self.writers.values()),
            self.progress.replaced,
        )
        content |= self.described_counts()
        manifest.write(self.folder, content)
        (self.folder / progress.FILE).unlink()
        return content

    def described_counts(self) -> dict:
        """What the manifest says of rows, and of the chats."""
        spelt = {"count": self.counts.spelt, "first": self.counts.first_spelt}
        content = {"rows": self.counts.describe(), "empty_files": self.empty, "special_tokens_spelt": spelt}
        if self.encoding.template:
            content["chat"] = {"template": TEMPLATE_FILE, "end_of_turn": self.counts.end_of_turn()}
        return content

    def files_beside(self) -> dict[str, bytes]:
        """The tokenizer's files, for the shards' folder; with --chat the template that rendered the conversations."""
        if self.tokenizer.path is None:
            return {}
        path = self.tokenizer.path
        files = {TOKENIZER_FILE: own_file(path) if path.name == TOKENIZER_FILE else path} | {
            path.name: path for path in self.tokenizer.files
        }
        files = {name: path.read_bytes() for name, path in files.items()}
        chat = self.encoding.template
        return files | (template.files_beside(chat[0], self.tokenizer) if chat else {})

    def refuse_foreign_files(self) -> None:
        """What another tokenizer or model left in the folder is not overwritten, nor are shards added to it."""
        files = self.files_beside()
        for name in (TOKENIZER_FILE, *BESIDE):
            path = self.folder / name
            if path.exists() and path.read_bytes() != files.get(name):
                raise DataError(f"{path} is there already, from elsewhere\n  give another --out, or remove it")

    def bytes_before(self, source: int) -> int:
        return sum(self.sizes[:source])

    def note_large_documents(self) -> None:
        for source, size in zip(self.sources, self.sizes, strict=True):
            reading = self.reading_of(source)
            if source.format == "text" and not reading.separator and not reading.cut and size > LARGE_BYTES:
                print(
                    f"{source.label}: one document of {size / 1e6:.0f} MB, tokenized whole: that takes about"
                    f" {size * MEMORY_PER_BYTE / 1e9:.0f} GB of memory\n  for less, say what separates its documents:"
                    " --document-separator"
                )


def submit(pool: ProcessPoolExecutor, batch: Batch) -> Future[Encoded]:
    """May start a process, which leaves Ctrl-C to this one from its beginning: it inherits what is blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(encode, batch)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def in_order(batches: Iterator, encoding: Encoding, processes: int) -> Iterator[tuple[int, Batch, Encoded]]:
    """Each batch with its tokens. No more are under way than keep all processes busy."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, start_worker, (encoding,)) as pool:
        waiting = deque()
        try:
            for source, batch in batches:
                waiting.append((source, batch, submit(pool, batch)))
                if len(waiting) > 2 * processes:
                    source, batch, encoded = waiting.popleft()
                    yield source, batch, encoded.result()
            while waiting:
                source, batch, encoded = waiting.popleft()
                yield source, batch, encoded.result()
        except BrokenProcessPool:
            raise DataError(
                "a process that tokenizes was ended from outside, perhaps for want of memory\n"
                "  the same command goes on from here; with fewer --processes it needs less"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
