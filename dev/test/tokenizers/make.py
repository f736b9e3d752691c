"""Writes the small files that dev/test/test_tokenizer.cpp reads: llama3.json, llama2.json and, in expected.json, what the
`tokenizers` library makes of some ugly texts with them. Writes models.json for test_public_tokenizers.cpp: how llama3.json
or llama2.json becomes a stand-in for the tokenizer of a public model (models.py), and the ids that the library gives.

    scripts/python_environment tokenizer dev/test/tokenizers/requirements.txt 100
    build/tokenizer/bin/python dev/test/tokenizers/make.py
"""

import json
import pathlib

import files
import models
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

# These texts have what the components of public models treat in different ways, and the tokens that stand-ins add.
MODEL_TEXTS = [
    "First Citizen:\nBefore we proceed any further, hear me speak.", "I'LL we'Re it'S 12 1234567  \n\n  x \r\n \r\n\r\ny  ",
    "cafe\u0301 na\u00efve a\u0323\u0307 q\u0307\u0323 \u212b \u2126 \u1100\u1161\u11a8 \u0958 \ufb01 \u00bd \ufdfa \uff21",
    "  two  spaces   three\t\ttabs    four ", "中文字，日本語テキスト。 カ・カ 한국어 各 ① Ⅷ ½ ٣", "x = {'k': [1, 2.5e-3]};\n\treturn f\"{x!r}\"  # don't",
    "👩‍👩‍👧‍👦👍🏽\u0301 \ue000\u0000", "<s> a</s>b<unk> <|begin_of_text|>c<|im_start|>  d<|im_end|>\n<|endoftext|>",
    "<tool_call> x</tool_call><think>\ny</think> <|end|>  z <|tool|>  w <h1>\n\n\n▁▁▁ö", "[INST] a [TOOL_CALLS]<bos>b<eos>", "",
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


def stand_ins(of_bytes, of_pieces):
    """One for each set of components, with the models that have it: the parts that differ from a file, and the ids."""
    known = {}
    for facts in models.MODELS:
        file = models.stand_in(facts, of_bytes, of_pieces, lacks=False)
        base = of_pieces if models.has_pieces(facts) else of_bytes
        parts = {key: file[key] for key in file if key != "model"}
        model = {key: file["model"][key] for key in file["model"] if key not in ("vocab", "merges")}
        more = {token: id for token, id in dict(file["model"]["vocab"]).items() if token not in base["model"]["vocab"]}
        made = {"base": "llama2" if base is of_pieces else "llama3", "parts": parts, "model": model, "more_tokens": more}
        made |= {"refused": facts["refused"]} if "refused" in facts else {"ids": ids_of(file)}
        known.setdefault(json.dumps(made), []).extend(facts["models"])
    return [{"models": names} | json.loads(made) for made, names in known.items()]


def ids_of(file):
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [tokenizer.encode(text).ids for text in MODEL_TEXTS]


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
    rows = stand_ins(made["llama3"], made["llama2"])
    body_of_models = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (HERE / "models.json").write_text('{"texts": ' + json.dumps(MODEL_TEXTS) + ',\n"files": [\n' + body_of_models + "\n]}\n")
    print(f"models.json: {len(body_of_models.encode()) / 1000:.0f} kB, {len(rows)} files")
    print(f"expected.json: {len(body.encode()) / 1000:.0f} kB, {sum(map(len, cases.values()))} cases")


if __name__ == "__main__":
    main()
