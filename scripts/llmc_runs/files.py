"""Files that are there whole or not at all, and folders that one program writes at a time."""

import fcntl
import hashlib
import os

from llmc_runs.run import RunError


def write_whole(path, text):
    """Writes a text file as PATH.partial, and renames it when it is complete."""
    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe keeps its place
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    path = os.path.realpath(path)
    partial = f"{path}.partial"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.remove(partial)
        raise


def lock_folder(folder, message):
    """Makes the folder and locks it, until what is returned is closed; RunError(message) if another program has it."""
    try:
        os.makedirs(folder, exist_ok=True)
        lock = open(os.path.join(folder, ".lock"), "w")
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(message) from None
    except OSError:
        pass  # a file system without locks
    return lock


class LinesWritten:
    """Which lines of a train.jsonl were written elsewhere: their digests, in a file that is ahead of what was written.

    A run that goes on from a checkpoint takes lines back, which number and step alone do not tell.
    """

    def __init__(self, path):
        self._path = path
        with open(path, "a+", encoding="ascii") as file:
            file.seek(0)
            self._digests = file.read().split("\n")[:-1]

    def agree(self, lines):
        """Whether all that were written are the first of these lines. Without a record (of an older version): yes."""
        return self._digests == [digest(line) for line in lines[:len(self._digests)]]

    def add(self, lines):
        """Before these are written; the ones that are recorded already are passed over."""
        new = [digest(line) for line in lines if line.number > len(self._digests)]
        if new:
            with open(self._path, "a", encoding="ascii") as file:
                file.writelines(text + "\n" for text in new)
            self._digests += new

    def clear(self):
        """Nothing is written any more."""
        self._digests = []
        os.truncate(self._path, 0)


def digest(line):
    return hashlib.blake2b(line.text, digest_size=8).hexdigest()
