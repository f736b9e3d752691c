"""What each opcode of PTX becomes in C++: one function for an opcode or a family, found by its name.

A function takes the emitter, which names registers and addresses (emit.py), and the instruction. It takes the modifiers
that it knows; one that is left over is an error, so nothing is guessed. It returns a statement. The meaning of each is
that of the PTX ISA, chapter "Instruction Set"; arithmetic.h has what C++ has no operator for.
"""
import re

from ptx import BYTES, PtxError, split_operands

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f32", "f64")
BITS = ("b16", "b32", "b64")
TO_INTEGRAL = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
OPCODES = {}


def opcode(*names):
    def register(function):
        for name in names:
            OPCODES[name] = function
        return function
    return register


def translate(emitter, instruction):
    """The statement of an instruction, without its guard."""
    function = OPCODES.get(instruction.opcode)
    if not function:
        raise PtxError("this opcode is not executed")
    statement = function(emitter, instruction)
    if instruction.modifiers:
        raise PtxError(f"not executed: .{' .'.join(instruction.modifiers)}")
    return statement


def c_type(t):
    """The type of C++ that holds a PTX type: .b32 is a u32."""
    return "bool" if t == "pred" else t.replace("b", "u")


def unsigned(t):
    return t.replace("s", "u").replace("b", "u")


def wide(t):
    return f"{t[0]}{BYTES[t] * 16}"


def vector(operand):
    return split_operands(operand[1:-1])


# ---- control ---------------------------------------------------------------------------------------------------------


@opcode("bra")
def _(e, i):
    i.flag("uni")
    return f"goto {e.label(i.operands[0])};"


@opcode("ret", "exit")
def _(e, i):
    return "return;"


@opcode("trap")
def _(e, i):
    return e.call("trap", "trap")


# ---- data movement ---------------------------------------------------------------------------------------------------


@opcode("mov")
def _(e, i):
    t = i.type()
    to, source = i.operands
    if to[0] == "{":  # a register's parts, the low one first
        parts = vector(to)
        width = BYTES[t] * 8 // len(parts)
        return f"{{ const u{BYTES[t] * 8} whole = {e.value(source, unsigned(t))}; " + " ".join(
            e.assign(part, f"u{width}", f"u{width}(whole >> {width * k})") for k, part in enumerate(parts)) + " }"
    if source[0] == "{":
        whole, parts = f"u{BYTES[t] * 8}", vector(source)
        width = BYTES[t] * 8 // len(parts)
        value = " | ".join(f"{whole}({e.value(part, f'u{width}')}) << {width * k}" for k, part in enumerate(parts))
        return e.assign(to, whole, f"{whole}({value})")
    return e.assign(to, t, e.value(source, t))


@opcode("selp")
def _(e, i):
    t = i.type()
    to, a, b, which = i.operands
    return e.assign(to, t, f"{e.value(which, 'pred')} ? {e.value(a, t)} : {e.value(b, t)}")


def take_space(i):
    i.flag("nc")
    return i.take("global", "shared::cta", "shared", "local", "param", default="generic").partition("::")[0]


def take_cache(i):
    i.take("ca", "cg", "cs", "lu", "cv", "wb", "wt", default="no")


def take_access(i, data):
    """(space, volatile, type, registers, bytes) of a load or store of the operand `data`."""
    space, volatile = take_space(i), i.take("weak", "volatile", default="weak") == "volatile"
    take_cache(i)
    count = {"v2": 2, "v4": 4, "one": 1}[i.take("v2", "v4", default="one")]
    t = i.type(*BYTES)
    registers = vector(data) if count > 1 else [data]
    return space, volatile, t, registers, BYTES[t] * count


@opcode("ld", "ldu")
def _(e, i):
    to, source = i.operands
    space, volatile, t, registers, size = take_access(i, to)
    p = e.memory(space, "read", size, source)
    if len(registers) == 1:
        return e.assign(to, t, f"{'load_volatile' if volatile else 'load'}<{c_type(t)}>({p})")
    return f"{{ const u8* const p = {p}; " + " ".join(
        e.assign(r, t, f"load<{c_type(t)}>(p + {k * BYTES[t]})") for k, r in enumerate(registers) if r != "_") + " }"


@opcode("st")
def _(e, i):
    to, source = i.operands
    space, _, t, registers, size = take_access(i, source)
    p = e.memory(space, "write", size, to)
    values = [e.value(r, t) for r in registers]
    if space == "shared" and e.async_proxy:
        if size < 4:
            raise PtxError("stores under 4 bytes to shared memory that TMA or wgmma may read are not executed")
        return f"{{ const {c_type(t)} values[] = {{{', '.join(values)}}}; " + \
            e.call("st.shared", "store_shared", p, "values", size) + " }"
    if len(values) == 1:
        return f"store<{c_type(t)}>({p}, {values[0]});"
    return f"{{ u8* const p = {p}; " + " ".join(
        f"store<{c_type(t)}>(p + {k * BYTES[t]}, {value});" for k, value in enumerate(values)) + " }"


@opcode("cvta")
def _(e, i):
    to_space = i.flag("to")
    space = i.take("global", "shared", "local", "param")
    i.type("u64")
    to, source = i.operands
    window = {"global": "0", "shared": "kSharedWindow", "local": "kLocalWindow", "param": "kParameterWindow"}[space]
    return e.assign(to, "u64", f"{e.value(source, 'u64')} {'-' if to_space else '+'} {window}")


@opcode("prefetch")
def _(e, i):
    i.take("tensormap")
    return f"(void){e.memory('generic', 'read', 128, i.operands[0])};"


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def float_result(e, i, t, to, expression):
    """Assigns a floating-point result, with .sat applied."""
    if i.flag("sat"):
        expression = f"saturate({expression})"
    return e.assign(to, t, expression)


def float_operands(e, i, t, operands):
    """(the operands, a function for the result): with .ftz both are flushed."""
    if not i.flag("ftz"):
        return [e.value(x, t) for x in operands], lambda result: result
    return [f"flush({e.value(x, t)})" for x in operands], lambda result: f"flush({result})"


@opcode("add", "sub", "mul", "div")
def _(e, i):
    t = i.type(*INTEGERS, *FLOATS)
    to, a, b = i.operands
    if t in FLOATS:
        i.take("rn", default="rn")  # the other roundings are not executed
        (a, b), finish = float_operands(e, i, t, (a, b))
        return float_result(e, i, t, to, finish(f"canonical({a} {SIGNS[i.opcode]} {b})"))
    if i.opcode == "mul":
        return e.assign(to, *product(e, i, t, a, b))
    if i.opcode == "div":
        return e.assign(to, t, f"divide<{t}>({e.value(a, t)}, {e.value(b, t)})")
    u = unsigned(t)
    return e.assign(to, u, f"{u}({e.value(a, u)} {SIGNS[i.opcode]} {e.value(b, u)})")


def product(e, i, t, a, b):
    """(type, expression) of mul.lo, mul.hi or mul.wide."""
    part = i.take("lo", "hi", "wide")
    a, b = e.value(a, t), e.value(b, t)
    if part == "wide":
        return wide(t), f"mul_wide<{wide(t)}>({a}, {b})"
    return t, f"mul_{part}<{t}>({a}, {b})"


@opcode("mad")
def _(e, i):
    to, a, b, c = i.operands
    t, value = product(e, i, i.type(*INTEGERS), a, b)
    u = unsigned(t)
    return e.assign(to, u, f"{u}({u}({value}) + {e.value(c, u)})")


@opcode("fma")
def _(e, i):
    t = i.type(*FLOATS)
    rounding = i.take("rn", "rm", "rp")
    if rounding != "rn" and t != "f32":
        raise PtxError("directed rounding is executed for f32 alone")
    operands, finish = float_operands(e, i, t, i.operands[1:])
    function = {"rn": f"fma<{t}>", "rm": "directed_fma<false>", "rp": "directed_fma<true>"}[rounding]
    return float_result(e, i, t, i.operands[0], finish(f"{function}({', '.join(operands)})"))


@opcode("rem")
def _(e, i):
    t = i.type(*INTEGERS)
    to, a, b = i.operands
    return e.assign(to, t, f"remainder<{t}>({e.value(a, t)}, {e.value(b, t)})")


@opcode("sqrt", "rcp")
def _(e, i):
    t = i.type(*FLOATS)
    to = i.operands[0]
    approximate = i.take("rn", "approx") == "approx"
    (x,), finish = float_operands(e, i, t, i.operands[1:])
    if approximate:
        if (i.opcode, t) != ("rcp", "f32"):
            raise PtxError("this approximation is not executed")
        return e.assign(to, t, finish(f"rcp_approx({x})"))
    return e.assign(to, t, finish(f"canonical(std::sqrt({x}))" if i.opcode == "sqrt" else f"canonical({t}(1) / {x})"))


@opcode("ex2", "rsqrt")
def _(e, i):
    t = i.type("f32")
    i.take("approx")
    (x,), finish = float_operands(e, i, t, i.operands[1:])
    return e.assign(i.operands[0], t, finish(f"{i.opcode}_approx({x})"))


@opcode("min", "max")
def _(e, i):
    t = i.type(*INTEGERS, *FLOATS, "u16x2", "s16x2")
    to, a, b = i.operands
    if t in FLOATS:
        (a, b), finish = float_operands(e, i, t, (a, b))
        return e.assign(to, t, finish(f"{i.opcode}_number({a}, {b})"))
    if t.endswith("x2"):
        half = t[:3]
        f = f"[](auto x, auto y) {{ return std::{i.opcode}(x, y); }}"
        return e.assign(to, "u32", f"each_half<{half}>({e.value(a, 'u32')}, {e.value(b, 'u32')}, {f})")
    return e.assign(to, t, f"std::{i.opcode}<{t}>({e.value(a, t)}, {e.value(b, t)})")


@opcode("abs", "neg")
def _(e, i):
    t = i.type("s16", "s32", "s64", *FLOATS)
    to, x = i.operands
    if t in FLOATS:
        (x,), finish = float_operands(e, i, t, (x,))
        return e.assign(to, t, finish(f"std::fabs({x})" if i.opcode == "abs" else f"-{x}"))
    negative = f"{unsigned(t)}(0 - {e.value(x, unsigned(t))})"
    if i.opcode == "abs":
        negative = f"{e.value(x, t)} < 0 ? {negative} : {e.value(x, unsigned(t))}"
    return e.assign(to, unsigned(t), negative)


@opcode("copysign")
def _(e, i):
    t = i.type(*FLOATS)
    to, sign, x = i.operands
    return e.assign(to, t, f"std::copysign({e.value(x, t)}, {e.value(sign, t)})")


@opcode("and", "or", "xor")
def _(e, i):
    t = i.type("pred", *BITS)
    to, a, b = i.operands
    return e.assign(to, t, f"{c_type(t)}({e.value(a, t)} {SIGNS[i.opcode]} {e.value(b, t)})")


@opcode("not")
def _(e, i):
    t = i.type("pred", *BITS)
    return e.assign(i.operands[0], t, f"{c_type(t)}({'!' if t == 'pred' else '~'}{e.value(i.operands[1], t)})")


@opcode("shl", "shr")
def _(e, i):
    t = i.type(*BITS, *INTEGERS)
    to, x, n = i.operands
    return e.assign(to, t, f"{i.opcode}<{c_type(t)}>({e.value(x, t)}, {e.value(n, 'u32')})")


@opcode("prmt")
def _(e, i):
    i.type("b32")
    return e.assign(i.operands[0], "b32", f"prmt({', '.join(e.value(x, 'b32') for x in i.operands[1:])})")


@opcode("bfi")
def _(e, i):
    t = i.type("b32", "b64")
    to, a, b, begin, length = i.operands
    return e.assign(to, t, f"bfi<{c_type(t)}>({e.value(a, t)}, {e.value(b, t)}, {e.value(begin, 'u32')}, "
                           f"{e.value(length, 'u32')})")


@opcode("setp")
def _(e, i):
    t = i.type(*BITS, *INTEGERS, *FLOATS)
    boolean = i.take("and", "or", "xor", default="no")
    how = i.take("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
                 *(["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] if t in FLOATS else []))
    to, x, y = i.operands[:3]
    (a, b), _ = float_operands(e, i, t, (x, y)) if t in FLOATS else ((e.value(x, t), e.value(y, t)), None)
    numbers = f"{a} == {a} && {b} == {b}"
    if how in ("num", "nan"):
        value = numbers if how == "num" else f"!({numbers})"
    else:
        unordered = len(how) == 3
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
                "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}[how[:2]]
        value = f"{a} {sign} {b}"
        if t in FLOATS and unordered:  # true with a NaN
            value = f"!({numbers}) || {value}"
        elif t in FLOATS:
            value = f"{numbers} && {value}"
    if boolean != "no":
        value = f"({value}) {SIGNS[boolean]} {e.value(i.operands[3], 'pred')}"
    if "|" in to:
        raise PtxError("two results are not executed")
    return e.assign(to, "pred", f"bool({value})")


# ---- conversions -----------------------------------------------------------------------------------------------------


@opcode("cvt")
def _(e, i):
    source, to = i.type(*INTEGERS, "u8", "s8", *FLOATS), i.modifiers.pop()
    x = i.operands[1:]
    if to in ("bf16x2", "e4m3x2", "e5m2x2"):  # the first operand becomes the high half
        i.take("rn")
        if to != "bf16x2":
            i.take("satfinite")
        function = {"bf16x2": "to_bf16", "e4m3x2": "to_fp8<4, 3>", "e5m2x2": "to_fp8<5, 2>"}[to]
        whole, width = ("u32", 16) if to == "bf16x2" else ("u16", 8)
        high, low = (f"{function}({e.value(operand, source)})" for operand in x)
        return e.assign(i.operands[0], whole, f"{whole}({whole}({high}) << {width} | {low})")
    if to == "bf16":
        i.take("rn")
        return e.assign(i.operands[0], "u16", f"to_bf16({e.value(x[0], source)})")
    (value,), finish = float_operands(e, i, source, x) if source in FLOATS else ([e.value(x[0], source)], None)
    integral = i.take(*TO_INTEGRAL, default="no") if source in FLOATS and (to == source or to not in FLOATS) else "no"
    if to in FLOATS:
        if integral != "no":
            value = f"canonical(std::{TO_INTEGRAL[integral]}({value}))"
        elif source in INTEGERS or BYTES[to] < BYTES[source]:
            i.take("rn")
        return float_result(e, i, to, i.operands[0], f"{to}({value})")
    if source in FLOATS:
        return e.assign(i.operands[0], to, f"to_integer<{to}>(std::{TO_INTEGRAL[integral]}({value}))")
    return e.assign(i.operands[0], to, f"{to}({value})")


# ---- atomics and fences ----------------------------------------------------------------------------------------------


@opcode("atom", "red")
def _(e, i):
    space = take_space(i)
    i.take("relaxed", default="relaxed")
    i.take("cta", "gpu", "sys", default="gpu")
    t = i.type("u32", "u64", "s32", "s64", "b32", "b64")
    operation = i.take("add", "min", "max", "or", "exch", "cas")
    to, address, *values = ["_"] * (i.opcode == "red") + i.operands
    p = e.memory(space, "read", BYTES[t], address)
    return e.assign(to, t, f"atomic_{operation}<{c_type(t)}>({', '.join([p, *(e.value(x, t) for x in values)])})")


@opcode("membar")
def _(e, i):
    i.take("cta", "gl", "sys")
    return "__atomic_thread_fence(__ATOMIC_SEQ_CST);"


@opcode("fence")
def _(e, i):
    if i.flag("mbarrier_init"):
        i.take("release")
        i.take("cluster")
        return e.call("fence.mbarrier_init", "fence_mbarrier_init")
    if i.flag("proxy"):
        i.take("async")
        i.take("shared::cta", default="all")
        return e.call("fence.proxy.async", "fence_proxy_async")
    i.take("sc", "acq_rel")
    i.take("cta", "cluster", "gpu", "sys")
    return "__atomic_thread_fence(__ATOMIC_SEQ_CST);"


# ---- threads together ------------------------------------------------------------------------------------------------


@opcode("bar", "barrier")
def _(e, i):
    i.take("cta", default="cta")
    if i.flag("warp"):
        i.take("sync")
        return e.call("bar.warp.sync", "bar_warp_sync", e.value(i.operands[0], "u32"))
    how = i.take("sync", "arrive")
    i.flag("aligned")
    return e.call(f"bar.{how}", f"bar_{how}", *(e.value(x, "u32") for x in i.operands))


@opcode("shfl")
def _(e, i):
    i.take("sync")
    i.type("b32")
    how = i.take("up", "down", "bfly", "idx")
    to, _, predicate = i.operands[0].partition("|")
    values = [e.value(x, "u32") for x in i.operands[1:]]
    result = e.expression(f"shfl.sync.{how}", "shfl", f"Shuffle::{how}", *values, "in_range")
    return f"{{ bool in_range; {e.assign(to, 'b32', result)}" + \
        (f" {e.assign(predicate, 'pred', 'in_range')}" if predicate else " (void)in_range;") + " }"


@opcode("vote")
def _(e, i):
    i.take("sync")
    i.take("ballot")
    i.type("b32")
    to, predicate, mask = i.operands
    return e.assign(to, "b32", e.expression("vote.sync.ballot", "vote_ballot", e.value(mask, "u32"),
                                            e.value(predicate, "pred")))


@opcode("redux")
def _(e, i):
    i.take("sync")
    i.type("u32")
    how = i.take("add", "max", "min")
    to, value, mask = i.operands
    return e.assign(to, "u32", e.expression(f"redux.sync.{how}", "redux", f"Redux::{how}", e.value(value, "u32"),
                                            e.value(mask, "u32")))


@opcode("mma")
def _(e, i):
    for word in ("sync", "aligned", "m16n8k16", "row", "col"):
        i.take(word)
    if i.modifiers != ["f32", "bf16", "bf16", "f32"]:
        raise PtxError("mma is executed for bf16 alone")
    i.modifiers = []
    d, a, b, c = map(vector, i.operands)
    return "{ f32 d[4]; " + \
        f"const u32 a[4] = {{{', '.join(e.value(x, 'u32') for x in a)}}}, " + \
        f"b[2] = {{{', '.join(e.value(x, 'u32') for x in b)}}}; " + \
        f"const f32 c[4] = {{{', '.join(e.value(x, 'f32') for x in c)}}}; " + \
        e.call("mma.sync", "mma_m16n8k16", "d", "a", "b", "c") + " " + \
        " ".join(e.assign(x, "f32", f"d[{k}]") for k, x in enumerate(d)) + " }"


@opcode("ldmatrix")
def _(e, i):
    for word in ("sync", "aligned", "m8n8", "x4"):
        i.take(word)
    transposed = "true" if i.flag("trans") else "false"
    row = e.memory(take_space(i), "read", 16, i.operands[1])
    i.type("b16")
    return "{ u32 r[4]; " + e.call("ldmatrix", "ldmatrix_x4", "r", row, transposed) + " " + \
        " ".join(e.assign(x, "b32", f"r[{k}]") for k, x in enumerate(vector(i.operands[0]))) + " }"


# ---- asynchronous copies, mbarriers, TMA -----------------------------------------------------------------------------


@opcode("cp")
def _(e, i):
    i.take("async")
    if i.flag("bulk"):
        return bulk_copy(e, i)
    if i.flag("commit_group"):
        return "cp_async_commit_group();"
    if i.flag("wait_all"):
        return "cp_async_wait_group(0);"
    if i.flag("wait_group"):
        return f"cp_async_wait_group({i.operands[0]});"
    take_cache(i)
    for word in ("shared", "global"):
        i.take(word)
    to, source, size = i.operands[:3]
    source_bytes = e.value(i.operands[3], "u32") if len(i.operands) > 3 else size
    return e.call("cp.async", "cp_async", e.memory("shared", "write", int(size), to), e.address(source), size,
                  source_bytes)


def bulk_copy(e, i):
    if i.flag("commit_group"):
        return e.call("cp.async.bulk.commit_group", "tma_commit_group")
    if i.flag("wait_group"):
        i.take("read")
        if i.operands != ["0"]:
            raise PtxError("only cp.async.bulk.wait_group.read 0 is executed")
        return e.call("cp.async.bulk.wait_group.read", "tma_wait_group_read")
    i.take("tensor")
    i.take("4d")
    words, i.modifiers = i.modifiers, []
    if words == ["shared::cluster", "global", "mbarrier::complete_tx::bytes"]:
        to, source, barrier = i.operands
        return e.call("cp.async.bulk.tensor load", "tma_load", e.memory("shared", "write", 16, to),
                      e.memory("shared", "read", 8, barrier), *box(e, source))
    if words == ["global", "shared::cta", "bulk_group"]:
        to, source = i.operands
        return e.call("cp.async.bulk.tensor store", "tma_store", e.memory("shared", "read", 16, source), *box(e, to))
    raise PtxError("this copy of a tensor is not executed")


def box(e, operand):
    """(the tensor map, the coordinates) of [map, {coordinates}]."""
    map, coordinates = split_operands(operand[1:-1])
    return (e.memory("generic", "read", 128, f"[{map}]"),
            f"BoxPlace{{{{{', '.join(e.value(x, 's32') for x in vector(coordinates))}}}}}")


@opcode("mbarrier")
def _(e, i):
    what = i.take("init", "arrive", "try_wait")
    expects = i.flag("expect_tx")
    if what == "try_wait":
        i.take("parity")
    i.take("shared::cta", "shared")
    i.type("b64")
    if what == "init":
        barrier, count = i.operands
        return e.call("mbarrier.init", "mbarrier_init", e.memory("shared", "write", 8, barrier), e.value(count, "u32"))
    to, barrier = i.operands[:2]
    barrier = e.memory("shared", "read", 8, barrier)
    if what == "try_wait":
        function = "mbarrier_test_wait" if e.bounded_waits else "mbarrier_try_wait"
        wait = e.expression("mbarrier.try_wait", function, barrier, e.value(i.operands[2], "u32"))
        return e.assign(to, "pred", wait)
    if to != "_" or len(i.operands) != 2 + expects:
        raise PtxError("the state of an mbarrier, or several arrivals at once, are not executed")
    name = "mbarrier.arrive" + ".expect_tx" * expects
    return e.call(name, "mbarrier_arrive", barrier, e.value(i.operands[2], "u32") if expects else "0")


# ---- products of warpgroups ------------------------------------------------------------------------------------------


@opcode("wgmma")
def _(e, i):
    what = i.take("fence", "commit_group", "wait_group", "mma_async")
    i.take("sync")
    i.take("aligned")
    if what != "mma_async":
        return e.call(f"wgmma.{what}", f"wgmma_{what}", *(e.value(x, "u32") for x in i.operands))
    shape = re.fullmatch(r"m64n(\d+)k16", i.modifiers.pop(0))
    if not shape or i.modifiers != ["f32", "bf16", "bf16"]:
        raise PtxError("this product is not executed")
    i.modifiers = []
    d, a, b, accumulate, *scales = i.operands
    if scales[:2] != ["1", "1"] or len(vector(d)) * 2 != int(shape[1]):
        raise PtxError("a product with negated operands, or with the wrong number of registers")
    before, fragments, descriptor, majors = "", "nullptr", "0", scales[2:]
    if a[0] == "{":  # A in registers, which may be written again at once: they are kept until the product is done
        fragments = e.array("u32", "fragments", 4)
        before = " ".join(f"{fragments}[{k}] = {e.value(x, 'u32')};" for k, x in enumerate(vector(a)))
        majors = ["0", *majors]
    else:
        descriptor = e.value(a, "u64")
    product = ", ".join([e.accumulators(vector(d)), shape[1], fragments, descriptor, e.value(b, "u64"),
                         e.value(accumulate, "pred"), *majors])
    return f"{{ {before} {e.call('wgmma.mma_async', 'wgmma', f'Wgmma{{{product}}}')} }}"


@opcode("setmaxnreg")
def _(e, i):
    more = "true" if i.take("inc", "dec") == "inc" else "false"
    for word in ("sync", "aligned"):
        i.take(word)
    i.type("u32")
    return e.call("setmaxnreg", "setmaxnreg", i.operands[0], more)
