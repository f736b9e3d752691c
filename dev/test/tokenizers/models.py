"""What the tokenizer.json files of public models consist of, and small stand-ins that consist of the same.

A row of MODELS is one file: its sha256 on the Hugging Face hub, some models that have this very file, and all its parts
but the vocabulary and the merges. Of the added tokens it has examples of each kind. The facts are those of a public census
of tokenizers: github.com/actual-computer/toks, census/coverage.json of 2026-10-04, which read the files.
A stand-in has a small vocabulary, that of files.py. `refused` is what our program names when it refuses such a file.
"""

import copy

import files

# ---- parts, in the words of tokenizer.json -------------------------------------------------------------------------------

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
LLAMA3 = CONTRACTIONS + LETTERS + r"|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + LETTERS + r"|\p{N}" + REST
QWEN3_5 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MINICPM5 = CONTRACTIONS + LETTERS + r"|\p{N}+" + REST
SEED = CONTRACTIONS + "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
LLADA = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def by_case(ends, numbers):
    """The pattern that takes a capital and the small letters behind it together."""
    begin, rest = r"[^\r\n\p{L}\p{N}]?", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return f"{begin}{UPPER}*{LOWER}+{ends}|{begin}{UPPER}+{LOWER}*{ends}|{numbers}{rest}"


O200K, TEKKEN = by_case(CONTRACTIONS + "?", r"\p{N}{1,3}"), by_case("", r"\p{N}")
CJK, MORE_CJK = "[一-龥぀-ゟ゠-ヿ]+", "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    + "\r\n"
    + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
SPARK = DEEPSEEK3.replace("[\r\n]*|\\s*[\r\n]+", "|[\r\n]")
# Some of these characters are written by number: an editor that composes characters would change them.
DEEPSEEK2_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)

bytes_ = lambda **flags: files.byte_level(use_regex=False, **flags)
gpt2 = lambda **flags: files.byte_level(**flags)
steps = lambda *all: files.sequence("pretokenizers", *all)
digits = lambda single=True: {"type": "Digits", "individual_digits": single}
words = lambda pattern: steps(files.split(pattern), bytes_())
matches = lambda pattern: steps(files.split(pattern, "Removed", True), bytes_())  # the same, as OLMo 2 writes it
metaspace = lambda scheme: {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
DEEPSEEK2 = steps(
    files.split("[\r\n]"), files.split(DEEPSEEK2_LETTERS), files.split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
    files.split(r"\s+$"), files.split(MORE_CJK), digits(), bytes_(),
)  # fmt: skip
GEMMA_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}

form = lambda name: {"type": name}
to_mark = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
LLAMA2_SPACES = files.sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, to_mark)
no_steps = files.sequence("normalizers")

from_mark = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
SPM_TEXT = files.sequence("decoders", from_mark, {"type": "ByteFallback"}, {"type": "Fuse"})
LLAMA2_TEXT = files.sequence("decoders", *SPM_TEXT["decoders"], {"type": "Strip", "content": " ", "start": 1, "stop": 0})

# A template names the tokens before and after a text, which is "$"; the offsets of ByteLevel change no id.
offsets = files.byte_level(add_prefix_space=True, trim_offsets=False)

special = lambda *names, **flags: [(name, flags) for name in names]
plain = lambda *names, **flags: [(name, {"special": False} | flags) for name in names]
SPACES = plain("   ", "    ", "        ", normalized=True)
CHATML = special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = special("<unk>", "<s>", "</s>")
TOOLS, THINKING = plain("<tool_call>", "</tool_call>"), plain("<think>", "</think>")


def bpe(**flags):
    """The model's flags; those of most files that are spelled in bytes if nothing else is said."""
    return {"byte_fallback": False, "ignore_merges": False, "fuse_unk": False, "dropout": None, "unk_token": None} | flags


PIECES = bpe(byte_fallback=True, fuse_unk=True, unk_token="<unk>")  # as converted from SentencePiece


def row(sha256, models, model, normalizer, pre_tokenizer, around, decoder, added, **more):
    """One file. `in_model`: the model's vocabulary has the added tokens; `lacks`: that many bytes are not in it."""
    return {"sha256": sha256, "models": models.split(), "model": model, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "around": around, "decoder": decoder, "added": added} | more  # fmt: skip


# ---- the files -----------------------------------------------------------------------------------------------------------

MODELS = [
    # Llama 2 and what has its vocabulary
    row("bcd04f0eadf90287bd26e1a183ac487d8a141b09b06aecb7725bbdd343640f2e",
        "meta-llama/Llama-2-7b-hf TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        PIECES, LLAMA2_SPACES, None, "<s> $", LLAMA2_TEXT, LLAMA, in_model=True),
    row("f9ffc4aede0845ab65324ce5dccb823dca2427f9a0710981e5bc2398d73d8162", "huggyllama/llama-7b",
        PIECES, LLAMA2_SPACES, None, "<s> $", LLAMA2_TEXT, special("<unk>", "<s>", "</s>", normalized=True), in_model=True),
    row("dcb4337ba92f948b322e080f8b59a2a21cfe65dc2aa7ecf7df080ae8aa63c157", "codellama/CodeLlama-7b-hf",
        PIECES, LLAMA2_SPACES, None, "<s> $", LLAMA2_TEXT, LLAMA, in_model=True),
    row("9e2ae3d66819f163cdcfedba5078f3a3af8118c2712491ed60912f77886bda6f",
        "microsoft/Phi-3-mini-4k-instruct microsoft/Phi-3.5-mini-instruct", PIECES, LLAMA2_SPACES, None, "$", LLAMA2_TEXT,
        special("<unk>", "<s>") + plain("</s>", rstrip=True) + special("<|end|>", "<|user|>", rstrip=True)),
    row("592a70a0f7aae41e1e2711383a233def76a85ef1698e35a0935ec5892d5403bd", "MaziyarPanahi/solar-pro-preview-instruct-GGUF",
        PIECES, LLAMA2_SPACES, None, None, LLAMA2_TEXT, LLAMA + special("<|placeholder1|>", rstrip=True)),
    row("d6e4810e827e4ffcd735429d19d585326bb4efb31e921cb870ecefc4c1fa16e3", "utter-project/EuroLLM-22B-Instruct-2512",
        PIECES, LLAMA2_SPACES, None, "<s> $", LLAMA2_TEXT, LLAMA + plain("<|added|>"), in_model=True),
    row("f6c51b273a33a35eab2af6d9ee20f047f81ba911ef0f8305b19c83aeb0940918", "cyankiwi/MiniCPM-SALA-AWQ-8bit",
        PIECES, LLAMA2_SPACES, None, "<s> $", LLAMA2_TEXT, LLAMA + special("<|im_start|>")),
    row("f9d6bae2d1358d84a6124da8f11f1bc460cdc7a7815f542d06973b414d0f777c", "Zyphra/Zamba2-1.2B-instruct",
        PIECES | {"unk_token": None}, LLAMA2_SPACES, None, "<|im_start|> $", LLAMA2_TEXT, special("<|im_start|>")),
    # Mistral
    row("11c08db21487c885d8c792180f0be237f6a261b89a46f128a6a80a3aa4bd1720",
        "mistralai/Mistral-7B-v0.1 mistralai/Mistral-7B-Instruct-v0.2",
        PIECES, None, metaspace("first"), "<s> $", LLAMA2_TEXT, LLAMA, in_model=True),
    row("e553af6fff7d7ad76e830608b218c5c0b0822998d5a1a96099a74cd3c1cb1a49", "mistralai/Mistral-7B-Instruct-v0.3",
        PIECES, None, metaspace("first"), "<s> $", LLAMA2_TEXT, LLAMA + special("[INST]", "[TOOL_CALLS]"), in_model=True),
    row("fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc", "MaziyarPanahi/Mixtral-8x22B-v0.1-GGUF",
        PIECES, LLAMA2_SPACES, None, "<s> $", LLAMA2_TEXT, LLAMA, in_model=True),
    row("8fde6dcab44aad1edbfea4b5f294ff2895d781794244d32697ee8f1ad0f8ddb0", "MaziyarPanahi/Mistral-Small-Instruct-2409-GGUF",
        PIECES, to_mark, None, "<s> $", SPM_TEXT, LLAMA + plain("[INST]"), in_model=True),
    row("e11c71726323d33da7b8d6f6f269f1988931c0a52b7122bcdd8c05042974e0db", "mistralai/Mistral-Nemo-Instruct-2407",
        bpe(ignore_merges=True), None, words(TEKKEN), "<s> $", gpt2(add_prefix_space=True), LLAMA, in_model=True),
    row("b76085f9923309d873994d444989f7eb6ec074b06f25b58f1e8d7b7741070949", "MaziyarPanahi/Mistral-Small-24B-Instruct-2501-GGUF",
        bpe(ignore_merges=True), None, words(LLAMA3), "<s> $", gpt2(add_prefix_space=True), LLAMA, in_model=True),
    row("bb201fb226cde11f66c3cf51c5344fb37b1611f00c21e75c324546d854eff2e1", "swiss-ai/Apertus-8B-Instruct-2509",
        bpe(ignore_merges=True), None, words(TEKKEN), "<s> $", gpt2(add_prefix_space=True), LLAMA + TOOLS, in_model=True),
    # Llama 3
    row("e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7", "meta-llama/Meta-Llama-3-8B",
        bpe(ignore_merges=True), None, words(LLAMA3), "<|begin_of_text|> $", gpt2(add_prefix_space=True),
        special("<|begin_of_text|>", "<|end_of_text|>")),
    row("79e3e522635f3171300913bb421464a87de6222182a0570b9b2ccba2a964b2b4",
        "meta-llama/Llama-3.1-8B meta-llama/Llama-3.2-1B meta-llama/Llama-3.3-70B-Instruct",
        bpe(ignore_merges=True), None, words(LLAMA3), "<|begin_of_text|> $", gpt2(add_prefix_space=True),
        special("<|begin_of_text|>", "<|eot_id|>")),
    row("4745787bf5429f4558dbadb95086d68ccc290ca1fac62bdb3d05c233fab5bc40", "RedHatAI/Llama-3.2-3B-Instruct-FP8",
        bpe(ignore_merges=True), None, words(LLAMA3), "<|begin_of_text|> $", gpt2(add_prefix_space=True),
        special("<|begin_of_text|>", "<|eot_id|>"), truncation=8196),
    row("492ebf55999f2a71beed8104e12d808bfcba5a230b7e511f2c6ccbc616f9d76c", "NousResearch/Hermes-3-Llama-3.1-8B",
        bpe(ignore_merges=True), None, words(LLAMA3), "<|begin_of_text|> $", gpt2(add_prefix_space=True),
        special("<|begin_of_text|>", "<|im_end|>") + TOOLS),
    row("b9c9eb63a8e03059914880f918cd28a880dec8b6e15e4461e1ff677e3743dbb8", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        bpe(ignore_merges=True), None, words(LLAMA3), None, gpt2(add_prefix_space=True),
        special("<｜begin▁of▁sentence｜>") + THINKING),
    row("4f4a59c1e93395a75686bc7555d93b628af8dae7f203235607b61efe9dd21341", "MaziyarPanahi/firefunction-v2-GGUF",
        bpe(), None, words(LLAMA3), None, gpt2(add_prefix_space=True), special("<|begin_of_text|>")),
    # SmolLM
    row("9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
        "HuggingFaceTB/SmolLM-135M HuggingFaceTB/SmolLM2-135M-Instruct HuggingFaceTB/SmolLM2-1.7B-Instruct",
        bpe(), None, steps(digits(), gpt2()), None, gpt2(add_prefix_space=True), CHATML, in_model=True, lacks=21),
    row("3d23ca43a58430ff97f8da6fb2d3cef2c49d30633e28ec826c4fc59c60f5f790",
        "nm-testing/SmolLM-1.7B-Instruct-quantized.w4a16", bpe(), None, steps(digits(), gpt2()), None,
        gpt2(add_prefix_space=True), CHATML, in_model=True, lacks=21, truncation=2048),
    row("7b6a500b662a34eb3f0374db856ba4ad7de4c81040571d78dc0d357238930005", "HuggingFaceTB/SmolLM3-3B",
        bpe(ignore_merges=True), None, words(LLAMA3), "$", gpt2(add_prefix_space=True), CHATML + TOOLS + THINKING),
    # Qwen
    row("f7c9b2dba4a296b1aa76c16a34b8225c0c118978400d4bb66bff0902d702f5b8", "Qwen/Qwen2-0.5B Qwen/Qwen1.5-MoE-A2.7B",
        bpe(), form("NFC"), words(QWEN2), None, bytes_(trim_offsets=False), CHATML),
    row("9c5ae00e602b8860cbd784ba82a8aa14e8feecec692e7076590d014d7b7fdafa",
        "Qwen/Qwen2.5-0.5B Qwen/Qwen2.5-7B-Instruct Qwen/Qwen3-8B-Base",
        bpe(), form("NFC"), words(QWEN2), None, bytes_(trim_offsets=False), CHATML + TOOLS),
    row("aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
        "Qwen/Qwen3-0.6B Qwen/Qwen3-8B Qwen/Qwen3-30B-A3B MaziyarPanahi/QwQ-32B-GGUF",
        bpe(), form("NFC"), words(QWEN2), None, bytes_(trim_offsets=False), CHATML + TOOLS + THINKING),
    row("def76fb086971c7867b829c23a26261e38d9d74e02139253b38aeb9df8b4b50a", "Qwen/Qwen3-Embedding-0.6B",
        bpe(), form("NFC"), words(QWEN2), "$ <|endoftext|>", bytes_(trim_offsets=False), CHATML + TOOLS + THINKING),
    row("c0acdaba32b920d640afb36af4396c91974e074735636e4016d17a8ed9c03730", "RedHatAI/Qwen3-32B-NVFP4",
        bpe(), form("NFC"), words(QWEN2), None, bytes_(trim_offsets=False), CHATML + TOOLS + THINKING, truncation=2048),
    row("5f9e4d4901a92b997e463c1f46055088b6cca5ca61a6522d1b9f64c4bb81cb42", "Qwen/Qwen3.5-9B Qwen/Qwen3.6-27B",
        bpe(), form("NFC"), words(QWEN3_5), None, bytes_(trim_offsets=False), CHATML + TOOLS),
    row("88145e3c3249adc2546ede277e9819d6e405e19072456e4b521cbc724bd60773", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        bpe(), form("NFC"), words(QWEN2), None, bytes_(trim_offsets=False), special("<｜begin▁of▁sentence｜>") + THINKING),
    row("68ec2440b89e5f5cd31be09cdd54f427d21b448f165c71fcd7e17636ac219696", "Bahushruth/Qwen3.6-35B-A3B-abliterated-v4",
        bpe(), form("NFC"), words(QWEN2), None, gpt2(add_prefix_space=True), CHATML + TOOLS, truncation=256, padding=True),
    # OLMo, Pythia
    row("73fd5254624f39a88e3faac6a8e11300fc3c735ed37880d4f4f08db898eaecca",
        "allenai/OLMo-2-0425-1B allenai/OLMo-2-1124-7B-Instruct allenai/Olmo-3-7B-Think",
        bpe(), None, matches(LLAMA3), None, gpt2(add_prefix_space=True), CHATML + plain("|||IP_ADDRESS|||"), in_model=True),
    row("c24618a1b3e6a38167beff1c72cffd126c3a66254347304b50547d12c5f25624", "EleutherAI/pythia-160m EleutherAI/gpt-neox-20b",
        bpe(), form("NFC"), gpt2(), None, gpt2(), special("<|endoftext|>", "<|padding|>") + SPACES, lacks=13),
    # DeepSeek
    row("a6abdd41a79c1de6b68bbb819ad9c8d63b97080b0b90949d1c37ddbf64ee118c", "deepseek-ai/deepseek-coder-7b-instruct-v1.5",
        bpe(), no_steps, DEEPSEEK2, None, gpt2(add_prefix_space=True),
        special("<｜begin▁of▁sentence｜>", normalized=True) + plain("ö", "<|EOT|>", normalized=True), lacks=13),
    row("ef48ebdc8546c2d8092349d321f1d162de804a1c8900df2b615c7dc8b02ce141", "deepseek-ai/deepseek-coder-6.7b-instruct",
        bpe(), no_steps,
        steps(files.split("[\r\n]"), files.split(r"\s?\p{L}+"), files.split(r"\s?\p{P}+"), files.split(MORE_CJK), digits(),
              bytes_()), None, gpt2(add_prefix_space=True),
        special("<｜begin▁of▁sentence｜>", normalized=True) + plain("ö", "<|EOT|>", normalized=True), lacks=13),
    row("621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41", "deepseek-ai/DeepSeek-V3",
        bpe(), no_steps, steps(files.split(r"\p{N}{1,3}"), files.split(CJK), files.split(DEEPSEEK3), bytes_()), None,
        gpt2(add_prefix_space=True), special("<｜begin▁of▁sentence｜>") + plain("<|EOT|>", normalized=True)),
    # Yi, Gemma
    row("f84c030851d762304b22886e5d1ee54ad921ff379c917fbac838582128a54c80", "dphn/dolphin-2.9.1-yi-1.5-34b",
        PIECES, to_mark, None, "$", SPM_TEXT, LLAMA + plain("<|im_start|>"), in_model=True),
    row("4e59c7f29bdcd82dd6c738138276afcdc5d3a8661ad22ea583dee5dede008d27", "MaziyarPanahi/Yi-Coder-9B-Chat-GGUF",
        PIECES | {"unk_token": None}, None, metaspace("never"), "$", SPM_TEXT, LLAMA + plain("<|im_end|>", "▁▁"), in_model=True),
    row("3f289bc05132635a8bc7aca7aa21255efd5e18f3710f43e3cdb96bcd41be4922", "google/gemma-2-2b google/gemma-2-9b-it",
        PIECES, to_mark, GEMMA_SPLIT, "<bos> $", SPM_TEXT, special("<bos>", "<eos>") + plain("\n\n", "▁▁▁", "<h1>"), in_model=True),
    row("4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795", "google/gemma-3-1b-it",
        PIECES, to_mark, GEMMA_SPLIT, "<bos> $", SPM_TEXT, special("<bos>", "<eos>") + plain("\n\n", "▁▁▁", "<h1>"), in_model=True),
    row("a574ceaaff7c7a8f091179c53fd17ae33567089c099d4ff37d4cb3bc1a87e80e", "sarvamai/sarvam-30b",
        PIECES, to_mark, GEMMA_SPLIT | {"pattern": {"Regex": " "}}, "<bos> $", SPM_TEXT, special("<bos>") + plain("\n\n"), in_model=True),
    # Others that transformers load as decoders
    row("8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6", "openai-community/gpt2 roneneldan/TinyStories-1M",
        bpe(), None, gpt2(), None, gpt2(add_prefix_space=True), special("<|endoftext|>", normalized=True), in_model=True),
    row("337da36be7a71a6e88aa9148967a7bc8736f4b47c7de8e19ba92b89e80734cfc", "microsoft/phi-2",
        bpe(), None, gpt2(), None, gpt2(add_prefix_space=True), special("<|endoftext|>") + SPACES),
    row("9f38d05d9d25756bb2f181ab5a0cebcd59e638df10336fc7ed1010f7296d0298", "microsoft/phi-4",
        bpe(), None, matches(LLAMA3), None, gpt2(add_prefix_space=True),
        special("<|endoftext|>", "<|im_start|>", lstrip=True, rstrip=True), in_model=True),
    row("382cc235b56c725945e149cc25f191da667c836655efd0857b004320e90e91ea", "microsoft/Phi-4-mini-instruct",
        bpe(), None, matches(O200K), None, gpt2(add_prefix_space=True),
        special("<|end|>", rstrip=True) + plain("<|tool|>", rstrip=True)),
    row("e2bad66439538cb4d5a7580680932432ed9ece9d3b8577e675512bdf11599253", "ibm-granite/granite-4.1-3b",
        bpe(), None, matches(LLAMA3), None, gpt2(add_prefix_space=True), CHATML + TOOLS, in_model=True),
    row("d3b4df07a0ce3940b15c77e2ea17ab5627ca0c4bf982d2eb37966aea0a81c918", "ibm-research/PowerMoE-3b bigcode/tiny_starcoder_py",
        bpe(), None, steps(digits(), gpt2()), None, gpt2(add_prefix_space=True), CHATML, in_model=True, lacks=14),
    row("0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3", "openai/gpt-oss-20b",
        bpe(ignore_merges=True), None, words(O200K), None, gpt2(add_prefix_space=True), special("<|startoftext|>", "<|end|>")),
    row("7c7507fef57dd4daa4c37103fa656a793748e4cbceb03f808ef292d0324aab10", "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct",
        bpe(), form("NFKC"), steps(digits(), gpt2()), None, gpt2(add_prefix_space=True),
        special("[BOS]", "[|user|]") + plain("   ", "\n\n"), in_model=True),
    row("3e065a558a034185fe299917b398685c1facd0169a9eea1e629eb30c171fed81", "openbmb/MiniCPM5-1B",
        bpe(unk_token="<unk>"), None, steps(files.split(r"\p{N}{1,3}"), files.split(MINICPM5), bytes_()), "<s> $",
        gpt2(add_prefix_space=True), LLAMA + plain("<|im_end|>", normalized=True)),
    row("807c53a95141e77c14e45f68c51db3f84d2ea6b555a6ea832bc99c88dae6a279", "poolside/Laguna-XS.2",
        bpe(dropout=0.0, unk_token="[UNK]"), None,
        steps(files.split(r"(?:\r?\n)+(?!\r?\n)", "MergedWithNext"), files.split(QWEN2), bytes_()), "〈|EOS|〉 $",
        gpt2(add_prefix_space=True), special("[UNK]", "〈|EOS|〉") + plain("<think>"), in_model=True),
    row("071eb20fe7bd601550b1b7838ff696d6c93b88f51257f753303d3df23163c381", "GSAI-ML/LLaDA-8B-Instruct",
        bpe(), form("NFC"), words(LLADA), None, gpt2(add_prefix_space=True), CHATML),
    row("db6520146c388c495a98bbea62ff6d00c0a8935bed33622e33bb33ec71aaafed", "LeaderboardModel1/zeta-2.1-autoround-W4A16",
        bpe(), form("NFC"), words(SEED), None, gpt2(add_prefix_space=True), CHATML, in_model=True),
    row("710cce15cf3565674c499f9413997c6e8101f2bdd96245cff8f0311fb501248c", "XHToken/Spark-X2.5-4B-GGUF",
        bpe(unk_token="<unk>"), no_steps,
        steps(files.split(r"\p{N}{1,3}"), files.split(CJK), files.split(SPARK), digits(), bytes_()), None,
        gpt2(add_prefix_space=True), LLAMA + TOOLS, in_model=True, lacks=13),
    row("2b795ca523cf349f4221bc2897417b8cbb58323ee12c7145c27082796e13b3e3", "LSX-UniWue/LLaMmlein_1B_prerelease",
        bpe(byte_fallback=True, fuse_unk=True, unk_token="<unk>"), None, gpt2(), "<s> $", gpt2(add_prefix_space=True), LLAMA,
        in_model=True, lacks=29),
    # Refused
    row("d6c5cdac1421ea998722aa88ea1cb630b2a9ec63bf8a85331bb3d9d321507186", "tiiuae/falcon-7b", bpe(), None,
        steps({"type": "Punctuation", "behavior": "Contiguous"}, gpt2(), digits(False), files.split("[0-9][0-9][0-9]")), None,
        gpt2(add_prefix_space=True), special("<|endoftext|>"), in_model=True, lacks=28, refused="Punctuation"),
    row("3fa39cd4b1500feb205bcce3b9703a4373414cafe4970e0657b413f7ddd2a9d3", "bigscience/bloom-560m", bpe(), None,
        words(r" ?[^(\s|[.,!?…。，、।۔،])]+"), None, bytes_(add_prefix_space=True), LLAMA, in_model=True, lacks=14,
        refused="[ inside a class"),
    row("2227ea9c52e8afb3f98bfed2679008b275f2664de69dfde174b374389eb0225d", "trl-internal-testing/tiny-Cohere2ForCausalLM",
        bpe(), None, steps(files.split(r"\d{1,3}(?=(?:\d{3})*\b)"), files.split(O200K), bytes_()), "<BOS_TOKEN> $",
        gpt2(add_prefix_space=True), special("<BOS_TOKEN>"), refused=r'"\b"'),
    row("955dc1fa623fab38cc92a3f4ee172423ae6d73201c4207569bfdf5626bc733f0", "llm-jp/llm-jp-3-150m",
        {"type": "Unigram", "unk_id": 0, "byte_fallback": True},
        files.sequence("normalizers", {"type": "Replace", "pattern": {"Regex": "(?<!\\n)^"}, "content": "▁"},
                       {"type": "Replace", "pattern": {"Regex": " "}, "content": "▁"}), None, "<s> $", None, LLAMA,
        refused="Unigram"),
    row("ad8b2a00566d1cce8f64b3bb73243c716ddb130ef09ae073cecf217c84cc42d3", "openai-community/openai-gpt",
        bpe(unk_token="<unk>", end_of_word_suffix="</w>"),
        {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        {"type": "BertPreTokenizer"}, None, {"type": "BPEDecoder", "suffix": "</w>"}, LLAMA, refused="BertNormalizer"),
]  # fmt: skip


# ---- stand-ins -----------------------------------------------------------------------------------------------------------


def template(around, ids):
    """The post_processor for "<s> $ </s>"; for nothing the one of files that put nothing around a text."""
    if around is None:
        return offsets
    names = around.split()
    text = names.index("$")
    return files.template(names[:text], names[text + 1 :], ids)


def without_bytes(model, count):
    """The model without so many of the bytes that its vocabulary spells, from the rarest ones on."""
    rare = [chr(c) for c in [*range(0x100, 0x121), *range(0xE0, 0x100)] if chr(c) in model["vocab"]][:count]
    kept = {token: id for token, id in model["vocab"].items() if not set(token) & set(rare)}
    model["vocab"] = {token: i for i, token in enumerate(kept)}
    model["merges"] = [(a, b) for a, b in model["merges"] if {a, b, a + b} <= kept.keys()]


def has_pieces(facts):
    """Whether the vocabulary is as converted from SentencePiece: characters, with bytes to fall back to."""
    return facts["decoder"] in (SPM_TEXT, LLAMA2_TEXT)


def stand_in(facts, of_bytes, of_pieces, lacks=True):
    """A file that consists of these parts. `of_bytes`, `of_pieces`: files with the two kinds of vocabularies."""
    file = copy.deepcopy(of_pieces if has_pieces(facts) else of_bytes)
    file["model"] |= facts["model"]
    if facts["model"].get("type") == "Unigram":
        file["model"] = facts["model"] | {"vocab": [["<unk>", 0.0], ["▁", -1.0], ["a", -2.0]]}
    elif facts.get("lacks") and lacks:
        without_bytes(file["model"], facts["lacks"])
    vocabulary = file["model"]["vocab"] if isinstance(file["model"]["vocab"], dict) else {"<unk>": 0, "▁": 1, "a": 2}
    if facts.get("in_model"):
        for content, _ in facts["added"]:
            vocabulary.setdefault(content, len(vocabulary))
    file["added_tokens"], end = [], len(vocabulary)
    for content, flags in facts["added"]:
        file["added_tokens"].append(files.added(vocabulary.get(content, end), content, **flags))
        end += content not in vocabulary
    ids = {token["content"]: token["id"] for token in file["added_tokens"]}
    file["post_processor"] = template(facts["around"], ids)
    file |= {key: facts[key] for key in ("normalizer", "pre_tokenizer", "decoder")}
    if "truncation" in facts:
        file["truncation"] = {"direction": "Right", "max_length": facts["truncation"], "strategy": "LongestFirst", "stride": 0}
    if "padding" in facts:
        file["padding"] = {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "<|endoftext|>"}  # fmt: skip
    return file
