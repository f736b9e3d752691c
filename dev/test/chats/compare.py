"""Compares what dev/data prepares of conversations with transformers' apply_chat_template (make test-chats).

    build/chats/bin/python dev/test/chats/compare.py [TEMPLATE…] [--talks N] [--seed N]

For each template of templates.py N random talks (200). What is expected of a talk comes from transformers alone:
- tokens: apply_chat_template of the messages that the document renders. If others than the assistant spell special tokens
  there, these words are text: the rendering is split at its other special tokens, and each part is tokenized as text.
- masks: return_assistant_tokens_mask of the template with {% generation %}, put there by hand. dev/data gets the template
  without, and with it.
- documents: each answer is learnt once, in the longest rendering of first messages that begins as the rendering does that
  ends with it.
- refusals: what transformers' rendering refuses is refused; all others are counted by name.

Ends with exit code 1 if a talk differs, or if none of a template's talks was prepared.
"""

import argparse
import json
import pathlib
import re
import sys
import tempfile
from collections import Counter

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "data"))

import jinja2
import numpy as np
from llmc_data.chat import Chat
from llmc_data.errors import DataError
from llmc_data.template import ChatTemplate
from llmc_data.tokenizer import Tokenizer
from talks import talk
from templates import CASES, Case
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

DAY = "26 Jul 2024"  # dev/data knows no other
SAFE = "\uf8ff"  # inside special tokens that are spelt, in the reference


def folder_of(case: Case, folder: pathlib.Path) -> pathlib.Path:
    """The tokenizer with the special tokens of the template."""
    rules = json.loads((HERE.parent / "tokenizers" / case.tokenizer).read_text())
    known = {token["content"]: token for token in rules["added_tokens"]}
    end = max([*rules["model"]["vocab"].values(), *(token["id"] for token in rules["added_tokens"])]) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    for content in dict.fromkeys(filter(None, case.special)):
        if content not in known:
            number = rules["model"]["vocab"].get(content, end)
            rules["added_tokens"].append({"id": number, "content": content} | flags)
            end += number == end
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    begin, end = case.special[:2]
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": begin or None, "eos_token": end}))
    return folder


class Reference:
    """transformers on the same tokenizer and template."""

    def __init__(self, case: Case, folder: pathlib.Path):
        begin, end = case.special[:2]
        names = {"bos_token": begin} if begin else {}
        path = str(folder / "tokenizer.json")
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, eos_token=end, **names)
        self.plain, self.marked = case.plain, case.source
        added = self.tokenizer.backend_tokenizer.get_added_tokens_decoder()
        self.special = {token.content: number for number, token in added.items() if token.special}
        looks_around = [t.content for t in added.values() if t.lstrip or t.rstrip or t.single_word]
        self.spelt = [content for content in self.special if content not in looks_around]
        self.found = re.compile("|".join(map(re.escape, sorted(self.special, key=len, reverse=True))))

    def text(self, messages: list[dict], tools) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=self.plain, tokenize=False, date_string=DAY
        )

    def tokens_and_runs(self, messages: list[dict], tools) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens, and where each answer's are."""
        safe = [m if m["role"] == "assistant" else m | {"content": self.made_safe(m["content"])} for m in messages]
        if safe != messages:
            return self.of_parts(safe, tools)
        options = {"tools": tools, "return_dict": True, "date_string": DAY}
        ids = self.tokenizer.apply_chat_template(messages, chat_template=self.plain, **options)["input_ids"]
        marks = self.tokenizer.apply_chat_template(
            messages, chat_template=self.marked, return_assistant_tokens_mask=True, **options
        )["assistant_masks"]
        edges = np.flatnonzero(np.diff(marks, prepend=0, append=0)).reshape(-1, 2)
        return ids, [(int(first), int(last)) for first, last in edges]

    def made_safe(self, words: str) -> str:
        return self.found.sub(lambda match: match[0][0] + SAFE + match[0][1:], words)

    def of_parts(self, safe: list[dict], tools) -> tuple[list[int], list[tuple[int, int]]]:
        """A special token has none of SAFE inside; everything else is text, tokenized part by part."""
        [text], [stretches] = render_jinja_template(
            [safe], tools=tools, chat_template=self.marked, return_assistant_tokens_mask=True, date_string=DAY,
            **self.tokenizer.special_tokens_map,
        )  # fmt: skip
        library, ids, places, end = self.tokenizer.backend_tokenizer, [], [], 0
        library.encode_special_tokens = True
        for match in [*self.found.finditer(text), None]:
            stop = match.start() if match else len(text)
            kept = [at for at in range(end, stop) if text[at] != SAFE]
            encoding = library.encode("".join(text[at] for at in kept), add_special_tokens=False)
            ids += encoding.ids
            kept.append(stop)  # where a token of no character may be
            places += [(kept[a], kept[max(a, b - 1)] + 1) for a, b in encoding.offsets]
            if match:
                ids, places, end = [*ids, self.special[match[0]]], [*places, match.span()], match.end()
        library.encode_special_tokens = False
        runs = []
        for first, last in stretches:
            inside = [n for n, (a, b) in enumerate(places) if a < last and b > first]
            runs += [(inside[0], inside[-1] + 1)] if inside else []
        return ids, runs

    def documents(self, messages: list[dict], tools) -> list[tuple[list[int], list[int]]]:
        """Tokens and mask of each: the answers, from the last to the first, in the longest rendering that has them."""
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        learnt: dict[int, list[int]] = {len(messages): []}
        texts = {n: self.text(messages[:n], tools) for n in {len(messages), *(i + 1 for i in answers)}}
        for i in reversed(answers):
            fits = [n for n in learnt if self.stands_in(messages[i], texts[i + 1], texts[n])]
            learnt.setdefault(max(fits, default=i + 1), []).append(i)
        return [
            self.document(messages[:n], tools, [answers.index(i) for i in learnt[n]])
            for n in sorted(learnt)
            if learnt[n] or len(learnt) == 1
        ]

    def stands_in(self, message: dict, text: str, whole: str) -> bool:
        """The answer may be followed by what only the end of a conversation has: a special token behind its own."""
        words = message["content"].split("</think>")[-1].strip()
        own = self.found.search(text, text.rfind(words) + len(words))
        return whole.startswith(text) or (bool(own) and whole.startswith(text[: own.end()]))

    def document(self, messages: list[dict], tools, answers: list[int]) -> tuple[list[int], list[int]]:
        ids, runs = self.tokens_and_runs(messages, tools)
        mask = [0] * len(ids)
        for answer in answers:
            mask[slice(*runs[answer])] = [1] * (runs[answer][1] - runs[answer][0])
        return ids, mask


def name_of(error: DataError) -> str:
    """What a refusal is about, without what differs from talk to talk."""
    text = re.sub(r"the template \S+", "the template", str(error).splitlines()[0])
    return re.sub(r"message \d+", "message N", text)


def compare(name: str, case: Case, talks: int, seed: int, folder: pathlib.Path) -> bool:
    path = folder_of(case, folder)
    tokenizer, reference = Tokenizer(path), Reference(case, path)
    plain, marked = (Chat(ChatTemplate(text, name, tokenizer), tokenizer) for text in (case.plain, case.source))
    counts, refused = Counter(), Counter()
    spelt = reference.spelt[:8]
    for n in range(talks):
        messages, tools = talk(f"{seed} {name} {n}", spelt)
        try:
            reference.text(messages, tools)
            takes = True
        except (jinja2.TemplateError, TypeError):
            takes = False
        try:
            prepared = plain.prepare(messages, tools)
        except DataError as error:
            refused[name_of(error)] += 1
            if takes and "refuses the conversation" in str(error):
                counts["refused, and transformers takes it"] += 1
            continue
        if not takes:
            counts["taken, and transformers refuses it"] += 1
            continue
        expected = reference.documents(messages, tools)
        got = [(document.ids.tolist(), list(document.mask)) for document in prepared.documents]
        counts["talks"] += 1
        counts["documents"] += len(got)
        counts["spelt"] += prepared.spelt > 0
        counts["several"] += len(got) > 1
        if [ids for ids, _ in got] != [ids for ids, _ in expected]:
            counts["tokens differ"] += 1
            show(name, n, "tokens", tokenizer, got, expected)
        elif got != expected:
            counts["masks differ"] += 1
            show(name, n, "masks", tokenizer, got, expected)
        if not check_marked(marked, reference, messages, tools):
            counts["marked masks differ"] += 1
    bad = sum(count for kind, count in counts.items() if "differ" in kind or "transformers" in kind)
    print(
        f"{name:12} {counts['talks']:4} of {talks} talks, {counts['documents']:4} documents"
        f" ({counts['several']} talks of several; {counts['spelt']} that spell special tokens)"
        + "".join(f"; {kind}: {count}" for kind, count in counts.items() if "differ" in kind or "transformers" in kind)
    )
    for why, count in refused.most_common():
        print(f"{'':12} {count:4} refused: {why}")
    return bool(counts["talks"]) and not bad


def check_marked(chat: Chat, reference: Reference, messages: list[dict], tools) -> bool:
    """With {% generation %} the whole conversation is one document, and all that is marked is learnt."""
    try:
        [document] = chat.prepare(messages, tools).documents
    except DataError:
        return False
    answers = range(sum(message["role"] == "assistant" for message in messages))
    return (document.ids.tolist(), list(document.mask)) == reference.document(messages, tools, list(answers))


def show(name: str, n: int, what: str, tokenizer: Tokenizer, got: list, expected: list) -> None:
    """The first difference."""
    print(f"{name}: talk {n}: {what}: {len(got)} documents, expected {len(expected)}")
    for (ids, mask), (ids_, mask_) in zip(got, expected, strict=False):
        if (ids, mask) != (ids_, mask_):
            pairs = list(zip(zip(ids, mask, strict=True), zip(ids_, mask_, strict=True), strict=False))
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            for which, of in (("got", pairs), ("expected", pairs)):
                chosen = [pair[which == "expected"] for pair in of[max(0, at - 12) : at + 12]]
                print(
                    f"  {which:9}", repr(tokenizer.decode([i for i, _ in chosen])), "".join(str(m) for _, m in chosen)
                )
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("templates", nargs="*", default=list(CASES), help="of templates.py (all)")
    parser.add_argument("--talks", type=int, default=200, help="of each template (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the talks (1)")
    options = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.templates:
            if not compare(name, CASES[name], options.talks, options.seed, pathlib.Path(scratch) / name):
                failed.append(name)
    print(
        f"{len(options.templates) - len(failed)} passed, {len(failed)} failed" + f": {', '.join(failed)}" * bool(failed)
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
