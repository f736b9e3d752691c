"""Files that are there whole or not at all, and folders that one program writes at a time."""

import fcntl
import os

from llmc_runs.run import RunError


def write_whole(path, text):
    """Writes a text file that takes its place when it is complete: beside it as PATH.partial until then."""
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
