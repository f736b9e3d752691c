"""Errors say what was called, with which values, what was expected and what to do next; a program ends with code 1."""

import errno
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DataError(Exception):
    """What stops a program of this room; the message is for its user."""


class BadRow(DataError):
    """What is wrong with one row alone, which can be skipped."""


def exit_code(program: str, main: Callable[[], None]) -> int:
    """Runs a program; what goes wrong becomes a message on stderr."""
    try:
        main()
        return 0
    except DataError as error:
        message = str(error)
    except OSError as error:
        message = describe(error)
    except KeyboardInterrupt:
        print(f"\n{program}: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(f"{program}: {message}", file=sys.stderr)
    return 1


def describe(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    if error.errno not in DISK_FULL:
        return f"{error.strerror or error}:{where}"
    folder = Path(error.filename or ".")
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return (
        f"cannot write{where}: {error.strerror}; {free / 1e9:.1f} GB are free there\n"
        "  make room, then give the same command again: it goes on from where it stood"
    )
