#!/usr/bin/env python3
"""Executes the instructions of opcodes.txt, or of another file, and compares:  opcodes.py RUN_KERNEL FOLDER [FILE]

All of them are one kernel of 32 threads, which is translated, compiled and executed as any other. Each has 6 words of 8
bytes per lane: its inputs and, in what comes out, its result."""
import re
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TYPES = {"h": "b16", "r": "b32", "x": "b64", "f": "f32", "d": "f64"}
BYTES = {"h": 2, "r": 4, "x": 8, "f": 4, "d": 8, "p": 4}
LANES, WORDS = 32, 6


def read_cases(file):
    cases = []
    for line in file.read_text().splitlines():
        if not line or line[0] == "#":
            continue
        instruction, rest = line.split(" : ")
        inputs, result = rest.split(" = ")
        result, _, units = result.partition(" ~")
        cases.append((instruction, inputs.split(), result, int(units or 0)))
    return cases


def register(operand):
    return operand if re.fullmatch(r"[hrxfdp]\d", operand) else None


def ptx(cases):
    """One kernel: out[case][lane] = instruction(in[case][lane][0 …])."""
    body = []
    for number, (instruction, inputs, _, _) in enumerate(cases):
        opcode, operands = instruction.split(" ", 1)
        registers = [r for r in map(str.strip, operands.split(",")) if register(r)]
        result, sources = registers[0], registers[1:]
        lines = ["{", *(f".reg .{TYPES.get(r[0], 'pred')} %{r};" for r in dict.fromkeys(registers))]
        offset = number * LANES * WORDS * 8
        for i, r in enumerate(sources):
            place = f"[%in+{offset + 8 * i}]"
            if r[0] == "p":
                lines.append(f"{{ .reg .b32 %w; ld.global.u32 %w, {place}; setp.ne.u32 %{r}, %w, 0; }}")
            else:
                lines.append(f"ld.global.{'u16' if r[0] == 'h' else TYPES[r[0]]} %{r}, {place};")
        lines.append(re.sub(r"\b([hrxfdp]\d)\b", r"%\1", operands).join([opcode + " ", ";"]))
        out = f"[%out+{number * LANES * 8}]"
        if result[0] == "p":
            lines.append(f"{{ .reg .b32 %w; selp.b32 %w, 1, 0, %{result}; st.global.b32 {out}, %w; }}")
        else:
            lines.append(f"st.global.{TYPES[result[0]]} {out}, %{result};")
        body += lines + ["}"]
    return "\n".join([
        ".version 8.6", ".target sm_90a", ".address_size 64",
        ".entry opcodes(.param .u64 opcodes_in, .param .u64 opcodes_out)", ".maxntid 32, 1, 1", "{",
        ".reg .b64 %in, %out, %lane64;", ".reg .b32 %lane;",
        "ld.param.u64 %in, [opcodes_in];", "ld.param.u64 %out, [opcodes_out];",
        "mov.u32 %lane, %tid.x;", f"mul.wide.u32 %lane64, %lane, {WORDS * 8};", "add.s64 %in, %in, %lane64;",
        "mul.wide.u32 %lane64, %lane, 8;", "add.s64 %out, %out, %lane64;",
        *body, "ret;", "}", ""])


def main():
    run_kernel, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    cases = read_cases(Path(sys.argv[3]) if len(sys.argv) > 3 else HERE / "opcodes.txt")
    (folder / "opcodes.ptx").write_text(ptx(cases))
    data = bytearray(len(cases) * LANES * WORDS * 8)
    for number, (_, inputs, _, _) in enumerate(cases):
        for lane in range(LANES):
            for i, text in enumerate(inputs):
                value = int(eval(text, {"lane": lane})) & (1 << 64) - 1
                struct.pack_into("<Q", data, ((number * LANES + lane) * WORDS + i) * 8, value)
    (folder / "in").write_bytes(data)
    library = folder / "opcodes.so"
    library.unlink(missing_ok=True)
    translated = subprocess.run([HERE.parents[1] / "softgpu/translate", folder / "opcodes.ptx", "opcodes", library])
    if translated.returncode:
        sys.exit(1)
    out_bytes = len(cases) * LANES * 8
    subprocess.run([run_kernel, library, str(LANES), folder / "in", folder / "out", str(out_bytes)], check=True)
    out = (folder / "out").read_bytes()
    failed = 0
    for number, (instruction, inputs, result, units) in enumerate(cases):
        size = BYTES[instruction.split(" ", 1)[1][0]]
        for lane in range(LANES):
            at = (number * LANES + lane) * 8
            got = int.from_bytes(out[at:at + size], "little")
            want = int(eval(result, {"lane": lane, "max": max})) & (1 << 8 * size) - 1
            if abs(got - want) > units:
                print(f"FAIL  {instruction} of {' '.join(inputs)}, lane {lane}: {got:#x}, expected {want:#x}")
                failed += 1
                break
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(bool(failed))


main()
