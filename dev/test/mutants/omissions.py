"""The calls that order work: barriers, event records and waits, gathers and releases of weights, waits for and commits of
asynchronous copies, and what orders Hopper's copies and products. Each is a statement that a mutant can leave out."""

import re

from source import Source

FOLDERS = [f"llmc/{folder}" for folder in ("kernels", "comm", "memory", "model", "train")]
FUNCTION = re.compile(
    r"__syncthreads|__syncwarp|named_barrier_(sync|arrive)|fence_mbarrier_init|fence_async_proxy|setmaxnreg_(dec|inc)"
    r"|mbarrier_(init|arrive|arrive_expect_tx|wait)|wgmma_(fence|commit_group|wait_group)|cp_async_(wait|commit)_group"
    r"|tma_(load|store|store_commit_group|store_wait_group_read)|follow|await_(gathered|scattered|exchanged|tokens)"
)
METHOD = re.compile(
    r"record|wait|wait_for|gather|release|(begin|end)_(read|write)|exchange|follow|await_\w+|all_gather|reduce_scatter|all_reduce_max"
)
# A host that waits for a whole stream, or sleeps, orders no streams. Nor does a collective of a Communicator itself,
# unlike those of TensorParallel and ContextParallel; ranks.txt has mutants of the former. BitHashes' exchange is a value.
NEVER = re.compile(
    r"wait_for\(((stream_?|compute_)\)|lock,)|^fp8_->|^hashes_\.exchange"
    r"|^(?!(pass_?\.tensor_parallel|tensor)->|(heads\.)?ranks\.).*(all_gather|reduce_scatter|all_reduce_max)\("
)


class Call:
    def __init__(self, text, begin, end):
        self.begin, self.end = begin, end
        self.line = text.count("\n", 0, begin) + 1
        self.text = " ".join(text[begin:end].split())


def begin_of_expression(source, i):
    """The index of the first token of the postfix expression a.b[c]->d whose last name is token i."""
    while i > 1 and source.tokens[i - 1] in (".", "->"):
        i -= 2
        while source.tokens[i] in ("]", ")"):
            depth = 1
            while depth:
                i -= 1
                depth += (source.tokens[i] in ("]", ")")) - (source.tokens[i] in ("[", "("))
            i -= 1
    return i


def omissions(text):
    """The statements of a source file that are such a call."""
    source, found = Source(text), []
    for i, token in enumerate(source.tokens):
        method = source.token(i - 1) in (".", "->") if i else False
        if not (METHOD if method else FUNCTION).fullmatch(token):
            continue
        bracket = i + 1
        if source.token(bracket) == "<":  # one template argument
            while source.token(bracket) != ">":
                bracket += 1
            bracket += 1
        first = begin_of_expression(source, i)
        if source.token(bracket) != "(" or source.token(first - 1) not in (";", "{", "}", ")", ":", "else", "return"):
            continue  # a declaration, or a value
        behind = source.behind_bracket(bracket)
        if source.token(behind) == ";":
            call = Call(text, source.spans[first][0], source.spans[behind - 1][1])
            if not NEVER.search(call.text):
                found.append(call)
    return found
