"""Reads PTX, NVIDIA's assembly text for GPUs, as nvcc writes it: a Module has Kernels, a Kernel has a body of
Instructions, labels, scopes and declarations. Nothing here knows what an opcode computes.

The grammar is that of the PTX ISA, chapters "Syntax" and "State Spaces, Types, and Variables". What nvcc does not write
for this project (functions, variables in constant memory or with initial values, tables of branches) is an error.
"""
import re
from dataclasses import dataclass, field

BYTES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4,
         "b64": 8, "u64": 8, "s64": 8, "f64": 8}
DEFAULT_PLACE = ("unknown", 1)


class PtxError(Exception):
    """The text is not PTX, or is PTX that the software GPU does not execute."""


@dataclass
class Instruction:
    text: str
    place: tuple  # (file, line) of the source
    guard: str = ""  # the predicate, with "!" if it is negated
    opcode: str = ""
    modifiers: list = field(default_factory=list)  # those that nobody has taken yet
    operands: list = field(default_factory=list)

    def flag(self, name):
        """Takes a modifier that may be there; says whether it was."""
        if name not in self.modifiers:
            return False
        self.modifiers.remove(name)
        return True

    def take(self, *names, default=None):
        """Takes the one of these modifiers that is there."""
        for name in names:
            if self.flag(name):
                return name
        if default is None:
            raise PtxError(f"none of .{', .'.join(names)}")
        return default

    def type(self, *allowed):
        """Takes the last modifier: the type that the instruction computes with."""
        if not self.modifiers or allowed and self.modifiers[-1] not in allowed:
            raise PtxError(f"its type is none of {', '.join(allowed)}")
        return self.modifiers.pop()


@dataclass
class Label:
    name: str


@dataclass
class Scope:
    begins: bool


@dataclass
class Registers:
    type: str
    names: list


@dataclass
class Variable:
    space: str  # "shared", "local" or "global"
    alignment: int
    bytes: int  # None: dynamic, its size is the launch's
    name: str


@dataclass
class Parameter:
    offset: int
    bytes: int


class Kernel:
    def __init__(self, module, name, parameters, directives, body):
        self.module, self.name = module, name
        self.parameters = layout_of_parameters(parameters)
        sizes = re.search(r"\.(maxntid|reqntid)\s+([\d,\s]+)", directives)
        self.max_threads = 1024
        if sizes:
            self.max_threads = 1
            for size in sizes[2].split(","):
                self.max_threads *= int(size)
        # Files keep their names and not their numbers, so that the text of a kernel is the same in every module.
        self.text = body
        self.body = list(read_body(body, module.files))

    def instructions(self):
        return [item for item in self.body if isinstance(item, Instruction)]


class Module:
    def __init__(self, text):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text.rstrip("\0"), flags=re.S)
        target = re.search(r"^\.target\s+sm_(\w+)", text, re.M)
        if not target:
            raise PtxError("no .target")
        self.target = target[1]
        self.files = {int(n): name for n, name in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M)}
        other = re.search(r"^\s*(?:\.visible\s+|\.weak\s+|\.extern\s+)?\.(func|const)\b[^\n]*", text, re.M)
        if other:
            raise PtxError(f"functions and constants of a module are not executed: {other[0].strip()}")
        # .loc has no semicolon, other statements have.
        text = re.sub(r"^(\s*\.loc\s+\d+\s+\d+)[^\n]*", r"\1;", text, flags=re.M)
        declared = re.findall(r"^(?:\.extern\s+|\.visible\s+)?\.(?:shared|global)[^;]*", text, re.M)
        variables = list(map(read_variable, declared))
        self.shared = {v.name: v for v in variables if v.space == "shared"}
        self.variables = {v.name: v for v in variables if v.space == "global"}
        self.kernels = {}
        for entry in re.finditer(r"\.entry\s+([\w$]+)\s*\(", text):
            close = text.index(")", entry.end())
            begin = text.index("{", close)
            end = end_of_braces(text, begin)
            self.kernels[entry[1]] = (text[entry.end():close], text[close + 1:begin], text[begin + 1:end])

    def kernel(self, name):
        return Kernel(self, name, *self.kernels[name])


def end_of_braces(text, begin):
    depth = 0
    for brace in re.compile("[{}]").finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise PtxError("a brace that is not closed")


def split_operands(text):
    """Splits at commas that no brackets enclose."""
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    if text[begin:].strip():
        parts.append(text[begin:].strip())
    return parts


def layout_of_parameters(text):
    """Where each parameter lies: one after the other, each at its alignment."""
    parameters, offset = {}, 0
    for declaration in split_operands(text):
        match = re.fullmatch(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?", declaration)
        if not match:
            raise PtxError(f"parameter {declaration}")
        size = BYTES[match[2]] * int(match[4] or 1)
        alignment = int(match[1] or BYTES[match[2]])
        offset = -(-offset // alignment) * alignment
        parameters[match[3]] = Parameter(offset, size)
        offset += size
    return parameters


def read_variable(text):
    text = " ".join(text.split())
    match = re.fullmatch(r"(?:\.extern |\.visible )?\.(shared|local|global) (?:\.align (\d+) )?\.(\w+) ([\w$]+)(?:\[(\d*)\])?", text)
    if not match or match[3] not in BYTES:
        raise PtxError(f"variable {text}")
    space, alignment, type, name, count = match.groups()
    size = None if count == "" else BYTES[type] * int(count or 1)
    return Variable(space, int(alignment or BYTES[type]), size, name)


def read_registers(text):
    match = re.fullmatch(r"\.reg \.(\w+) (.*)", text)
    if not match:
        raise PtxError(text)
    names = []
    for item in split_operands(match[2]):
        many = re.fullmatch(r"(%?[\w$]+)<(\d+)>", item)
        names += [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [item]
    return Registers(match[1], names)


def read_instruction(text, place):
    guard, rest = re.fullmatch(r"(?:@(!?[%\w$]+) )?(.*)", text).groups()
    opcode, _, operands = rest.partition(" ")
    first, *modifiers = opcode.split(".")
    return Instruction(text, place, guard or "", first, modifiers, split_operands(operands))


def read_body(body, files):
    """The statements of a kernel, in their order."""
    place = DEFAULT_PLACE
    token = re.compile(r"\s*(?:([{}])|([\w$]+):|([^;{}]+(?:\{[^{};]*\}[^;{}]*)*);|;)")
    at = 0
    while body[at:].strip():
        match = token.match(body, at)
        if not match:
            raise PtxError(f"no statement: {body[at:at + 60].strip()}")
        at = match.end()
        brace, label, statement = match.groups()
        if brace:
            yield Scope(brace == "{")
        elif label:
            yield Label(label)
        elif statement:
            statement = " ".join(statement.split())
            word = statement.split(" ")[0]
            if word == ".loc":
                number, line = statement.split(" ")[1:3]
                place = (files.get(int(number), DEFAULT_PLACE[0]), max(int(line), 1))
            elif word == ".reg":
                yield read_registers(statement)
            elif word in (".local", ".shared"):
                yield read_variable(statement)
            elif word[0] != ".":
                yield read_instruction(statement, place)
            elif word != ".pragma":
                raise PtxError(statement)
