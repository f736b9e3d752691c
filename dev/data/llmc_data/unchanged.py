"""Whether sources are as they were, by checksums: sizes do not tell. A command goes on from the same bytes only."""

import hashlib
from pathlib import Path

from llmc_data.errors import DataError
from llmc_data.shards import READ_BYTES, sha256_of
from llmc_data.sources import Source


class BytesRead:
    """The sources' bytes up to where a command has read: whole files, and the beginning of one."""

    def __init__(self, sources: list[Source]):
        self.sources = sources
        self.complete: list[str] = []
        self.begun, self.bytes = hashlib.sha256(), 0

    def advance(self, source: int, size: int) -> None:
        """To the first `size` bytes of this source; all before it are complete."""
        while len(self.complete) < source:
            here = self.sources[len(self.complete)]
            if here.sha256 is None:
                self.read(here.path, here.path.stat().st_size)
            self.complete.append(here.sha256 or self.begun.hexdigest())
            self.begun, self.bytes = hashlib.sha256(), 0
        if self.sources[source].sha256 is None:
            self.read(self.sources[source].path, size)

    def read(self, path: Path, size: int) -> None:
        with open(path, "rb") as file:
            file.seek(self.bytes)
            while self.bytes < size and (chunk := file.read(min(READ_BYTES, size - self.bytes))):
                self.begun.update(chunk)
                self.bytes += len(chunk)

    def saved(self) -> dict:
        return {"complete": self.complete, "bytes": self.bytes, "begun": self.begun.hexdigest()}

    def restore(self, saved: dict) -> None:
        """Fails if what was read is not what is there."""
        self.advance(len(saved["complete"]), saved["bytes"])
        digests = zip([*self.complete, self.begun.hexdigest()], [*saved["complete"], saved["begun"]], strict=True)
        for source, (here, there) in zip(self.sources, digests, strict=False):
            if here != there:
                raise DataError(
                    f"{source.label} changed after this command had read of it, though its size did not\n"
                    "  --restart deletes what was written and begins anew; or give another --out"
                )


def refuse_changed(folder: Path, content: dict, sources: list[Source]) -> None:
    """The shards that are complete there were made of these sources."""
    for source, described in zip(sources, content["sources"], strict=True):
        if (source.sha256 or sha256_of(source.path)) != described["sha256"]:
            raise DataError(
                f"{source.label} changed after the shards in {folder} were made of it, though its size did not\n"
                "  --restart deletes them and begins anew; or give another --out"
            )
