"""Texts to try a tokenizer on, the same on every machine: a dozen scripts, code, emoji, white space of all kinds, digits,
special tokens inside the text, private-use and unassigned code points, bytes that are no UTF-8."""

import random
import unicodedata

SCRIPTS = {
    "latin": "the quick brown fox isn't what you'd call lazy; it's over there, they've said. WE'LL SEE! I'M HE'D 'S 'ſ",
    "accents": "déjà vu, naïve façade, Ærøskøbing, Þórr, żółć, ñandú, e\u0301a\u0308o\u0302, ﬁn ﬆ ŉ ǰ ẖ",
    "greek": "Η γρήγορη αλεπού, ΔΙΑΦΟΡΑ και ὕδωρ ᾳ",
    "cyrillic": "Съешь же ещё этих мягких французских булок, їжак ґанок",
    "hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה שָׁלוֹם",
    "arabic": "نص حكيم له سر قاطع وذو شأن عظيم ١٢٣٤ ۴۵۶ مُحَمَّد",
    "devanagari": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा १२३",
    "tamil": "யாமறிந்த மொழிகளிலே தமிழ்மொழி ௧௨௩",
    "thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓",
    "georgian": "იქნებ აღარ აჟამო ჩემზე ᲐᲑᲒ",
    "ethiopic": "ሰማይ አይታረስ ንጉሥ አይከሰስ ፩፪፫",
    "han": "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。一二三四五〇𠀀𠮷",
    "kana": "いろはにほへと ちりぬるを ｶﾀｶﾅ ヴァイオリン々〆ー",
    "hangul": "키스의 고유조건은 입술끼리 만나야 하고 ㄱㄴㄷ 각",
    "symbols": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ≠ ½ ② Ⅷ ⅷ 𝟘𝟙 € £ ¥ ™ © ° ′ ″ ‰ ⁂ ※ → ⇒ ▁▂▃ ❶ 🄰 🅰 Ⓐ ⓩ K Å ſ",
    "emoji": "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 ❤️‍🔥 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🤷🏿‍♀️ ☺️ 😀😀",
    "code": 'for (int i = 0; i < n; ++i) { a[i] += "x\\n" + f(b->c, 0x1fULL); }  // don\'t\n\tif x == None:\n\t\treturn {"k": [1, 2.5e-3]}\n',
    "markup": '<p class="a">&nbsp;<|x|></p> <0x41> <0xZZ> http://example.org/a?b=c&d=%20#e',
}
SPACES = [" ", "  ", "   ", "        ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", " \n", "\n ", " \t ", "\u00a0", "\u3000",
          "\u2003", "\u2028", "\u0085", "\u180e", "\u200b", "\ufeff", "\v", "\f", "\u1680", "\x1c", "\x00"]
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<s>", "</s>", "<unk>", "<|added|>", "<|single|>", "<|strips|>",
            "<|reserved", "<|begin_of_text", "<|left|>", "<|right|>"]
RARE = ["\ue000", "\uf8ff", "\U000f0000", "\U0010ffff", "\u0378", "\U000e0080", "\ufdd0", "\ufffe", "\uffff", "\ufffd",
        "\U0001fffe", "\u05ff", "\u2fe0"]
MALFORMED = [b"\x80", b"\xff", b"\xc0\xaf", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xc3",
             b"\xe2\x28\xa1", b"\xf8\x88\x80\x80\x80", b"\xf0\x80\x80", b"\xed\xbf\xbf\xed\xa0"]


def words(r):
    """Some words of one script, as they stand there, mixed up or joined."""
    text = SCRIPTS[r.choice(list(SCRIPTS))]
    begin = r.randrange(len(text))
    return text[begin : begin + r.randrange(1, 30)]


def piece(r):
    """One thing that somebody may have written, as bytes."""
    kind = r.randrange(20)
    if kind < 9:
        text = words(r)
    elif kind < 12:
        text = r.choice(SPACES) * r.choice([1, 1, 1, 2, 3, 17])
    elif kind < 13:
        text = "".join(r.choice("0123456789") for _ in range(r.choice([1, 2, 3, 4, 7, 40])))
    elif kind < 14:
        text = r.choice(SPECIALS)
    elif kind < 15:
        text = r.choice(RARE)
    elif kind < 16:
        text = "".join(chr(r.randrange(0x20, 0x7F)) for _ in range(r.randrange(1, 12)))
    elif kind < 17:
        text = r.choice(["'s", "'S", "'ſ", "'Ll", "'VE", "’s", "'re", "'RE", "'m", "'d'T", "''t"])
    elif kind < 18:
        text = r.choice("aAzé中👍- ") * r.choice([2, 5, 100])
    elif kind < 19:
        text = r.choice([" ", ""]) + r.choice(["the", "The", "and", "KING", "love", "-", "..."]) + r.choice([" ", ",", "\n"])
    else:
        return r.choice(MALFORMED)
    return text.encode("utf-8", "surrogatepass")


def document(size, seed):
    """About `size` bytes of pieces, one behind the other."""
    r = random.Random(seed)
    parts, total = [], 0
    while total < size:
        parts.append(piece(r))
        total += len(parts[-1])
    return b"".join(parts)


def pieces(count, seed):
    """Short texts, each of a few pieces; the first ones are the edges: nothing, one space, and so on."""
    r = random.Random(seed)
    edges = [b"", b" ", b"  ", b"\n", b"a", b" a", b"a ", b"\xff", b"\xe2\x82", "▁".encode(), b"\x00", b"'s"]
    return edges + [b"".join(piece(r) for _ in range(r.randrange(1, 6))) for _ in range(count - len(edges))]


def random_bytes(count, seed):
    """Byte strings without any sense."""
    r = random.Random(seed)
    return [bytes(r.randrange(256) for _ in range(r.randrange(40))) for _ in range(count)]


def code_points(without):
    """Code points in company: behind a letter, a digit, a space and an apostrophe, doubled, at a line's end. All of the
    first two planes and of tags but `without`, and some of the rest, which are ideographs, private or unassigned."""
    documents = []
    for begin in range(0, 0x110000, 256):
        if 0xD800 <= begin < 0xE000:
            continue
        step = 1 if begin < 0x20000 or 0xE0000 <= begin < 0xE0200 else 64
        known = [chr(c) for c in range(begin, begin + 256, step) if c not in without]
        text = "".join(f"a{c}b {c}{c}1{c}2 '{c} {c}\n{c}\r" for c in known)
        documents.append(text.encode())
    return documents


# Marks of several classes, what composes without a mark, what is compatible with others, what only ever decomposes.
AWKWARD = ["\u0301", "\u0323", "\u0307\u0323", "\u0345", "\u0338", "\u05b7\u05bc", "\u3099", "\u1100\u1161\u11a8", "\u09c7\u09be",
           "\u0f71\u0f72", "\u212b", "\u2126", "\u0958", "\ufb01", "\u00bd", "\ufdfa", "\uff21", "\u3392", "\u2460", "\U0001d15e",
           "\u2000", "\u00a0", "\u1e9b\u0323", "\uf900", "=\u0338", "\n\u0301", "K\u212a", "\u01c6", "\u1fbf\u0301"]


def decomposed(r):
    """Some words of one script with their marks behind the letters, or what Unicode's forms change in other ways."""
    if r.randrange(2):
        return unicodedata.normalize("NFD", words(r))
    return "".join(r.choice(AWKWARD + list("aeo \nu1")) for _ in range(r.randrange(1, 6)))


def pieces_with(tokens, count, seed):
    """Short texts, each of a few pieces: as above, with these tokens between them, and decomposed characters."""
    r = random.Random(seed)
    some = lambda: [piece(r), decomposed(r).encode(), r.choice(tokens).encode() if tokens else b""][r.randrange(3)]
    return [b"".join(some() for _ in range(r.randrange(1, 7))) for _ in range(count)]
