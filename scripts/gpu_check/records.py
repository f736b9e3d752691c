"""Keeps the result of each check in a JSON file under build/, with which the next call goes on."""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import time

BAD = ("failed", "crashed", "hung")
AGAIN = ("skipped", "unfinished")  # tried again in the next call


def sources(root):
    """Returns a hash of the sources: a check that has failed is tried again when they have changed."""
    digest = hashlib.sha256()
    for folder in ("llmc", "dev", "scripts"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".md") and "docs" not in path.parts:
                digest.update(path.read_bytes())
    for name in ("Makefile", "train_llama.cu", "test_llama.cu"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:12]


def commit(folder):
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True
        ).stdout.strip()
    except OSError:
        return ""


class Records:
    def __init__(self, work, out, machine, fresh):
        self.work, self.out, self.file = work, out, work / "state.json"
        work.mkdir(parents=True, exist_ok=True)
        if fresh:
            for folder in ("logs", "kept"):
                shutil.rmtree(work / folder, ignore_errors=True)
        known = json.loads(self.file.read_text()) if self.file.exists() and not fresh else {}
        if known.get("machine") != machine:
            known = {"machine": machine, "calls": [], "checks": {}}
        self.known, self.commit = known, commit(work)
        self.of = known["checks"]

    def begin_call(self, args):
        self.out.mkdir(parents=True, exist_ok=True)
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        self.known["calls"].append({"began": began, "asked": args.only, "limit": args.seconds, "seconds": None})
        with tarfile.open(self.out / "gpu_check.tar", "w") as tar:
            for folder in ("logs", "kept"):
                if (self.work / folder).is_dir():
                    tar.add(self.work / folder, folder)

    def end_call(self, seconds):
        self.known["calls"][-1]["seconds"] = round(seconds)
        self._save()

    def add(self, name, record, version):
        """Writes the result of a check to disk, before the next one is tried."""
        record.update(sources=version, commit=self.commit, call=len(self.known["calls"]))
        self.of[name] = record
        self._save()
        paths = [self.work / "logs" / record["log"]] if record.get("log") else []
        paths += [path for path in (self.work / "kept" / name for name in record.get("keeps", ())) if path.is_file()]
        with tarfile.open(self.out / "gpu_check.tar", "a") as tar:
            for path in paths:
                tar.add(path, path.relative_to(self.work))

    def _save(self):
        text = json.dumps(self.known, indent=1) + "\n"
        for path in (self.file, self.out / "gpu_check.json"):
            part = path.with_suffix(".part")
            part.write_text(text)
            os.replace(part, path)

    def result(self, name):
        return self.of[name]["result"] if name in self.of else "not reached"

    def failed(self, name):
        return self.result(name) in BAD

    def stands_in(self, check):
        """Returns whether a substitute counts: the check that it stands in for has failed. Others always count."""
        return not check.instead_of or self.failed(check.instead_of)

    def due(self, check, version):
        """Returns whether to try a check. One that is ok is not tried again, a failed one only with changed sources."""
        if check.name.startswith("machine/") or check.name not in self.of:
            return True
        record = self.of[check.name]
        return record["result"] in AGAIN or (record["result"] in BAD and record["sources"] != version)

    def broken(self, checks, asking=None):
        """Returns each broken fact with the check that failed or did not come to its end.

        A check does not ask itself: its earlier failure is no reason not to try it again.
        """
        return {
            fact: check.name
            for check in checks
            if check is not asking and self.stands_in(check) and self.result(check.name) in (*BAD, "unfinished")
            for fact in check.breaks
        }
