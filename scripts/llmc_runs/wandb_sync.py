"""Logs a run to Weights & Biases as it grows: one of its steps for each line of train.jsonl.

The x axis of every chart is the run's own "step". The id of the run there is kept in RUN/wandb/run_id, so that a second
call goes on with the same run where the first one ended.
"""

import argparse
import os
import secrets
import sys
import time

from llmc_runs.run import RunError, command, open_runs

PACKAGE = "wandb==0.31.0"


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
        raise RunError(f"wandb is not installed\n  {pip} install {PACKAGE}") from None
    return wandb


def run_id(run):
    """The id of the run at Weights & Biases: made once, then kept."""
    path = os.path.join(run.folder, "wandb", "run_id")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(8))
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def values(wandb, line):
    """What wandb logs of a line."""
    logged = {"step": line.step, "tokens": line.tokens, "training_seconds": line.seconds, **line.scalars}
    if line.sample is not None:
        logged["sample"] = wandb.Html(line.sample.replace("&", "&amp;").replace("<", "&lt;").join(("<pre>", "</pre>")))
    return logged


def follow(wandb, run, log, seconds=1.0):
    """Logs lines until the run has ended; how many there were."""
    count = 0
    while True:
        live = run.is_live()  # asked first: what an ended run wrote last is still read
        for line in run.read():
            count = line.number
            if line.number > log.step:  # not what an earlier call has logged
                log.log(values(wandb, line), step=line.number)
        if not live:
            return count
        time.sleep(seconds)


def main():
    arguments = parse_arguments()
    run = open_runs([arguments.run])[0]
    if os.path.getsize(run.log) == 0 and not run.is_live():
        raise RunError(f"{run.log} is empty, and its run has ended: there is nothing to log")
    wandb = import_wandb()
    config = {**run.config(), "memory_plan": run.memory_plan()}
    with wandb.init(project=arguments.project, id=run_id(run), name=run.name, resume="allow", dir=run.folder,
                    config=config) as log:
        log.define_metric("*", step_metric="step")
        count = follow(wandb, run, log)
    print(f"{run.name} has ended: {count} lines are logged")


if __name__ == "__main__":
    command(main)
