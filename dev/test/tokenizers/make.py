"""Writes the small files that dev/test/test_tokenizer.cpp reads: llama3.json, llama2.json and, in expected.json, what the
`tokenizers` library makes of some ugly texts with them.

    scripts/python_environment tokenizer dev/test/tokenizers/requirements.txt 100
    build/tokenizer/bin/python dev/test/tokenizers/make.py
"""

import json
import pathlib

import files
import texts
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
SHAKESPEARE = HERE.parents[1] / "data" / "tinyshakespeare.txt"

UGLY = [
    "", " ", "  ", "a", " a", "a ", "\n", "\r\n", "\n\n\n\n\n", " \n a", "Hello, world!", "  two  spaces   three\t\ttabs ",
    "First Citizen:\nBefore we proceed any further, hear me speak.", "I'LL we'Re it'S 'ſ o'clock", "12 123 1234 1234567890123",
    "unreachable unreachable quixotic zzyzx zzyzx! été", "été e\u0301te\u0301", "Κ K ℝ ½ Ⅷ ② ١٢٣ १२३", "тест, Ещё",
    "中文字，日本語テキスト。", "한국어", "שלום مرحبا", "👩‍👩‍👧‍👦👍🏽🇩🇪", "a\u00a0b\u3000c\u2028d\u0085e\u180ef\u200bg\ufeffh",
    "\ue000\U000f0000\u0378\U0010ffff\ufffd", "<|begin_of_text|>x<|end_of_text|>", "a<|added|>b <|added|> c",
    "<|single|> x<|single|> <|single|>x <|single|>", "a  <|strips|>  b<|strips|><|strips|> ", "é <|left|>  <|right|> b_<|right|>",
    "<|reserved_special_token_0|><|reserved_special_token_1|><|reserved_special_token_2|>", "<s>a b</s> c<unk>", "▁a ▁ b",
    "<0x41> <0xE2><0x82>", "x = {'k': [1, 2.5e-3]};\n\treturn f\"{x!r}\"  # don't", "a" * 100, " " * 50 + "x", "7" * 100,
    "\0\x01\x7f", "tokenizer's 'twas y'all'd've",
]


def training_text():
    yield from SHAKESPEARE.read_text().splitlines(keepends=True)[:8000]
    for seed in range(60):
        yield texts.document(2000, seed).decode("utf-8", "replace")
    for text in texts.SCRIPTS.values():
        yield from [text] * 40


def expected(file):
    tokenizer = Tokenizer.from_str(json.dumps(file))
    cases = []
    for text in [text.encode() for text in UGLY] + texts.MALFORMED + texts.pieces(60, 7):
        repaired = text.decode("utf-8", "replace")
        ids = tokenizer.encode(repaired).ids
        cases.append(
            ({"text": repaired} if repaired.encode() == text else {"bytes": text.hex()})
            | {
                "ids": ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "without_special": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    return cases


def write(name, value, lines):
    text = json.dumps(value, ensure_ascii=False, indent=1 if lines else None)
    (HERE / name).write_text(text + "\n")
    print(f"{name}: {len(text.encode()) / 1000:.0f} kB")


def main():
    lines = list(training_text())
    made = {"llama3": files.llama3(lines, 1500), "llama2": files.llama2(lines, 1500)}
    for name, file in made.items():
        write(f"{name}.json", file, True)
    cases = {name: expected(file) for name, file in made.items()}
    body = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases[name]) + "\n]" for name in cases
    )
    (HERE / "expected.json").write_text("{\n" + body + "\n}\n")
    print(f"expected.json: {len(body.encode()) / 1000:.0f} kB, {sum(map(len, cases.values()))} cases")


if __name__ == "__main__":
    main()
