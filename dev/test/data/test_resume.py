"""Killed at any moment, the same command goes on, and leaves the bytes of a run that nobody killed."""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import PREPARE, ROOT, files_of, prepare, refusal, shards_of, some_documents, write_jsonl
from llmc_data import cuts, readers

KILLS = 20


@pytest.fixture(scope="module")
def arguments(gpt2, tmp_path_factory) -> list:
    """Many batches and shards of every kind of source; progress is saved after each batch."""
    folder, documents = tmp_path_factory.mktemp("sources"), some_documents(15_000, seed=3)
    jsonl = write_jsonl(folder / "1.jsonl", documents[:4000])
    pq.write_table(pa.table({"text": documents[4000:8000]}), folder / "2.parquet", row_group_size=3000)
    with pa.ipc.new_stream(str(folder / "3.arrow"), pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": documents[8000:12_000]}), max_chunksize=1000)
    (folder / "4.txt").write_bytes("\n".join(documents[12_000:]).encode())
    options = ["--tokenizer", gpt2, "--shard-tokens", 50_000, "--val-fraction", 0.1, "--save-every", 0, "--name", "x"]
    return [jsonl, folder / "2.parquet", folder / "3.arrow", folder / "4.txt", *options, "--processes", 2]


@pytest.fixture(scope="module")
def unkilled(arguments, tmp_path_factory) -> tuple[dict[str, bytes], float]:
    folder, begin = tmp_path_factory.mktemp("unkilled"), time.monotonic()
    prepare(*arguments, "--out", folder)
    seconds = time.monotonic() - begin
    assert len(shards_of(folder)) > 20
    return files_of(folder), seconds


@pytest.mark.parametrize("number", range(4))
def test_reading_goes_on_behind_any_piece(number, arguments, monkeypatch):
    """In each kind of source; the long text is cut into pieces."""
    monkeypatch.setattr(readers, "BATCH_BYTES", 3000)
    monkeypatch.setattr(readers, "READ_BYTES", 5000)
    reading = readers.Reading(cut=re.compile(cuts.AFTER_A_LINE))
    path = arguments[number]
    pieces = list(readers.READERS[readers.format_of(path)](path, reading).pieces(None))
    assert len(pieces) > 100
    for n in [0, 1, 2, *random.Random(number).sample(range(len(pieces)), 25), len(pieces) - 1]:
        after = json.loads(json.dumps(pieces[n].after))
        assert list(readers.READERS[readers.format_of(path)](path, reading).pieces(after)) == pieces[n + 1 :]


def start(arguments, folder, stderr=subprocess.DEVNULL) -> subprocess.Popen:
    environment = os.environ | {"LLMC_DATA_PYTHON": sys.executable}
    command = [str(argument) for argument in (PREPARE, *arguments, "--out", folder)]
    return subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=stderr)


def processes_of(group: int) -> list[str]:
    """Commands of a process group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def only_complete(folder: Path, expected: dict[str, bytes]) -> None:
    """What has a final name is complete."""
    for name, content in shards_of(folder).items():
        assert content == expected[name], name


def kill(running: subprocess.Popen, number: signal.Signals = signal.SIGKILL) -> None:
    os.killpg(running.pid, number)
    if number == signal.SIGKILL:
        running.wait()


def wait_until(holds, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)


def several_at_once(check, cases) -> list:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(check, cases))


def test_killed_at_random_moments(arguments, unkilled, tmp_path):
    """Half of them counted from the start, half from the first progress, however slow the machine is."""
    expected, seconds = unkilled
    rng = random.Random(7)

    def kill_and_go_on(case: tuple[int, float]) -> bool:
        number, moment = case
        folder = tmp_path / str(number)
        running = start(arguments, folder)
        if number % 2:
            wait_until(lambda: (folder / "progress.json").exists() or running.poll() is not None)
        time.sleep(moment * seconds / (3 if number % 2 else 1))
        kill(running)
        resumed = (folder / "progress.json").exists()
        if folder.exists():
            only_complete(folder, expected)
        prepare(*arguments, "--out", folder)
        assert files_of(folder) == expected
        shutil.rmtree(folder)
        return resumed

    resumed = several_at_once(kill_and_go_on, [(n, rng.uniform(0, 1.2)) for n in range(KILLS)])
    assert sum(resumed) >= KILLS // 4, "most kills came before any progress, or after the end: nothing was resumed"


def test_killed_again_and_again(arguments, unkilled, tmp_path):
    """One folder, until it is complete; each run may last a little longer, so that it comes to an end."""
    expected, seconds = unkilled
    rng, kills = random.Random(8), 0
    while not (tmp_path / "manifest.json").exists():
        running = start(arguments, tmp_path)
        time.sleep(rng.uniform(0.3, 0.5) * seconds * 1.1**kills)
        kill(running)
        only_complete(tmp_path, expected)
        kills += 1
        assert kills < 60
    prepare(*arguments, "--out", tmp_path)
    assert kills > 1 and files_of(tmp_path) == expected


DRIVER = """
import os, signal as signals, sys
from pathlib import Path

def counted(function):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal)
        return function(*arguments, **options)
    return call

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    signals.signal(signals.SIGINT, signals.default_int_handler)  # a shell's background jobs ignore it
    signal, last, calls = int(sys.argv[2]), int(sys.argv[3]), 0
    sys.argv = ["prepare", *sys.argv[4:]]
    from llmc_data import errors, prepare
    for name in ("fsync", "replace"):
        setattr(os, name, counted(getattr(os, name)))
    Path.unlink = counted(Path.unlink)
    code = errors.exit_code("prepare", prepare.main)
    print("steps:", calls)
    sys.exit(code)
"""


def driven(folder: Path, number: signal.Signals, step: int, *arguments) -> subprocess.CompletedProcess:
    """prepare, which gets a signal before a step on the disk."""
    (folder / "driver.py").write_text(DRIVER)
    command = [sys.executable, folder / "driver.py", ROOT / "dev/data", int(number), step, *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("number, every, last_every", [(signal.SIGKILL, 3, 1), (signal.SIGINT, 5, 2)])
def test_stopped_before_a_step_on_the_disk(number, every, last_every, gpt2, tmp_path):
    """Before an fsync, rename or deletion: every third one, the last ones all; for Ctrl-C fewer."""
    source = write_jsonl(tmp_path / "d.jsonl", some_documents(3500))
    options = ["--shard-tokens", 150_000, "--val-fraction", 0.1, "--save-every", 0, "--processes", 1]
    arguments = [source, "--tokenizer", gpt2, *options, "--out"]
    steps = int(driven(tmp_path, number, 0, *arguments, tmp_path / "expected").stdout.split("steps:")[1])
    expected = files_of(tmp_path / "expected")

    def stop_and_go_on(step: int) -> None:
        folder = tmp_path / str(step)
        stopped = driven(tmp_path, number, step, *arguments, folder)
        assert stopped.returncode == (130 if number == signal.SIGINT else -number), stopped.stderr
        only_complete(folder, expected)
        prepare(*arguments, folder)
        assert files_of(folder) == expected, step

    assert steps > 30 and "manifest.json" in expected
    chosen = {*range(1, steps + 1, every), *range(steps - 8, steps + 1, last_every)}
    several_at_once(stop_and_go_on, sorted(chosen))


def test_restart_is_stopped(gpt2, llama3, tmp_path):
    """While it deletes what another command left, and before it wrote anything: the same command is not refused."""
    source = write_jsonl(tmp_path / "d.jsonl", some_documents(50))
    common = [source, "--processes", 1, "--out"]
    prepare(*common, tmp_path / "earlier", "--tokenizer", gpt2)
    prepare(*common, tmp_path / "expected", "--tokenizer", llama3)

    def stop_and_go_on(step: int) -> None:
        folder = shutil.copytree(tmp_path / "earlier", tmp_path / str(step))
        again = [*common, folder, "--tokenizer", llama3, "--restart"]
        stopped = driven(tmp_path, signal.SIGKILL, step, *again)
        assert stopped.returncode == -signal.SIGKILL, stopped.stderr
        prepare(*again)
        assert files_of(folder) == files_of(tmp_path / "expected"), step

    several_at_once(stop_and_go_on, range(1, 15))


def test_workers_end_with_their_parent(arguments, unkilled, tmp_path):
    running = start(arguments, tmp_path / "o")
    wait_until(lambda: len(processes_of(running.pid)) >= 4)  # the parent, two workers, the tracker
    assert len(processes_of(running.pid)) >= 4
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    wait_until(lambda: not processes_of(running.pid), 20)
    assert not processes_of(running.pid)


def test_interrupted(arguments, unkilled, tmp_path):
    expected, _ = unkilled
    running = start(arguments, tmp_path / "o", stderr=subprocess.PIPE)
    wait_until(lambda: (tmp_path / "o/progress.json").exists() or running.poll() is not None)
    kill(running, signal.SIGINT)
    said = running.communicate(timeout=60)[1].decode()
    assert running.returncode == 130 and "the same command goes on from here" in said and "Traceback" not in said
    prepare(*arguments, "--out", tmp_path / "o")
    assert files_of(tmp_path / "o") == expected


def test_two_at_once_are_refused(arguments, unkilled, tmp_path):
    running = start(arguments, tmp_path / "o")
    wait_until((tmp_path / "o/.lock").exists)
    assert "another process is writing" in refusal(*arguments, "--out", tmp_path / "o")
    kill(running)


def test_disk_full(arguments, unkilled, tmp_path):
    """A limit on the size of files stands for a full disk; with room, the same command goes on."""
    expected, _ = unkilled
    limit = 70_000

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    refused = refusal(*arguments, "--out", tmp_path / "o", preexec_fn=limited)
    assert "cannot write" in refused and ".bin.partial" in refused and "make room" in refused
    only_complete(tmp_path / "o", expected)
    prepare(*arguments, "--out", tmp_path / "o")
    assert files_of(tmp_path / "o") == expected


def test_really_full_disk(gpt2, tmp_path):
    """On a file system of 400 KB, where one can be mounted."""
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path / "disk")]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        source = write_jsonl(tmp_path / "d.jsonl", some_documents(6000))
        arguments = (source, "--out", tmp_path / "disk/o", "--processes", 1, "--save-every", 0)
        refused = refusal(*arguments)
        assert "No space left on device" in refused and "make room" in refused
        assert not shards_of(tmp_path / "disk/o")
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=True)


def test_changed_folders_are_refused(arguments, unkilled, tmp_path):
    (tmp_path / "x_train_000001.bin").write_bytes(b"somebody's")
    assert "there already, from elsewhere" in refusal(*arguments, "--out", tmp_path)
    assert (tmp_path / "x_train_000001.bin").read_bytes() == b"somebody's"
