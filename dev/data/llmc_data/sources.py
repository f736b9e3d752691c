"""What stands on the command line as a source → files, in order."""

import glob
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

from llmc_data.download import download_url
from llmc_data.errors import DataError
from llmc_data.hub import NOT_DATA, DataSet
from llmc_data.readers import FORMATS, format_of, refuse_binary

BUNDLED_TEXT = Path(__file__).parent.parent / "tinyshakespeare.txt"
NAMED_DATA_SETS = {
    "tinystories": "roneneldan/TinyStories:data/train-*.parquet",
    "fineweb-edu": "HuggingFaceFW/fineweb-edu:sample/10BT/*.parquet",
}
SUFFIXES = (*FORMATS, ".txt")
NAMED = 8  # of the files that are left out


@dataclass
class Source:
    path: Path
    format: str
    origin: dict = field(default_factory=dict)  # what the manifest says, in addition to size and sha256
    sha256: str | None = None  # where it is known already
    separator: str | None = None  # of its own: documents of a text
    keep_separator: bool = False

    @property
    def label(self) -> str:
        return str(self.path)


def resolve(arguments: list[str], cache: Path, format: str | None) -> tuple[list[Source], list[str]]:
    """The sources' files, and the names of those that are empty; those of the web are here afterwards."""
    found = [source for argument in arguments for source in files_of(argument, cache, format)]
    sources = [source for source in found if source.path.stat().st_size]
    empty = [source.label for source in found if not source.path.stat().st_size]
    if not sources:
        raise DataError(f"{empty[0]} is empty\n  give another source, or look what became of it")
    for source in sources:
        if source.format in ("text", "jsonl"):
            refuse_binary(source.path)
    return sources, empty


def files_of(argument: str, cache: Path, format: str | None) -> list[Source]:
    path = Path(argument)
    if path.is_file():
        return [local(path, format)]
    if path.is_dir():
        return [local(file, format) for file in files_of_folder(path)]
    if argument == "tinyshakespeare":  # a document for each speech, as in llm.c
        return [Source(BUNDLED_TEXT, "text", {"file": BUNDLED_TEXT.name}, separator="\n\n", keep_separator=True)]
    if argument.startswith(("http://", "https://")):
        url, _, fragment = argument.partition("#")
        path, digest = download_url(url, cache, dict(urllib.parse.parse_qsl(fragment)).get("sha256"))
        return [Source(path, format or format_of(path), {"url": url}, digest)]
    if matches := sorted(glob.glob(argument, recursive=True)):
        return [local(Path(match), format) for match in matches if Path(match).is_file()]
    data_set = DataSet.parse(NAMED_DATA_SETS.get(argument, argument))
    if data_set is None or (path.suffix.lower() in SUFFIXES and not data_set.pattern):
        names = ", ".join(["tinyshakespeare", *NAMED_DATA_SETS])
        raise DataError(
            f"there is no file {argument}\n"
            f"  a source is a file, a folder, a pattern, a URL, a data set OWNER/NAME of the hub, or one of {names}"
        )
    return [Source(path, format or format_of(path), origin, digest) for path, digest, origin in data_set.fetch(cache)]


def local(path: Path, format: str | None) -> Source:
    return Source(path, format or format_of(path), {"file": str(path)})


def files_of_folder(folder: Path) -> list[Path]:
    """All files of a known format below it; what is left out is named."""
    all_files = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in all_files if path.suffix.lower() in SUFFIXES and path.name not in NOT_DATA]
    taken = set(files)
    others = [path.relative_to(folder) for path in all_files if path not in taken]
    others = [path for path in others if not any(part.startswith(".") for part in path.parts)]
    left_out = ", ".join(map(str, others[:NAMED])) + (f" and {len(others) - NAMED} more" if others[NAMED:] else "")
    if not files:
        has = f"\n  it has {left_out}: unpack what is compressed, or name the files" if others else ""
        raise DataError(f"the folder {folder} has no file that ends in {' '.join(SUFFIXES)}{has}")
    if others:
        print(f"{folder}: left out {left_out}: no data by their names; unpack or name what is meant to be read")
    return files
