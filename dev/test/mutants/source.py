"""C++ source as tokens: finds a pattern within a function, whatever the white space and the comments are."""

import re

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\\\n|\s+"""  # group 1 is empty for these: they are no tokens
    r"""|(R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|'\w|[\w.])*"""
    r"""|<<=|>>=|\.\.\.|->|::|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^=!<>]=|\S)""",
    re.DOTALL,
)
CLOSING = {"(": ")", "[": "]", "{": "}"}


class Source:
    """A text, its tokens, and where each of them begins and ends in it."""

    def __init__(self, text):
        self.text = text
        found = [m for m in TOKEN.finditer(text) if m[1]]
        self.tokens = [m[1] for m in found]
        self.spans = [m.span() for m in found]

    def token(self, i):
        return self.tokens[i] if i < len(self.tokens) else ""

    def behind_bracket(self, i):
        """The index behind the bracket that closes the one at i."""
        depth = 0
        for j in range(i, len(self.tokens)):
            if self.tokens[j] in CLOSING:
                depth += 1
            elif self.tokens[j] in CLOSING.values():
                depth -= 1
                if depth == 0:
                    return j + 1
        return len(self.tokens)

    def body(self, i):
        """The index of the brace that opens the body whose name ends before token i, or None: a function's, a
        lambda's (name = [...]) or a class's."""
        constructs = self.token(i) == "("  # or may do so
        if self.token(i) == "=" and self.token(i + 1) == "[":
            i = self.behind_bracket(i + 1)
            if self.token(i) == "(":
                i = self.behind_bracket(i)
        elif self.token(i) == "(":
            i = self.behind_bracket(i)
        elif self.token(i) not in ("{", ":", "final"):
            return None
        initializes = False  # within the list of a constructor
        while self.token(i) and self.token(i) not in (";", ",", ")", "]", "}", "=", "?"):
            if self.token(i) == "{" and not (initializes and re.match(r"\w", self.tokens[i - 1])):
                return i
            if self.token(i) == ":":
                initializes = constructs
            if self.token(i) in ("(", "{", "["):
                i = self.behind_bracket(i)
                if initializes and self.token(i) == ",":
                    i += 1
            else:
                i += 1
        return None

    def ranges(self, name):
        """The token ranges of all definitions of the function, lambda or class of this name (A::b, too)."""
        words, found = Source(name).tokens, []
        for i in range(len(self.tokens) - len(words)):
            if self.tokens[i : i + len(words)] == words:
                begin = self.body(i + len(words))
                if begin is not None:
                    found.append((i, self.behind_bracket(begin)))
        return found

    def matches(self, name, pattern):
        """Where the pattern's tokens stand within the function: spans of the text."""
        words, starts = Source(pattern).tokens, set()
        for begin, end in self.ranges(name):
            starts.update(i for i in range(begin, end - len(words) + 1) if self.tokens[i : i + len(words)] == words)
        return [(self.spans[i][0], self.spans[i + len(words) - 1][1]) for i in sorted(starts)]
