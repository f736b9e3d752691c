"""Data sets of a Hugging Face hub: which files, at which revision, with which sha256; then ordinary downloads."""

import fnmatch
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from llmc_data import progress, tokenizer
from llmc_data.download import CUTS, TIMEOUT_S, Download, request_for
from llmc_data.errors import DataError
from llmc_data.shards import write_whole

ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[^:@]+))?(:(?P<pattern>.+))?")
PREFERRED = (".parquet", ".arrow", ".jsonl", ".ndjson", ".txt", ".json")
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "README.txt")
NOT_DATA += ("manifest.json", progress.FILE, tokenizer.FILE, *tokenizer.BESIDE)  # of shards in the folder of their sources
HELD_OUT_NAMES = re.compile(r"(^|[/_.-])(test|valid|validation|val|dev|eval)([/_.-]|$)")


@dataclass(frozen=True)
class HubFile:
    name: str
    size: int | None
    sha256: str | None  # where the hub knows it


class NoListing(Exception):
    """What should be a hub's list of files is something else, such as a proxy's page."""


def refuse_outside(name: str) -> None:
    """A listed name becomes a path below the cache."""
    if name.startswith("/") or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise DataError(
            f"the data set lists a file with the name {name!r}\n"
            "  expected a path below its folder: this hub, or what stands before it, is not to be trusted"
        )


def parse_listing(content: bytes) -> tuple[str, list[HubFile]]:
    """A revision's commit and files, of the hub's reply."""
    try:
        info = json.loads(content)
        files = [
            HubFile(f["rfilename"], f.get("size"), (f.get("lfs") or {}).get("sha256")) for f in info.get("siblings", [])
        ]
        commit = str(info["sha"])
        if not re.fullmatch(r"\w+", commit) or not all(isinstance(file.size, int | None) for file in files):
            raise ValueError
        for file in files:
            refuse_outside(file.name)
        return commit, files
    except (ValueError, TypeError, KeyError, AttributeError):
        raise NoListing(f"no list of a data set's files, but {content[:60].decode(errors='replace')!r}") from None


@dataclass(frozen=True)
class DataSet:
    id: str
    revision: str = "main"
    pattern: str | None = None  # of files

    @classmethod
    def parse(cls, source: str) -> "DataSet | None":
        """OWNER/NAME[@REVISION][:PATTERN]"""
        match = ID.fullmatch(source)
        return match and cls(match["id"], match["revision"] or "main", match["pattern"])

    def address(self) -> str:
        return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")

    def secret(self) -> dict[str, str]:
        token = os.environ.get("HF_TOKEN")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def listing(self, cache: Path) -> tuple[str, list[HubFile]]:
        """The revision's commit and files. Where the hub cannot be reached, as it was the last time."""
        url = (
            f"{self.address()}/api/datasets/{self.id}/revision/{urllib.parse.quote(self.revision, safe='')}?blobs=true"
        )
        kept = cache / "hub" / self.id.replace("/", "--") / f"{urllib.parse.quote(self.revision, safe='')}.json"
        try:
            with urllib.request.urlopen(request_for(url, {}, self.secret()), timeout=TIMEOUT_S) as reply:
                content = reply.read()
            listing = parse_listing(content)
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, content)
            return listing
        except (*CUTS, urllib.error.HTTPError, NoListing) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 or not kept.exists():
                raise DataError(self.unreachable(url, error)) from None
        try:
            return parse_listing(kept.read_bytes())
        except NoListing as error:
            raise DataError(f"{kept}: {error}\n  delete it, and it is asked for again at {url}") from None

    def unreachable(self, url: str, error: Exception) -> str:
        code = getattr(error, "code", None)
        reason = f"{code} {error.reason}" if code else str(getattr(error, "reason", error))
        hint = ""
        if code in (401, 403, 404):
            hint = "\n  (no such data set; or one that needs HF_TOKEN in the environment)"
        include = f" --include '{self.pattern}'" if self.pattern else ""
        return (
            f"data set {self.id}: cannot read {url}: {reason}{hint}\n"
            f"  where the hub can be reached: hf download {self.id} --repo-type dataset{include} --local-dir FOLDER\n"
            "  then give the folder here as a source; or name a mirror with HF_ENDPOINT"
        )

    def chosen(self, files: list[HubFile]) -> list[HubFile]:
        """The files that the pattern matches; without one those of the first format there is, but held-out ones."""
        if self.pattern:
            matching = [f for f in files if fnmatch.fnmatchcase(f.name, self.pattern)]
        else:
            data = [f for f in files if not HELD_OUT_NAMES.search(f.name) and Path(f.name).name not in NOT_DATA]
            kinds = [[f for f in data if f.name.endswith(suffix)] for suffix in PREFERRED]
            matching = next(filter(None, kinds), [])
        if not matching:
            some = "\n    ".join(f.name for f in files[:20])
            raise DataError(
                f"data set {self.id}: no file {f'matches {self.pattern}' if self.pattern else 'of a known format'}\n"
                f"  choose with {self.id}:PATTERN; it has {len(files)} files, such as\n    {some}"
            )
        return sorted(matching, key=lambda f: f.name)

    def fetch(self, cache: Path) -> list[tuple[Path, str, dict]]:
        """Path in the cache, sha256, and what the manifest says of each file."""
        commit, files = self.listing(cache)
        files = self.chosen(files)
        total = sum(f.size or 0 for f in files)
        print(f"{self.id} at {commit[:12]}: {len(files)} files, {total / 1e9:.2f} GB")
        fetched = []
        for file in files:
            url = f"{self.address()}/datasets/{self.id}/resolve/{commit}/{urllib.parse.quote(file.name)}"
            target = cache / "hub" / self.id.replace("/", "--") / commit / file.name
            try:
                digest = Download(url, target, file.sha256, file.size, self.secret()).run()
            except DataError as error:
                raise DataError(f"{error}\n  or fetch it elsewhere and give the file as a source") from None
            fetched.append((target, digest, {"dataset": self.id, "revision": commit, "file": file.name}))
        return fetched
