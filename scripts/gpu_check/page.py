"""Writes the page for people: working and broken parts, and speeds with their predictions."""

from records import BAD

WIDTH = 62  # of a name in the table of figures


def print_list(checks, records):
    """Each check with its result; those that follow one another and prove the same share a line of what that is."""
    of_all = [records.result(check.name) for check in checks]
    counts = ", ".join(f"{of_all.count(result)} {result}" for result in sorted(set(of_all)))
    print(f"On {records.known['machine']}: {len(checks)} checks, {counts}.")
    if "not reached" in of_all:
        print("Not reached: nobody has tried it on a GPU here. scripts/gpu_check.sh tries it.")
    proves = ""
    for check, result in zip(checks, of_all):
        if check.proves != proves:
            proves = check.proves
            print(f"\n{proves}")
        print(f"  {check.name:34} {result}")


def write(checks, records, machine):
    """Writes the page into the output folder and returns its text."""
    lines = heading(checks, records, machine)
    lines += broken(checks, records, machine) + speed(checks, records, machine) + working(checks, records)
    lines += others(checks, records)
    text = "\n".join(lines) + "\n"
    (records.out / "gpu_check.txt").write_text(text)
    return text


def heading(checks, records, machine):
    calls = records.known["calls"]
    seconds = sum(call["seconds"] or 0 for call in calls)
    count = {kind: 0 for kind in ("ok", "bad", "skipped", "left")}
    for check in checks:
        result = records.result(check.name)
        if check.instead_of and result == "not reached":
            continue
        count["bad" if result in BAD else result if result in count else "left"] += 1
    where = (
        f"{machine.gpu.name}, {machine.gpu.gib:.0f} GiB, driver {machine.gpu.driver}; {machine.state}"
        if not machine.rehearsal
        else f"{machine.name()}: what it says of speed means nothing"
    )
    commits = sorted({record["commit"] for record in records.of.values() if record["commit"]})
    lines = [
        f"train_llama on {where}",
        f"{calls[-1]['began']}, commit {', '.join(commits) or 'unknown'}; {len(calls)} call{'s' * (len(calls) > 1)}, {seconds} s; PyTorch "
        f"{machine.torch or 'is not there'}",
        "",
        f"{count['ok']} checks passed, {count['bad']} failed, {count['skipped']} were skipped, {count['left']} are left.",
    ]
    if count["left"]:
        lines.append("The next call of scripts/gpu_check.sh goes on with what is left.")
    slow = [figure["name"] for figure in figures_of(checks, records) if is_slow(figure, machine)]
    if slow:
        lines.append(f"Below their limit: {', '.join(slow)}.")
    return lines


def figures_of(checks, records):
    return [figure for check in checks for figure in records.of.get(check.name, {}).get("figures", ())]


def is_slow(figure, machine):
    return not machine.rehearsal and figure["least"] is not None and figure["value"] < figure["least"]


def broken(checks, records, machine):
    bad = [check for check in checks if records.failed(check.name)]
    lines = ["", "What does not work" if bad else "Nothing that was tried has failed."]
    for check in bad:
        record = records.of[check.name]
        lines += [
            f"  {check.name}: {record['result']} ({record['seconds']:.0f} s of {record['limit']:.0f}): {record['why']}",
            f"    it proves: {check.proves}",
            f"    command: {record['command']}",
            f"    log: logs/{record['log']} in gpu_check.tar",
        ]
    return lines + [f"  {way}" for way in machine.detours.taken()]


def speed(checks, records, machine):
    figures = figures_of(checks, records)
    if not figures:
        return []
    lines = ["", f"{'How fast':{WIDTH}} {'here':>10} {'predicted':>10} {'of it':>7}"]
    for figure in figures:
        line = f"  {figure['name'] + (', ' + figure['unit'] if figure['unit'] else ''):{WIDTH - 2}} {figure['value']:10.5g}"
        if figure["predicted"]:
            line += f" {figure['predicted']:10.5g} {100 * figure['value'] / figure['predicted']:6.0f}%"
        if figure["least"] is not None and not machine.rehearsal:
            line += f"  {'BELOW its limit of' if is_slow(figure, machine) else 'the limit is'} {figure['least']:g}"
        lines.append(line)
    return lines


def working(checks, records):
    parts = {}
    for check in checks:
        if records.result(check.name) == "ok":
            part, name = check.name.split("/")
            parts.setdefault(part, []).append(name)
    lines = ["", "What works"] if parts else []
    earlier = {record["sources"] for record in records.of.values() if record["result"] == "ok"}
    if len(earlier) > 1:
        lines.append("  (seen with several versions of the sources: --fresh tries all of it with this one)")
    for part, names in parts.items():
        tried = [check for check in checks if check.name.startswith(part + "/")]
        lines.append(f"  {part}: {f'all {len(names)}' if len(names) == len(tried) > 1 else ', '.join(names)}")
    return lines


def others(checks, records):
    reasons, left = {}, []
    for check in checks:
        result = records.result(check.name)
        if result in ("skipped", "unfinished"):
            reasons.setdefault(records.of[check.name]["why"], []).append(check.name)
        elif result == "not reached" and not check.instead_of:
            left.append(check.name)
    lines = ["", "What was not tried to its end"] if reasons else []
    lines += [f"  {why}: {', '.join(names)}" for why, names in reasons.items()]
    if left:
        lines += ["", "What is left", "  " + ", ".join(left)]
    return lines
