"""Downloads that go on after a cut, and end complete and verified or not at all."""

import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from llmc_data.errors import DataError
from llmc_data.shards import sha256_of, sync_folder, write_all

ATTEMPTS = 6  # in a row that bring nothing new
RETRY_S = float(os.environ.get("LLMC_DATA_RETRY_S", 1))  # before the second attempt; then twice as long each time
TIMEOUT_S = 60
READ_BYTES = 1 << 18
USER_AGENT = {"User-Agent": "train_llama-data"}
CUTS = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, urllib.error.URLError)


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LLMC_DATA_CACHE") or Path(root) / "train_llama" / "data")


def request_for(url: str, headers: Mapping[str, str], secret: Mapping[str, str]) -> urllib.request.Request:
    """Secret headers do not follow a redirect to another host."""
    request = urllib.request.Request(url, headers={**USER_AGENT, **headers})
    for name, value in secret.items():
        request.add_unredirected_header(name, value)
    return request


@dataclass
class Download:
    """A file that is fetched to `target`, through target.partial; target.version says what that is a part of."""

    url: str
    target: Path
    sha256: str | None = None
    size: int | None = None
    secret: Mapping[str, str] = None  # headers, as a token

    def run(self) -> str:
        """Returns the sha256 of what is at target now. A complete file is not fetched again, but looked at."""
        if not self.target.exists():
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with self.alone():
                if not self.target.exists():
                    return self.fetch_whole()
        sha256, wrong = self.digest_and_difference(self.target)
        if wrong:
            raise DataError(
                f"{self.target}: {wrong}: the file, fetched earlier, is damaged, or the {wrong.split()[0]} asked for is"
                " another file's\n  delete the file to fetch it again, or correct what is asked for"
            )
        return sha256

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One process at a time fetches a target; another one that wants it waits, and finds it."""
        with open(self.target.with_name(f".{self.target.name}.lock"), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{self.url}: another process is fetching it; waiting for that", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def fetch_whole(self) -> str:
        """What comes is verified, and gets its name only then. Returns its sha256."""
        self.fetch()
        sha256, wrong = self.digest_and_difference(self.partial)
        if wrong:
            self.partial.unlink()
            self.version_file.unlink(missing_ok=True)
            raise DataError(f"{self.url}: {wrong}: damaged on the way, or changed there")
        os.replace(self.partial, self.target)
        self.version_file.unlink(missing_ok=True)
        sync_folder(self.target.parent)
        return sha256

    @property
    def partial(self) -> Path:
        return self.target.with_name(self.target.name + ".partial")

    @property
    def version_file(self) -> Path:
        return self.target.with_name(self.target.name + ".version")

    def have(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def fetch(self) -> None:
        """Tries until all is here, or until several attempts in a row brought nothing new."""
        most, failures = self.have(), 0
        while True:
            try:
                with tqdm(unit="B", unit_scale=True, desc=self.target.name, disable=None, leave=False) as bar:
                    return self.attempt(bar)
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code not in (408, 429):
                    raise DataError(f"{self.url}: {error.code} {error.reason}") from None
                problem = f"{error.code} {error.reason}"
            except CUTS as error:
                problem = str(getattr(error, "reason", error)) or type(error).__name__
            failures = 0 if self.have() > most else failures + 1
            most = max(most, self.have())
            if failures >= ATTEMPTS:
                raise DataError(
                    f"{self.url}: {problem}\n  {most} bytes are in {self.partial}; the same command goes on from there"
                )
            time.sleep(min(30, 2**failures) * RETRY_S if failures else 0)

    def attempt(self, bar: tqdm) -> None:
        """One request: what is missing, if the server has the same version and understands ranges, else all of it."""
        have, version = self.have(), self.read_version()
        headers = {"Range": f"bytes={have}-"} if have and version else {}
        if headers and version["validator"]:
            headers["If-Range"] = version["validator"]
        try:
            reply = urllib.request.urlopen(request_for(self.url, headers, self.secret or {}), timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code == 416 and have == version.get("size"):
                return
            if error.code == 416:
                self.partial.unlink()
                raise ConnectionError("the server has another file now") from None
            raise
        with reply, open(self.partial, "ab" if reply.status == 206 else "wb", buffering=0) as file:
            start = have if reply.status == 206 else 0
            size = self.whole_size(reply, start)
            if start and size != version["size"]:
                self.version_file.unlink()
                raise ConnectionError("the server has another file now")
            self.version_file.write_text(json.dumps({"validator": validator_of(reply), "size": size}))
            bar.total, bar.n = size, start
            while chunk := reply.read(READ_BYTES):
                write_all(file, chunk, self.partial)
                bar.update(len(chunk))
            os.fsync(file.fileno())
        if size is not None and self.have() < size:
            raise ConnectionError(f"the connection was cut after {self.have()} of {size} bytes")

    def whole_size(self, reply, start: int) -> int | None:
        """Of the whole file, as the reply says."""
        if reply.status == 206:
            first, _, whole = reply.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            if first.partition("-")[0] != str(start):
                raise DataError(
                    f"{self.url}: asked for bytes from {start}, the reply begins at {first or 'an unknown one'}"
                )
            return int(whole) if whole.isdigit() else None
        length = reply.headers.get("Content-Length", "")
        return int(length) if length.isdigit() else self.size

    def read_version(self) -> dict:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self.version_file.read_text())
        return {}

    def digest_and_difference(self, path: Path) -> tuple[str, str | None]:
        """The sha256 of the file, and what is not as it was asked for."""
        sha256 = sha256_of(path)
        for what, expected, found in (("size", self.size, path.stat().st_size), ("sha256", self.sha256, sha256)):
            if expected is not None and found != expected:
                return sha256, f"{what} {found}\n  expected {expected}"
        return sha256, None


def validator_of(reply) -> str:
    """What If-Range takes: a strong ETag, or a date."""
    tag = reply.headers.get("ETag") or "W/"
    return reply.headers.get("Last-Modified") or "" if tag.startswith("W/") else tag


def download_url(url: str, cache: Path, sha256: str | None = None) -> tuple[Path, str]:
    """A file of the web, in the cache under a name of its own. Returns its path and sha256."""
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name or "download"
    target = cache / "urls" / hashlib.sha256(url.encode()).hexdigest()[:16] / name
    try:
        return target, Download(url, target, sha256 and sha256.lower()).run()
    except DataError as error:
        raise DataError(f"{error}\n  or fetch it elsewhere and give the file as a source") from None
