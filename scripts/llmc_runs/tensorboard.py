"""Follows runs into TensorBoard's event files, and serves them."""

import argparse
import atexit
import os
import shutil
import tempfile
import time

from llmc_runs.event_files import EventFiles
from llmc_runs.run import RunError, command, open_runs


def port(text):
    """A port's number; 0: any that is free."""
    if not 0 <= int(text) < 65536:
        raise ValueError
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/tensorboard",
        description="Writes TensorBoard event files of runs, finished or under way, and starts the server. "
        "A second call goes on where the first one ended.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, e.g. runs/latest")
    parser.add_argument("--x", choices=("steps", "tokens"), default="steps",
                        help="what TensorBoard's x axis \"step\" counts (default: %(default)s)")
    parser.add_argument("--logdir", help="write to LOGDIR/<name of the run>/ instead of RUN/tensorboard/, or with --x tokens "
                        "RUN/tensorboard-tokens/")
    parser.add_argument("--no-server", action="store_true", help="only write, until the runs have ended")
    parser.add_argument("--host", default="localhost", help="address to serve on (0.0.0.0: all; default: %(default)s)")
    parser.add_argument("--port", type=port, help="port to serve on (default: 6006, or the next that is free)")
    return parser.parse_args()


def start_server(folders, host, port):
    """Serves the folders {name: folder} in the background; its URL."""
    from tensorboard import program

    logdir = tempfile.mkdtemp(prefix="tensorboard-")  # of links: TensorBoard takes one folder with a folder a run
    atexit.register(shutil.rmtree, logdir)
    for name, folder in folders.items():
        link = os.path.join(logdir, name)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(os.path.abspath(folder), link)
    server = program.TensorBoard()
    server.configure(["tensorboard", "--logdir", logdir, "--host", host, "--reload_interval", "2"] +
                     (["--port", str(port)] if port is not None else []))
    try:
        return server.launch()
    except program.TensorBoardServerException as error:
        raise RunError(f"TensorBoard does not start: {error.msg}\n  choose another --port or --host") from None


def follow(all_files, for_ever=False, seconds=1.0):
    """Keeps the event files up to date until all runs have ended; or `for_ever`, since a run that was ended may go on."""
    counts, under_way = dict.fromkeys(all_files, 0), set(all_files)
    while under_way or for_ever:
        for files in list(all_files if for_ever else under_way):
            try:
                live = files.run.is_live()  # asked first: what an ended run wrote last is still read
                counts[files] += files.update()
            except RunError as error:  # its folder is gone, or a line is broken
                if not for_ever or len(all_files) == 1:
                    raise
                print(f"{files.run.name} is not followed any more: {error}")
                all_files.remove(files)
                under_way.discard(files)
                continue
            if live and files not in under_way:
                print(f"{files.run.name} goes on")
                under_way.add(files)
            if not live and files in under_way:
                print(f"{files.run.name} has ended: {counts[files]} new lines written")
                under_way.remove(files)
                counts[files] = 0
        if under_way or for_ever:
            time.sleep(seconds)


def main():
    arguments = parse_arguments()
    runs = open_runs(arguments.runs)
    for run in runs:
        if os.path.getsize(run.log) == 0 and not run.is_live():
            raise RunError(f"{run.log} is empty, and its run has ended: there is nothing to show")
    by_tokens = arguments.x == "tokens"
    folders = {run.name: os.path.join(arguments.logdir, run.name) if arguments.logdir
               else os.path.join(run.folder, "tensorboard-tokens" if by_tokens else "tensorboard") for run in runs}
    all_files = [EventFiles(run, folders[run.name], by_tokens) for run in runs]
    for folder in folders.values():
        print(f"writing {folder}")
    if arguments.no_server:
        follow(all_files)
        return
    print(f"TensorBoard: {start_server(folders, arguments.host, arguments.port)}   (Ctrl-C ends it)")
    follow(all_files, for_ever=True)


if __name__ == "__main__":
    command(main)
