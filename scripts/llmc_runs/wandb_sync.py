"""Logs a run to Weights & Biases as it grows: one of its steps for each line of train.jsonl.

The x axis of every chart is the run's own "step"; "tokens" and "training_seconds" are there to choose instead. The id of the run there is kept in RUN/wandb/run_id. A second call
goes on with the same run after the last line that the server has; offline, after the last one in wandb's files in
RUN/wandb/. What is logged there stays: if the run has taken lines back since, it is logged anew, under another id.
"""

import argparse
import os
import secrets
import sys
import time
from contextlib import contextmanager

from llmc_runs.files import LinesWritten, lock_folder, write_whole
from llmc_runs.run import LinesTakenBack, RunError, command, open_runs

REQUIREMENTS = "dev/test/watch/requirements.txt"


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/wandb_sync",
        description="Logs a run to Weights & Biases until it has ended. wandb's own variables (WANDB_MODE, "
        "WANDB_ENTITY, WANDB_API_KEY, …) count as ever.")
    parser.add_argument("run", metavar="RUN", help="folder of a run, e.g. runs/latest")
    parser.add_argument("--project", default=os.environ.get("WANDB_PROJECT", "train_llama"),
                        help="project to log to (default: WANDB_PROJECT, or %(default)s)")
    return parser.parse_args()


def import_wandb():
    try:
        import wandb
    except ImportError:
        pip = os.path.relpath(os.path.join(sys.prefix, "bin", "pip"))
        raise RunError(f"wandb is not installed\n  {pip} install --require-hashes -r {REQUIREMENTS}") from None
    return wandb


def run_id(folder):
    """The id of the run at Weights & Biases: made once, then kept."""
    path = os.path.join(folder, "run_id")
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        write_whole(path, secrets.token_hex(8))
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def lines_logged(folder, log):
    """How many lines earlier calls have logged."""
    if not log.offline:
        return max(log.starting_step - 1, 0)  # the server's word: 0 in a new run, the last step + 1 in a resumed one
    from llmc_runs.wandb_files import history  # needs wandb

    return max((step for step, items in history(folder, log.id) if "step" in items), default=0)


def values(wandb, line):
    """What wandb logs of a line."""
    logged = {"step": line.step, "tokens": line.tokens, "training_seconds": line.seconds, **line.scalars}
    if line.time is not None:
        logged["_timestamp"] = line.time  # wandb's own clock would tell when the line was read
    if line.sample is not None:
        logged["sample"] = wandb.Html(line.sample.replace("&", "&amp;").replace("<", "&lt;").join(("<pre>", "</pre>")))
    return logged


def follow(run, seconds=1.0):
    """The run's lines as they come, those together that are there at once, until it has ended."""
    live = True
    while live:
        live = run.is_live()  # asked first: what an ended run wrote last is still read
        if lines := run.read():
            yield lines
        if live:
            time.sleep(seconds)


@contextmanager
def opened(wandb, **options):
    """wandb's run, finished at the end; Ctrl-C and SIGTERM are no failure of it."""
    try:
        log = wandb.init(**options)
    except wandb.Error as error:
        raise RunError(f"wandb does not start: {error}\n  WANDB_MODE=offline needs no account") from None
    code = 1
    try:
        yield log
        code = 0
    except (KeyboardInterrupt, SystemExit):  # of which wandb's own `with` would show a traceback
        code = 0
        raise
    finally:
        log.finish(exit_code=code)


def log_run(wandb, run, folder, project, parts, lines):
    """Logs these lines and the `parts` that follow, until the run has ended. LinesTakenBack if it went on from a checkpoint
    before lines that were logged."""
    seen = LinesWritten(os.path.join(folder, "lines"))
    if not seen.agree(lines):
        print(f"{run.name} went on from a checkpoint before its last lines: it is logged anew, as another run")
        write_whole(os.path.join(folder, "run_id"), "")
        seen.clear()
    config = {**run.config(), "memory_plan": run.memory_plan()}
    with opened(wandb, project=project, id=run_id(folder), name=run.name, resume="allow", dir=run.folder,
                config=config) as log:
        log.define_metric("*", step_metric="step")
        before = count = lines_logged(folder, log)
        while lines:
            seen.add(lines)
            for line in lines:
                if line.number > before:
                    log.log(values(wandb, line), step=line.number, commit=True)
                    count = line.number
            lines = next(parts, None)
    print(f"{run.name} has ended: {count} lines are logged" + f", {before} of them by earlier calls" * (before > 0))


def main():
    arguments = parse_arguments()
    run = open_runs([arguments.run])[0]
    folder = os.path.join(run.folder, "wandb")
    wandb = lock = None
    while True:
        parts = follow(run)
        lines = next(parts, None)  # with them config.json is there
        if lines is None:
            raise RunError(f"{run.log} has no line, and its run has ended: there is nothing to log")
        wandb = wandb or import_wandb()
        lock = lock or lock_folder(folder, f"{folder} is being written by another scripts/wandb_sync: let that one go on")
        try:
            log_run(wandb, run, folder, arguments.project, parts, lines)
            break
        except LinesTakenBack:
            run.restart()
    lock.close()


if __name__ == "__main__":
    command(main)
