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
    parser.add_argument("--logdir", help="write to LOGDIR/<name of the run>/ instead of RUN/tensorboard/")
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


def follow(all_files, seconds=1.0):
    """Keeps the event files up to date until all runs have ended."""
    counts = {files: 0 for files in all_files}
    while counts:
        for files in list(counts):
            live = files.run.is_live()  # asked first: what an ended run wrote last is still read
            counts[files] += files.update()
            if not live:
                print(f"{files.run.name} has ended: {counts.pop(files)} new lines written")
        if counts:
            time.sleep(seconds)


def main():
    arguments = parse_arguments()
    runs = open_runs(arguments.runs)
    for run in runs:
        if os.path.getsize(run.log) == 0 and not run.is_live():
            raise RunError(f"{run.log} is empty, and its run has ended: there is nothing to show")
    folders = {run.name: os.path.join(arguments.logdir, run.name) if arguments.logdir
               else os.path.join(run.folder, "tensorboard") for run in runs}
    all_files = [EventFiles(run, folders[run.name]) for run in runs]
    for folder in folders.values():
        print(f"writing {folder}")
    if arguments.no_server:
        follow(all_files)
        return
    print(f"TensorBoard: {start_server(folders, arguments.host, arguments.port)}   (Ctrl-C ends it)")
    follow(all_files)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    command(main)
