"""Writes a kernel of PTX as a C++ function that executes one thread of it. A register is a local variable of its
declared width, an instruction a statement, a branch a goto, so the code is as long as the PTX and nothing is clever.
"""
import re

from opcodes import c_type, translate, vector
from ptx import BYTES, Label, PtxError, Registers, Scope, Variable

ASYNC_PROXY = ("wgmma", "mbarrier")  # a kernel with these has shared memory that more than its threads read
SPECIAL = {"%laneid": "(thread.linear() % 32)", "%warpid": "(thread.linear() / 32)", "WARP_SZ": "32"}
CLOCK = "%clock64"  # a kernel that reads it may give up a wait


class Emitter:
    def __init__(self, kernel, marks=False):
        """`marks`: the code notes which of its instructions were executed."""
        self.kernel, self.marks = kernel, [] if marks else None
        self.lines, self.declarations = [], []
        self.scopes = [{}]  # of registers: the PTX name to (the C++ name, its type); the innermost scope is the last
        self.scope_numbers = [0]
        self.labels = ScopedLabels(kernel.body)
        self.local, self.local_bytes = {}, 0
        instructions = kernel.instructions()
        self.async_proxy = any(i.opcode in ASYNC_PROXY for i in instructions)
        self.bounded_waits = CLOCK in kernel.text
        self.lay_out_shared()
        self.variables = [v for v in kernel.module.variables.values() if v.name in self.words]
        self.placed = {}
        self.place_accumulators(i for i in instructions if i.opcode == "wgmma" and "mma_async" in i.modifiers)
        for item in kernel.body:
            self.emit(item)

    # ---- what the kernel declares

    def lay_out_shared(self):
        """Static variables lie one after the other; the dynamic ones all begin after them."""
        own = {v.name: v for v in self.kernel.body if isinstance(v, Variable) and v.space == "shared"}
        self.words = words = set(re.findall(r"[\w$]+", self.kernel.text))
        used = own | {name: v for name, v in self.kernel.module.shared.items() if name in words}
        self.shared, end = {}, 0
        for v in used.values():
            if v.bytes is not None:
                self.shared[v.name] = -(-end // v.alignment) * v.alignment
                end = self.shared[v.name] + v.bytes
        dynamic = [v for v in used.values() if v.bytes is None]
        alignment = max([v.alignment for v in dynamic], default=16)
        self.static_shared, self.dynamic_begin = end, -(-end // alignment) * alignment
        for v in dynamic:
            self.shared[v.name] = self.dynamic_begin

    def place_accumulators(self, products):
        """The accumulators of products lie in arrays: they are written while the thread goes on."""
        for product in products:
            registers = vector(product.operands[0])
            places = [self.placed.get(r) for r in registers]
            if not any(places):
                name = self.array("f32", "accumulators", len(registers))
                self.placed |= {r: (name, k) for k, r in enumerate(registers)}
            elif places != [(places[0][0], k) for k in range(len(registers))]:
                raise PtxError(f"{self.kernel.name}: products whose accumulators overlap in part")

    def array(self, type, stem, count):
        name = f"{stem}{len(self.declarations)}"
        self.declarations.append(f"alignas(64) {type} {name}[{count}];")
        return name

    def declare(self, registers):
        suffix = f"_{self.scope_numbers[-1]}" if len(self.scopes) > 1 else ""
        if registers.type != "pred" and registers.type not in BYTES:
            raise PtxError(f"registers of type {registers.type}")
        type = "bool" if registers.type == "pred" else \
            registers.type if registers.type in ("f32", "f64") else f"u{BYTES[registers.type] * 8}"
        for name in registers.names:
            if name in self.placed:
                array, k = self.placed[name]
                self.scopes[-1][name] = (f"{array}[{k}]", "f32")
                continue
            variable = "r_" + re.sub(r"\W", "", name) + suffix
            self.scopes[-1][name] = (variable, type)
            self.declarations.append(f"{type} {variable};")

    # ---- operands, for opcodes.py

    def register(self, name):
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def value(self, operand, t):
        """The operand as an expression of the C++ type of the PTX type `t`."""
        ct = c_type(t)
        if operand[0] == "!":
            return f"!{self.value(operand[1:], t)}"
        if register := self.register(operand):
            return register[0] if register[1] == ct else f"as<{ct}>({register[0]})"
        if special := re.fullmatch(r"%(tid|ntid|ctaid|nctaid)\.([xyz])", operand):
            return f"as<{ct}>(thread.{special[1]}[{'xyz'.index(special[2])}])"
        if operand in SPECIAL:
            return f"as<{ct}>(u32({SPECIAL[operand]}))"
        if operand == CLOCK:
            return f"as<{ct}>(clock64())"
        if operand in self.kernel.module.variables:
            return f"{ct}({self.variable(operand)})"
        if number := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", operand):
            return f"as<{ct}>(0x{number[1]}u)" if number[1] else f"as<{ct}>(u64(0x{number[2]}))"
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
            number = int(operand.rstrip("U"), 0)
            if t == "pred":
                return "true" if number else "false"
            if t[0] == "f":
                raise PtxError(f"{operand} as a floating-point number")
            return f"{ct}(0x{number & (1 << 8 * BYTES[t]) - 1:x})"
        if operand in self.shared:
            return f"{ct}(kReservedShared + {self.shared[operand]})"
        if operand in self.local:
            return f"{ct}({self.local[operand]})"
        if operand in self.kernel.parameters:
            return f"{ct}({self.kernel.parameters[operand].offset})"
        raise PtxError(f"operand {operand}")

    @staticmethod
    def variable(name):
        """The C++ variable that holds the address of a variable of the module."""
        return "v_" + re.sub(r"\W", "_", name)

    def assign(self, operand, t, expression):
        """A statement that writes an expression, of the C++ type of `t`, to a register."""
        if operand == "_":
            return f"(void)({expression});"
        register = self.register(operand)
        if not register:
            raise PtxError(f"{operand} is no register")
        if register[1] == c_type(t):
            return f"{register[0]} = {expression};"
        return f"set({register[0]}, {c_type(t)}({expression}));"

    def address(self, operand):
        """The address in brackets, as a u64."""
        match = re.fullmatch(r"\[ ?([%\w$]+) ?(?:\+ ?(-?\w+))? ?\]", operand)
        if not match:
            raise PtxError(f"address {operand}")
        base, offset = match[1], int(match[2] or "0", 0)
        register = self.register(base)
        address = f"u64({self.value(base, 'b32' if register and register[1] == 'u32' else 'b64')})"
        return f"{address} + u64(s64({offset}))" if offset else address

    def memory(self, space, access, bytes, operand):
        """A pointer to `bytes` bytes at an address in brackets, checked when it is computed (memory.h)."""
        thread = "" if space == "global" else "thread, "
        return f"{'parameter' if space == 'param' else space}_memory<Access::{access}, {bytes}>({thread}" + \
            f"{self.address(operand)})"

    def expression(self, what, function, *arguments):
        """A call of the executor (kernel.h), with the place for its reports."""
        return f"{function}({', '.join([*map(str, arguments), f'SOFTGPU_PLACE({chr(34)}{what}{chr(34)})'])})"

    def call(self, what, function, *arguments):
        return self.expression(what, function, *arguments) + ";"

    def accumulators(self, registers):
        return self.placed[registers[0]][0]

    def label(self, name):
        for number in reversed(self.scope_numbers):
            if name in self.labels[number]:
                return f"L_{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{number}"
        raise PtxError(f"label {name}")

    # ---- statements

    def emit(self, item):
        if isinstance(item, Scope):
            if item.begins:
                self.scopes.append({})
                self.scope_numbers.append(self.labels.begin())
            else:
                self.scopes.pop()
                self.scope_numbers.pop()
        elif isinstance(item, Label):
            self.lines.append(f"{self.label(item.name)}:;")
        elif isinstance(item, Registers):
            self.declare(item)
        elif isinstance(item, Variable):
            if item.space == "local":
                self.local[item.name] = -(-self.local_bytes // item.alignment) * item.alignment
                self.local_bytes = self.local[item.name] + item.bytes
        else:
            self.emit_instruction(item)

    def emit_instruction(self, i):
        file, line = i.place
        try:
            guard = f"if ({self.value(i.guard, 'pred')}) " if i.guard else ""
            text = i.text.split()[1 if i.guard else 0].rstrip(";")
            mark = ""
            if self.marks is not None:
                mark = f"executed[{len(self.marks)}] = 1; "
                self.marks.append(f'"{text}\\t{file}:{line}"')
            self.lines.append(f'#line {line} "{file}"\n{guard}{{ {mark}{translate(self, i)} }}')
        except PtxError as error:
            raise PtxError(f"{file}:{line}: {i.text}: {error}") from None

    def source(self):
        parameters = self.kernel.parameters.values()
        size = max((p.offset + p.bytes for p in parameters), default=0)
        local = f"alignas(64) u8 local[{self.local_bytes}];\nthread.local = local, thread.local_bytes = sizeof local;"
        newline = "\n"
        marks = f"""static const char* const instructions[] = {{{", ".join(self.marks)}}};
static u8 executed[{len(self.marks)}];
""" if self.marks else ""
        variables = ", ".join(f'{{"{v.name}", &{self.variable(v.name)}, {v.bytes}}}' for v in self.variables)
        return f"""#include "dev/softgpu/kernel.h"
// {self.kernel.name}
using namespace softgpu;
{newline.join(f"static u64 {self.variable(v.name)};" for v in self.variables)}
{marks}static void run(Thread& thread) {{
(void)thread;
{local if self.local_bytes else "thread.local_bytes = 0;"}
{newline.join(self.declarations)}
{newline.join(self.lines)}
}}
#line 1 "translated"
static const Parameter parameters[] = {{{", ".join(f"{{{p.offset}, {p.bytes}}}" for p in parameters) or "{0, 0}"}}};
static const Variable variables[] = {{{variables or "{}"}}};
extern "C" __attribute__((visibility("default"))) const KernelInfo softgpu_kernel{{
    "{self.kernel.name}", run, parameters, {len(parameters)}, {size}, variables, {len(self.variables)},
    {self.static_shared}, {self.dynamic_begin}, {self.kernel.max_threads},
    {f"{len(self.marks)}, instructions, executed" if self.marks else "0, nullptr, nullptr"}}};
"""


class ScopedLabels(list):
    """The labels that each scope of a body declares, scopes numbered in the order in which they begin. A branch may
    come before its label."""
    def __init__(self, body):
        super().__init__([set()])
        open_scopes, self.begun = [0], 0
        for item in body:
            if isinstance(item, Scope):
                if item.begins:
                    self.append(set())
                    open_scopes.append(len(self) - 1)
                else:
                    open_scopes.pop()
            elif isinstance(item, Label):
                self[open_scopes[-1]].add(item.name)

    def begin(self):
        self.begun += 1
        return self.begun
