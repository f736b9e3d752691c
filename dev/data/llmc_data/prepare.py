"""Turns text into llm.c's shards of tokens for train_llama."""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from llmc_data import delimiter, manifest, progress, rows
from llmc_data.conversion import Conversion
from llmc_data.counts import counted
from llmc_data.download import cache_folder
from llmc_data.encode import Encoding
from llmc_data.errors import DataError, exit_code
from llmc_data.example import example
from llmc_data.readers import READERS, Reading, names_of_rows
from llmc_data.shards import MAX_TOKENS
from llmc_data.sources import Source, resolve
from llmc_data.template import ChatTemplate, find_template, has_template
from llmc_data.tokenizer import open_tokenizer
from llmc_data.unchanged import refuse_changed

EMPTY_NAMED = 8  # of the files
SEQUENCE, EPOCHS = 512, 4  # of the line that trains on conversations, if they are many: README.md's
FEWEST_STEPS = 24  # of that line: few conversations need more epochs
FEWEST = 128  # tokens of a split from which on a held-out loss says something: a sequence of the smallest model
LONGEST_OF_TINY, LONGEST_OF_MODEL = 1024, 4096  # sequences that the trainer takes by default


def number_of_tokens(text: str) -> int:
    number = float(text)
    if not 1 <= number <= MAX_TOKENS or number != int(number):
        raise ValueError
    return int(number)


def fraction(text: str) -> float:
    if not 0 <= float(text) < 1:
        raise ValueError
    return float(text)


def escaped(text: str) -> str:
    r"""\n, \t and \\ as in C."""
    return re.sub(r"\\([nrt\\])", lambda match: {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}[match[1]], text)


SOURCES = (
    "files of text, JSON lines, parquet or arrow; folders and patterns of them; URLs, also URL#sha256=HEX; data sets"
    " OWNER/NAME[@REVISION][:PATTERN] of the hub; tinyshakespeare, tinystories, fineweb-edu"
)

FIELD = (
    "field or column of the text (text, or prompt and completion; with --chat messages, conversations, or those two)"
)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="prepare", description=__doc__, allow_abbrev=False, usage="dev/data/prepare SOURCE… --out DIR [options]"
    )
    option = parser.add_argument
    option("sources", nargs="+", metavar="SOURCE", help=SOURCES)
    option("--out", type=Path, required=True, metavar="DIR", help="where the shards go")
    option("--name", help="how their names begin (the first source's name)")
    option("--tokenizer", type=Path, metavar="PATH", help="a tokenizer.json, or the folder that has one (none: bytes)")
    option("--shard-tokens", type=number_of_tokens, default=100_000_000, metavar="N", help="tokens a shard (1e8)")
    option("--val-fraction", type=fraction, default=0.01, metavar="X", help="of the documents that are held out (0.01)")
    option(
        "--delimiter",
        choices=delimiter.PLACES,
        help="where it stands (before each document; with --chat after it, if turns have the delimiter inside)",
    )
    option(
        "--delimiter-token",
        metavar="TOKEN",
        help="the delimiter (the tokenizer's begin of text, else its end; with after its end, else its begin)",
    )
    option("--format", choices=READERS, help="of all sources (by their names)")
    option("--text-field", metavar="NAME", help=FIELD)
    option(
        "--document-separator",
        type=escaped,
        metavar="TEXT",
        help=r"between the documents of a text file; \n is a newline",
    )
    option("--keep-separator", action="store_true", help="it stays at the end of the document before it")
    option("--strip", action="store_true", help="drop white space at both ends of each document")
    option(
        "--invalid-utf8", choices=("replace", "error"), default="replace", help="by U+FFFD, with a warning (replace)"
    )
    option("--bad-rows", choices=("skip", "error"), default="skip", help="with a warning, and counted (skip)")
    option(
        "--special-tokens",
        choices=("text", "parse"),
        default="text",
        help="those that texts spell stay letters, or become themselves (text); conversations have rules of their own",
    )
    option("--chat", action="store_true", help="the documents are conversations; masks say what is learnt")
    option(
        "--template",
        type=Path,
        metavar="FILE",
        help="jinja template of conversations (the tokenizer's, else Llama 3's)",
    )
    option(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="that tokenize (one a core)"
    )
    option("--cache", type=Path, default=cache_folder(), metavar="DIR", help=f"of downloads ({cache_folder()})")
    option("--save-every", type=float, default=10, metavar="SECONDS", help="how much a kill may cost (10)")
    option("--restart", action="store_true", help="delete what an earlier command left in DIR")
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error("--processes: at least 1")
    if options.document_separator == "":
        parser.error("--document-separator: it is empty")
    if options.delimiter_token and options.delimiter == "both":
        parser.error("--delimiter-token goes with --delimiter before or after; both takes the tokenizer's own two")
    if options.template and not options.chat:
        parser.error("--template goes with --chat")
    if options.chat and not options.tokenizer:
        parser.error("--chat needs a --tokenizer")
    if options.special_tokens == "parse" and (options.chat or not options.tokenizer):
        parser.error("--special-tokens parse is for texts, and needs a --tokenizer")
    return options


def conversion_of(options: argparse.Namespace) -> Conversion:
    tokenizer = open_tokenizer(options.tokenizer, options.special_tokens == "parse")
    template = find_template(options.template, tokenizer) if options.chat else None
    chat = ChatTemplate(*template, tokenizer) if template else None  # a bad one is refused before anything is read
    sources, empty = resolve(options.sources, options.cache, options.format)
    kind = kind_of(options, sources)
    place, token = delimiter_of(options, kind, chat, tokenizer)
    encoding = Encoding(
        tokenizer=options.tokenizer,
        delimiter=place,
        delimiter_token=token,
        val_fraction=options.val_fraction,
        kind=kind,
        field=options.text_field or ("text" if kind == rows.TEXT else None),
        strip=options.strip,
        replace_invalid=options.invalid_utf8 == "replace",
        skip_bad_rows=options.bad_rows == "skip",
        parse_special=options.special_tokens == "parse",
        template=template,
    )
    return Conversion(
        sources=sources,
        empty=empty,
        reading=Reading(
            kind=kind,
            field=encoding.field,
            separator=options.document_separator and options.document_separator.encode(),
            keep_separator=options.keep_separator,
            cut=tokenizer.cut,
        ),
        encoding=encoding,
        tokenizer=tokenizer,
        folder=options.out,
        name=options.name or name_of(options.sources[0]),
        shard_tokens=options.shard_tokens,
        processes=options.processes,
        save_every=options.save_every,
        command=command_of(options, sources, tokenizer, encoding, delimiter.find(place, token, tokenizer).describe()),
    )


def kind_of(options: argparse.Namespace, sources: list[Source]) -> str:
    """What the rows are read as. Without --chat the first row says whether all are prompts with completions."""
    if options.chat:
        if any(source.format == "text" for source in sources):
            raise DataError("--chat takes conversations as JSON lines, parquet or arrow, not text files")
        return rows.CHAT
    names = names_of_rows(sources[0].path, sources[0].format) if options.text_field is None else []
    is_pair = "text" not in names and all(name in names for name in rows.PAIR)
    if is_pair and any(source.format == "text" for source in sources):
        raise DataError("texts, and rows of a prompt and a completion: give them to one command each")
    return rows.COMPLETION if is_pair else rows.TEXT


def delimiter_of(
    options: argparse.Namespace, kind: str, chat: ChatTemplate | None, tokenizer
) -> tuple[str, str | None]:
    """Its place and token, as the command asks for them; else as the kind of data needs it."""
    place, token = options.delimiter, options.delimiter_token
    if place is None and token is None and chat:
        return delimiter.of_conversations(chat, tokenizer)
    if place is None and kind == rows.COMPLETION:  # the model learns to end: something must stand there
        begin, end = tokenizer.begin_and_end()
        place = "both" if token is None and begin and end and begin != end else "after"
    return place or "before", token


def name_of(source: str) -> str:
    """How the shards of a path, a pattern, a URL or a data set are called."""
    source = source.partition("#")[0]
    if "://" not in source:
        source = source.partition(":")[0].partition("@")[0]
    return re.sub(r"[^\w.-]+", "_", Path(source.partition("*")[0].rstrip("/")).stem) or "data"


def command_of(options: argparse.Namespace, sources: list[Source], tokenizer, encoding: Encoding, border) -> dict:
    """Whatever decides about the bytes of the shards."""
    return {
        "name": options.name or name_of(options.sources[0]),
        "sources": [source.origin | {"bytes": source.path.stat().st_size} for source in sources],
        "tokenizer": tokenizer.sha256 or tokenizer.name,
        "delimiter": border,
        "shard_tokens": options.shard_tokens,
        "val_fraction": options.val_fraction,
        "format": options.format,
        "text_field": encoding.field or {rows.CHAT: rows.MESSAGES}.get(encoding.kind, encoding.kind),
        "document_separator": options.document_separator,
        "keep_separator": options.keep_separator,
        "strip": options.strip,
        "invalid_utf8": options.invalid_utf8,
        "special_tokens": options.special_tokens,
        "template": encoding.template and encoding.template[0],
    }


def delete_earlier(folder: Path, command: dict) -> None:
    """What an earlier command left: the shards that its manifest or progress name, and what is not complete. At any
    moment the folder is seen to be ours, by the earlier manifest or by the progress of the command that begins."""
    complete, begun = manifest.read(folder), progress.read(folder)
    records = complete["shards"] if complete else []
    records += [record for split in begun.splits.values() for record in split["complete"]] if begun else []
    for name in [record["name"] for record in records]:
        (folder / name).unlink(missing_ok=True)
        (folder / name).with_suffix(".mask").unlink(missing_ok=True)
    for path in folder.glob("*.partial"):
        path.unlink()
    if complete or begun:
        progress.Progress(command).save(folder)
    (folder / manifest.FILE).unlink(missing_ok=True)


def summary(content: dict, options: argparse.Namespace) -> str:
    """What the shards hold, and the command that trains on them."""
    lines, folder = [], options.out
    for split, of in content["splits"].items():
        shards = sum(record["split"] == split for record in content["shards"])
        lines.append(
            f"{split:5}  {of['tokens']:>15,} token{'s' * (of['tokens'] != 1)}"
            f"  {of['documents']:>11,} document{'s' * (of['documents'] != 1)}"
            f"  {of['text_bytes']:>15,} byte{'s' * (of['text_bytes'] != 1)} of text  {counted(shards, 'shard')}"
        )
        if "learnt" in of:
            lines.append(f"       learnt: {of['learnt']:,} of {counted(of['tokens'], 'token')}")
        if nothing := of.get("documents_not_learnt"):
            lines.append(f"       nothing is learnt of {nothing:,} of {counted(of['documents'], 'conversation')}")
    lines += remarks(content)
    if content["replaced_characters"]:
        replaced = counted(content["replaced_characters"], "character was", "characters were")
        lines.append(f"{replaced} not UTF-8; U+FFFD stands there now")
    if "train" not in content["splits"]:
        lines.append("all documents are held out, and there is nothing to train on: give a smaller --val-fraction")
    if not all("xxh64" in record for record in content["shards"]):
        lines.append(
            "the trainer verifies these shards with --check-data alone: blocks have no checksums without xxhash"
        )
    if (lack := lack_of_held_out(content)) and content["command"]["val_fraction"]:
        lines.append(lack)
    if "train" in content["splits"]:
        lines.append(train_command(content, options))
    return "\n".join(lines)


def lack_of_held_out(content: dict) -> str:
    """Why nothing can be measured with the held-out split, and what to do; "" if it has enough tokens."""
    splits, fraction = content["splits"], content["command"]["val_fraction"]
    tokens = splits.get("val", {"tokens": 0})["tokens"]
    if tokens > FEWEST or "train" not in splits:
        return ""
    what = f"too little is held out ({counted(tokens, 'token')})" if tokens else "nothing is held out"
    documents = sum(of["documents"] for of in splits.values())
    wanted = f"give a larger --val-fraction than {fraction:g}, or more documents" if documents > 1 else "give more"
    if documents == len(content["command"]["sources"]) and not content["command"]["document_separator"]:
        wanted += "; --document-separator divides a text file into several"
    return f"{what} of {counted(documents, 'document')}: {wanted}"


def train_command(content: dict, options: argparse.Namespace) -> str:
    """The command that trains on the shards. Sequences are those of the default, if the training data are long enough; of
    conversations, and of a model's folder with weights, with README.md's numbers."""
    splits, of_splits = ["train"] + ["val"] * (not lack_of_held_out(content)), content["splits"]
    model = options.tokenizer if options.tokenizer and (options.tokenizer / "config.json").is_file() else None
    words = ["./train_llama"] + ["--model", shlex.quote(str(model))] * (model is not None)
    for split in splits:
        words += [f"--{split}-data", shlex.quote(f"{options.out}/{content['name']}_{split}_*.bin")]
    if content["delimiter"] is not None and any("learnt" in of for of in of_splits.values()):
        words += ["--packed-documents", "on"]
    room = max(1, of_splits["train"]["tokens"] - 1)  # a sequence, and the label of its last token
    if options.chat and model and any(model.glob("*.safetensors")):
        length = min(SEQUENCE, room)
        sequences = -(-(room + 1) // length)  # of which so few make an epoch that a step has one
        words += ["--seq-len", str(length), "--epochs", str(max(EPOCHS, -(-FEWEST_STEPS // sequences)))]
        words += ["--lr", "3e-4", "--out", "runs/tuned"]
    elif room < (LONGEST_OF_MODEL if model else LONGEST_OF_TINY):
        words += ["--seq-len", str(1 << max(0, room.bit_length() - 1))]
    return " ".join(words)


def remarks(content: dict) -> list[str]:
    """What was met in the sources. (An older manifest does not say it.)"""
    lines, of = [], content.get("rows", {})
    for shape, count in of.get("kinds", {}).items():
        lines.append(f"{counted(count, 'conversation')} from {shape}")
    if several := of.get("of_several_documents"):
        lines.append(
            f"{counted(several, 'conversation')} became several documents: the template renders earlier answers differently"
            " when more follow"
        )
    if skipped := of.get("skipped"):
        lines.append(f"skipped {skipped:,} of {counted(of['read'], 'row')} as bad; --bad-rows error ends at the first")
    if empty := content.get("empty_files"):
        lines.append(f"skipped {counted(len(empty), 'empty file')}: {', '.join(empty[:EMPTY_NAMED])}")
    spelt = content.get("special_tokens_spelt", {"count": 0})
    spelt_tokens = counted(spelt["count"], "special token is", "special tokens are")
    stay = "it stays" if spelt["count"] == 1 else "they stay"
    if spelt["count"] and content.get("chat"):
        lines.append(f"{spelt_tokens} spelt by others than the assistant; {stay} text")
    elif spelt["count"] and content["command"]["special_tokens"] == "text":
        lines.append(
            f"{spelt_tokens} spelt in the texts, the first {spelt['first']}; they are cut into letters: --special-tokens"
            " parse makes them tokens, and --document-separator TOKEN divides texts at one"
        )
    if content.get("chat") and not content["delimiter"]:
        lines.append("nothing stands between conversations: the template puts every token that could into its turns")
    return lines


def main() -> None:
    options = parse(sys.argv[1:])
    conversion = conversion_of(options)
    options.out.mkdir(parents=True, exist_ok=True)
    with progress.lock(options.out):
        if not (manifest.read(options.out) or progress.read(options.out)):
            conversion.refuse_foreign_files()
        if options.restart:
            delete_earlier(options.out, conversion.command)
        content = manifest.read(options.out)
        if content:
            progress.refuse_other_command(options.out, content["command"], conversion.command)
            refuse_changed(options.out, content, conversion.sources)
            (options.out / progress.FILE).unlink(missing_ok=True)
            print(f"{options.out} is complete already")
        else:
            content = conversion.run()
    if options.chat:
        for line in example(content, options.out, conversion.tokenizer):
            print(line)
    elif conversion.encoding.kind == rows.COMPLETION and has_template(conversion.tokenizer):
        print("the tokenizer has a chat template, which these prompts and completions lack: --chat renders them with it")
    print(summary(content, options))


if __name__ == "__main__":
    sys.exit(exit_code("prepare", main))
