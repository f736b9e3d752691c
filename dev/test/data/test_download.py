"""Downloads from a server of our own that cuts connections, ignores ranges, changes files, and plays a hub."""

import contextlib
import json
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import manifest_of, prepare, sha256, shards_of, some_documents, write_jsonl


class Server(ThreadingHTTPServer):
    """Serves `files`; each request for a file is cut after `cut` bytes as long as `cuts` lasts."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts, self.cut = 0, 0
        self.ranges = True
        self.validators = True
        self.failures = 0  # replies of 503 before the first good one
        self.held: threading.Event | None = None  # until it is set, no more than half a file is sent
        self.requests: list[tuple[str, str | None, str | None]] = []  # path, Range, Authorization
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        path = self.path.partition("?")[0]
        server.requests.append((path, wanted, self.headers.get("Authorization")))
        if server.failures:
            server.failures -= 1
            return self.send_error(503)
        if path not in server.files:
            return self.send_error(404)
        content = server.files[path]
        if content.startswith(b"-> "):
            self.send_response(302)
            self.send_header("Location", content[3:].decode())
            self.send_header("Content-Length", "0")
            return self.end_headers()
        tag = f'"{sha256(content)[:8]}"'
        start = 0
        if wanted and server.ranges and self.headers.get("If-Range", tag) == tag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if wanted and start >= len(content) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        if server.validators:
            self.send_header("ETag", tag)
        self.end_headers()
        end = len(content)
        if server.cuts and path.rpartition("/")[2] != "main":
            server.cuts -= 1
            end = min(end, start + server.cut)
        with contextlib.suppress(OSError):
            if server.held:
                middle = (start + end) // 2
                self.wfile.write(content[start:middle])
                server.held.wait(60)
                start = middle
            self.wfile.write(content[start:end])
            self.wfile.flush()
            if end < len(content):
                self.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server():
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def jsonl(tmp_path) -> bytes:
    return write_jsonl(tmp_path / "original.jsonl", some_documents(6000)).read_bytes()


@pytest.fixture
def fetch(server, tmp_path):
    """Runs prepare on sources of the server."""

    def run(*sources, code=0, out="o", stdout=subprocess.PIPE, **environment):
        environment = {"LLMC_DATA_CACHE": str(tmp_path / "cache"), "LLMC_DATA_RETRY_S": "0.01", "no_proxy": "127.0.0.1",
                       "HF_ENDPOINT": server.address, "HF_TOKEN": "", **environment}  # fmt: skip
        arguments = (*sources, "--out", tmp_path / out, "--name", "x", "--processes", 1)
        return prepare(*arguments, code=code, env=environment, stdout=stdout)

    return run


@pytest.fixture
def expected(jsonl, tmp_path) -> dict[str, bytes]:
    prepare(tmp_path / "original.jsonl", "--out", tmp_path / "local", "--name", "x", "--processes", 1)
    return shards_of(tmp_path / "local")


@pytest.mark.parametrize("validators", [True, False])
def test_cuts_are_survived(server, fetch, jsonl, expected, validators, tmp_path):
    server.files["/d.jsonl"], server.cuts, server.cut, server.validators = jsonl, 9, 100_000, validators
    fetch(f"{server.address}/d.jsonl")
    assert shards_of(tmp_path / "o") == expected
    assert [wanted for _, wanted, _ in server.requests] == [None] + [f"bytes={n * 100_000}-" for n in range(1, 10)]
    [source] = manifest_of(tmp_path / "o")["sources"]
    assert source == {"url": f"{server.address}/d.jsonl", "bytes": len(jsonl), "sha256": sha256(jsonl)}
    fetch(f"{server.address}/d.jsonl", out="p")
    assert len(server.requests) == 10, "a complete file is fetched again"


def test_server_that_ignores_ranges(server, fetch, jsonl, expected, tmp_path):
    server.files["/d.jsonl"], server.cuts, server.cut, server.ranges = jsonl, 4, 100_000, False
    fetch(f"{server.address}/d.jsonl")
    assert shards_of(tmp_path / "o") == expected and len(server.requests) == 5
    server.cuts, server.requests = 10**6, []
    url = f"{server.address}/d.jsonl#sha256={sha256(jsonl)}"
    refused = fetch(url, out="p", LLMC_DATA_CACHE=str(tmp_path / "c"), code=1)
    assert "cut after 100000 of" in refused.stderr and "goes on from there" in refused.stderr
    assert len(server.requests) < 12


def test_next_run_goes_on(server, fetch, jsonl, expected, tmp_path):
    server.files["/d.jsonl"], server.cuts, server.cut = jsonl, 10**6, 200_000
    # Cut once, then refused until the first run gives up.
    with when_asked(server, 2, lambda: setattr(server, "failures", 10**6)):
        fetch(f"{server.address}/d.jsonl", code=1)
    server.failures, server.cuts, server.requests = 0, 0, []
    fetch(f"{server.address}/d.jsonl")
    assert len(server.requests) == 1 and int(server.requests[0][1].strip("bytes=-")) >= 200_000
    assert shards_of(tmp_path / "o") == expected


def wait_for(server, requests):
    while len(server.requests) < requests:
        time.sleep(0.001)


@contextlib.contextmanager
def when_asked(server, requests, change):
    """Does something once the server has had so many requests."""
    thread = threading.Thread(target=lambda: (wait_for(server, requests), change()))
    thread.start()
    yield
    thread.join()


def test_file_that_changes_meanwhile(server, fetch, jsonl, expected, tmp_path):
    """What was fetched of the older version is not kept."""
    server.files["/d.jsonl"], server.cuts, server.cut = b"x" * len(jsonl), 1, 100_000
    with when_asked(server, 1, lambda: server.files.update({"/d.jsonl": jsonl})):
        fetch(f"{server.address}/d.jsonl")
    assert shards_of(tmp_path / "o") == expected


def test_sha256(server, fetch, jsonl, expected, tmp_path):
    server.files["/d.jsonl"], server.failures = jsonl, 3
    refused = fetch(f"{server.address}/d.jsonl#sha256={'0' * 64}", code=1)
    assert f"sha256 {sha256(jsonl)}\n  expected {'0' * 64}" in refused.stderr
    assert not list((tmp_path / "cache").rglob("d.jsonl*"))
    fetch(f"{server.address}/d.jsonl#sha256={sha256(jsonl).upper()}")
    assert shards_of(tmp_path / "o") == expected
    refused = fetch(f"{server.address}/none.jsonl", code=1)
    assert "404 Not Found" in refused.stderr and "give the file as a source" in refused.stderr


def test_sha256_of_a_file_in_the_cache(server, fetch, jsonl, tmp_path):
    server.files["/d.jsonl"], url = jsonl, f"{server.address}/d.jsonl"
    fetch(url)
    [cached] = (tmp_path / "cache").rglob("d.jsonl")
    refused = fetch(f"{url}#sha256={'0' * 64}", out="p", code=1).stderr
    assert f"{cached}: sha256 {sha256(jsonl)}\n  expected {'0' * 64}" in refused
    assert "delete the file to fetch it again, or correct" in refused and not (tmp_path / "p").exists()
    fetch(f"{url}#sha256={sha256(jsonl)}", out="q")
    # Without a wish, the manifest has the sha256 of what was read.
    cached.write_bytes(jsonl[: jsonl.index(b"\n") + 1])
    fetch(url, out="r")
    [source] = manifest_of(tmp_path / "r")["sources"]
    assert source["sha256"] == sha256(cached.read_bytes()) and len(server.requests) == 1


def test_two_that_fetch_the_same(server, fetch, jsonl, expected, tmp_path):
    """The second one waits for the first, and takes what that fetched."""
    server.files["/d.jsonl"], server.held = jsonl, threading.Event()
    said = tmp_path / "said"

    def second():
        wait_for(server, 1)
        with open(said, "w") as file:
            fetch(f"{server.address}/d.jsonl", out="p", stdout=file)

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(fetch, f"{server.address}/d.jsonl"), pool.submit(second)]
        deadline = time.monotonic() + 60
        while len(server.requests) < 2 and time.monotonic() < deadline:
            if said.exists() and "another process is fetching it" in said.read_text():
                break
            time.sleep(0.01)
        server.held.set()
        for one in both:
            one.result()
    assert len(server.requests) == 1
    assert shards_of(tmp_path / "o") == shards_of(tmp_path / "p") == expected


def hub(server, jsonl: bytes) -> None:
    """A data set of two files in the hub's form, one of them held out; files come from another address."""
    half = jsonl.index(b"\n", len(jsonl) // 2) + 1
    parts = {"train-0": jsonl[:half], "train-1": jsonl[half:], "test-0": b'{"text":"no"}\n'}
    siblings = [{"rfilename": name, "size": 2} for name in ("README.md", "dataset_infos.json")]
    for part, content in parts.items():
        name, lfs = f"data/{part}.jsonl", {"size": len(content), "sha256": sha256(content)}
        siblings.append({"rfilename": name, "size": len(content), "lfs": lfs})
        other = server.address.replace("127.0.0.1", "localhost")
        server.files[f"/datasets/some/text/resolve/c0ffee/{name}"] = f"-> {other}/cdn/{name}".encode()
        server.files[f"/cdn/{name}"] = content
    server.files["/api/datasets/some/text/revision/main"] = json.dumps({"sha": "c0ffee", "siblings": siblings}).encode()


def test_hub(server, fetch, jsonl, expected, tmp_path):
    hub(server, jsonl)
    server.cuts, server.cut = 12, 60_000
    fetch("some/text", HF_TOKEN="secret")
    assert shards_of(tmp_path / "o") == expected
    assert sum(path.startswith("/cdn") and wanted is not None for path, wanted, _ in server.requests) >= 6
    for path, _, authorization in server.requests:
        assert authorization == (None if path.startswith("/cdn") else "Bearer secret"), path
    sources = manifest_of(tmp_path / "o")["sources"]
    assert [s["file"] for s in sources] == ["data/train-0.jsonl", "data/train-1.jsonl"]
    assert all(s["dataset"] == "some/text" and s["revision"] == "c0ffee" for s in sources)
    # A pattern chooses files; without the hub, what is in the cache serves.
    fetch("some/text@main:data/test-*.jsonl", out="p")
    assert manifest_of(tmp_path / "p")["splits"]["train"]["documents"] == 1
    fetch("some/text", out="q", HF_ENDPOINT="http://127.0.0.1:9")
    assert shards_of(tmp_path / "q") == expected


def test_hub_that_does_not_answer(server, fetch, jsonl, tmp_path):
    refused = fetch("fineweb-edu", HF_ENDPOINT="http://127.0.0.1:9", code=1).stderr
    assert "HuggingFaceFW/fineweb-edu" in refused and "Connection refused" in refused
    assert "--include 'sample/10BT/*.parquet'" in refused and "give the folder here" in refused
    assert "404" in fetch("some/other", code=1).stderr
    hub(server, jsonl)
    assert "no file matches data/*.parquet" in fetch("some/text:data/*.parquet", code=1).stderr
    server.files["/cdn/data/train-1.jsonl"] = b"damaged" * 100
    assert "size 700\n  expected" in fetch("some/text", code=1).stderr
    assert not (tmp_path / "o").exists()


def test_hub_that_lists_other_places(server, fetch, jsonl, tmp_path):
    """Names of a list become paths: none outside of the cache."""
    address = "/api/datasets/some/text/revision/main"
    for name in ("../../../stolen.jsonl", "/tmp/stolen.jsonl", "data/../../stolen.jsonl", "data//stolen.jsonl", "a\0.jsonl", ""):
        hub(server, jsonl)
        listing = json.loads(server.files[address])
        listing["siblings"].append({"rfilename": name, "size": 4})
        server.files[address] = json.dumps(listing).encode()
        assert f"lists a file with the name {name!r}" in fetch("some/text", code=1).stderr
    for wrong in ({"sha": "../x"}, {"siblings": [{"rfilename": "a.jsonl", "size": "4"}]}, {"siblings": [{"rfilename": 4}]}):
        hub(server, jsonl)
        server.files[address] = json.dumps(json.loads(server.files[address]) | wrong).encode()
        assert "no list of a data set's files" in fetch("some/text", code=1).stderr
    assert not list(tmp_path.rglob("*stolen*")) and not (tmp_path / "o").exists()


def test_hub_that_answers_with_a_page(server, fetch, jsonl, expected, tmp_path):
    """As a proxy does: it says so, it is not kept, and what is in the cache serves."""
    address = "/api/datasets/some/text/revision/main"
    hub(server, jsonl)
    for page in (b"<html>Sign in", b"[1]", b'{"siblings": []}', b'{"sha": "c0ffee", "siblings": [3]}'):
        good, server.files[address] = server.files[address], page
        refused = fetch("some/text", code=1).stderr
        assert f"cannot read {server.address}{address}?blobs=true: no list of a data set's files, but " in refused
        assert str(page)[1:] in refused
        assert "HF_ENDPOINT" in refused and not list((tmp_path / "cache").rglob("main.json"))
        server.files[address] = good
    fetch("some/text")
    server.files[address] = b"<html>Sign in"
    fetch("some/text", out="p")
    assert shards_of(tmp_path / "o") == shards_of(tmp_path / "p") == expected
    [kept] = (tmp_path / "cache").rglob("main.json")
    kept.write_bytes(b"")
    assert f"{kept}: no list of a data set's files, but ''\n  delete it" in fetch("some/text", code=1, out="q").stderr
