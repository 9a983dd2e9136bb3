"""Damage in text: encodings applied twice, replacement characters, a chat template's own marks, loops (Rule 3)."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# What cp1252 shows for the bytes 0x80 to 0x9F, and latin-1 for those that cp1252 leaves out.
_CP1252: Final = bytes(range(0x80, 0xA0)).decode("cp1252", "ignore")
CANDIDATES_MAX: Final = 300
"""So many suspicious places are looked at: enough to judge a text, and a bound on the time it takes."""
_CONTINUATION: Final = f"\u0080-\u00bf{_CP1252}"
_RUN: Final = re.compile(
    f"(?:[\u00c2-\u00df][{_CONTINUATION}]|[\u00e0-\u00ef][{_CONTINUATION}]{{2}}|[\u00f0-\u00f4][{_CONTINUATION}]{{3}}){{1,64}}"
)
_LEAD: Final = re.compile(f"[\u00c2-\u00f4][{_CONTINUATION}]")
"""Where a run may begin; one character class in front, so that the search runs over clean text at full speed."""
_GROUP: Final = re.compile(
    f"[\u00c2-\u00df][{_CONTINUATION}]|[\u00e0-\u00ef][{_CONTINUATION}]{{2}}|[\u00f0-\u00f4][{_CONTINUATION}]{{3}}"
)
_CLOSING: Final = frozenset(
    "\u00a0\u00ab\u00bb\u2018\u2019\u201c\u201d\u201e\u201a\u2039\u203a\u2026\u2013\u2014\u2022\u2122\u00b7"
)
"""Marks that follow a letter in correct text: `é »`, `groß“`, `MANHÃ”`."""
_BYTES: Final = {character: byte for byte in range(0x80, 0xA0)
                 for character in [bytes([byte]).decode("cp1252", "ignore")] if character}  # fmt: skip


def double_encoded(text: str) -> int:
    """How many runs of the text are UTF-8 that was read as latin-1 or cp1252: re-encoded, they decode as UTF-8 and
    get shorter. Counts no further than two, which is damage in a text of any length.
    """
    if text.isascii():
        return 0
    about: bool | None = None
    runs = looked_at = at = 0
    while runs < 2 and looked_at < CANDIDATES_MAX and (start := _LEAD.search(text, at)):
        looked_at += 1
        found = _RUN.match(text, start.start())
        at = found.end() if found else start.start() + 1
        if found and _is_encoded_twice(found[0], text[found.start() - 1 : found.start()], text[at : at + 1]):
            if about is None:
                near = text[max(found.start() - ABOUT_CHARS, 0) : at + ABOUT_CHARS]
                about = _ABOUT_ENCODINGS.search(near) is not None
            runs += not (about and _is_subject(text, found))
    return runs


def _is_encoded_twice(run: str, before: str, after: str) -> bool:
    decoded = _decode(run)
    if decoded is None:
        return False
    groups = _GROUP.findall(run)
    for group, character in zip(groups, decoded, strict=False):
        if not _is_plausible(character):
            continue
        if len(group) == 4 or group[0] in "\u00e2\u00ef":
            # Emoji, and the dashes and quotes of U+2000 to U+2FFF: nobody writes such sequences.
            if len(group) == 4 or not set(group[1:]) <= _CLOSING:
                return True
            continue
        if not set(group[1:]) & _CLOSING:
            return True
        if len(group) == 2 and not (before.isupper() or before in _OPENING) and not _ends_word(group, before, after):
            return True
        if len(group) == 2 and after.isalpha() and before.isalpha():
            return True
    # Other scripts (CJK, Hindi, Thai) come in rows; one letter with two closing marks is correct French.
    return len(groups) >= 3 and all(_is_plausible(character) for character in decoded)


ABOUT_CHARS: Final = 600
"""So near to the first damaged place must a text say that it is about encodings."""
_ABOUT_ENCODINGS: Final = re.compile(
    r"mojibake|utf-?8|latin-?1|windows-125\d|cp-?125\d|iso-8859|charset|character set|encoding|kodierung|zeichensatz|"
    r"codifica[cç]|encodage|乱码|编码|文字化け|кодировк",
    re.I,
)


def _is_subject(text: str, run: re.Match[str]) -> bool:
    """Whether a text about encodings shows this run: it stands alone, or the right characters are there as well.
    Damage eats into words.
    """
    alone = not text[run.start() - 1 : run.start()].isalnum() and not text[run.end() : run.end() + 1].isalnum()
    decoded = _decode(run[0])
    return alone or (decoded is not None and decoded in text)


_OPENING: Final = frozenset("\"'(\u00ab\u2018\u201c\u201e\u201a\u2039[")


def _ends_word(group: str, before: str, after: str) -> bool:
    """Whether the pair may be a capital (or sharp s) at the end of a word before a closing mark."""
    return group[0] == "\u00df" or (not after.isalpha() and not before.islower() and group[0] not in "\u00c2\u00c3")


def _is_plausible(character: str) -> bool:
    code = ord(character)
    if code < 0xA0 or 0x700 <= code <= 0x8FF:
        return False
    return unicodedata.category(character)[0] in "LPSN" or character in "\u00a0\u00ad\u200b\u200d\ufeff\ufe0f"


def _decode(run: str) -> str | None:
    data = bytearray()
    for character in run:
        code = ord(character)
        if code < 0x100:
            data.append(code)
        else:
            data.append(_BYTES[character])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


_ABOUT_REPLACEMENT: Final = re.compile(
    r"u\+fffd|\\ufffd|&#xfffd|&#65533|0xfffd|ef bf bd|efbfbd|replacement char|replacement symbol|ersatzzeichen|"
    r"caract[eè]re de remplacement|car[aá](?:c|k)?ter de (?:reemplazo|sustitu|substitui)|caractere de substitui|"
    r"заменяющ|символ замены|替换字符|替換字元|置換文字",
    re.I,
)


_LOST: Final = ("\ufffd", "锟斤拷", *map(chr, range(0xFFF0, 0xFFF9)), "\ufffe", "\uffff")
"""U+FFFD, the same read as GBK, and code points that no character will ever have: bytes widened the wrong way."""
_ABOUT_GBK: Final = re.compile(r"乱码|亂碼|编码|編碼|gbk|gb2312|gb18030|utf-?8|mojibake|encoding", re.I)


def has_replaced(text: str) -> bool:
    """Whether anything in the text can only stand for lost bytes."""
    return any(mark in text for mark in _LOST)


def replacement_char(text: str) -> bool:
    """Whether U+FFFD, or what can only stand for lost bytes, is in the text as damage and not as its subject."""
    if not has_replaced(text):
        return False
    if "\ufffd" not in text:
        about_gbk = "锟斤拷" in text and _ABOUT_GBK.search(text) is not None
        return not about_gbk and _ABOUT_REPLACEMENT.search(text) is None
    if not _ABOUT_REPLACEMENT.search(text):
        return True
    for found in re.finditer("\ufffd+", text):
        # The subject of a text stands alone; damage eats into words.
        if text[found.start() - 1 : found.start()].isalnum() or text[found.end() : found.end() + 1].isalnum():
            return True
    return False


_MARK: Final = re.compile(
    # One character class in front, so that the search runs over clean text at full speed.
    # A word between `<|` and `|>`, or with one of the two, is a mark in every tokenizer and nothing elsewhere.
    r"[<\[\]](?:(?<=<)(?:\|[a-zA-Z]\w{1,40}(?:\|>|>)|(?:channel|turn|message|think|tool_call|tool_response|tool)\|>|"
    r"｜[^｜\n]{2,40}｜>|</?SYS>>|(?:start|end)_of_(?:turn|utterance|text|message|image)>|"
    r"(?:/?s|eos|bos|pad|unk)>(?=\s*\Z)|"
    r"(?<=\A<)(?:s|bos)>|\|?sop\|?>|unused\d{1,5}>|0x[0-9A-F]{2}>)"
    r"|(?<=\[)(?:/?INST\]|gMASK\]|TOOL_CALLS\])|(?<=\])<\]minimax\[>\[)"
)
MARK_CHARS: Final = 4096
"""Marks are looked for in this much of the beginning and of the end, where they leak."""
_MARK_BEGINNINGS: Final = ("<|", "<｜", "INST]", "SYS>>", "_of_turn>", "</s>", "<s>", "<eos>", "<bos>", "<pad>",
                           "<unk>", "gMASK", "[TOOL_CALLS]", "<unused", "<0x", "<sop>", "]<]minimax", "|>",
                           "<end_of_", "<start_of_")  # fmt: skip
"""Every mark holds one of these: a quick look that spares clean text the pattern."""
_CODE_SPAN: Final = re.compile(r"```[^`]{0,20000}```|`[^`\n]{1,400}`|~~~[^~]{0,20000}~~~")
_ABOUT_MARKS: Final = re.compile(
    r"token|template|chatml|delimiter|marker|markup|prompt format|special|separator|jeton|marqueur|símbolo|símbolos|"
    r"токен|шаблон|分隔|标记|标签|トークン|模板",
    re.I,
)
_HTML_WORDS: Final = re.compile(r"\bhtml\b|strike|durchgestrichen|barré|tachado|<s>[^<]{1,200}</s> ?\w", re.I)
"""By these `<s>` is a tag of HTML."""
_QUOTES: Final = frozenset("\"'`\u00ab\u201c\u201d\u2018\u2019\u201e\u300c")


_PIECE: Final = re.compile(r"(?<=[a-z,.;:!?])[\u0120\u010a](?=\w)|(?:\A|(?<=[\w,.;:!?]))\u2581(?=[^\W_])")
_HARMONY: Final = re.compile(
    r"(?<=[\w.!?)\"'\u2019\u201d])assistant(?:final|analysis|commentary(?: to=\w)?)(?=[^a-z]|[a-z]{0,40}\Z)"
)
_HARMONY_STARTS: Final = ("analysis", "commentary", "final")


def _pieces(text: str) -> str | None:
    """What a tokenizer writes for a blank (`\u0120`, `\u2581`), left between words; or the headers of a reply's
    channels that lost their marks (`analysisThe user asks ...assistantfinalHello`).
    """
    if "assistant" in text and text.startswith(_HARMONY_STARTS) and (found := _HARMONY.search(text)):
        return found[0]
    if text.isascii() or ("\u0120" not in text and "\u2581" not in text):
        return None
    plain = _CODE_SPAN.sub(" ", text[: 2 * MARK_CHARS])
    marks = _PIECE.findall(plain)
    return marks[0] if len(marks) >= 2 and plain.count(" ") <= 3 * len(marks) else None


def control_token(text: str) -> str | None:
    """The first mark of a chat template or of a tokenizer that leaked into the text, or None if the text only speaks
    of such marks.
    """
    if (pieces := _pieces(text)) is not None:
        return pieces
    if not any(beginning in text for beginning in _MARK_BEGINNINGS):
        return None
    if len(text) > 2 * MARK_CHARS:
        text = text[:MARK_CHARS] + "\n" + text[-MARK_CHARS:]
    if _MARK.search(text) is None:
        return None
    plain = _CODE_SPAN.sub(lambda span: " " * len(span[0]), text)
    discussed = _ABOUT_MARKS.search(_MARK.sub(" ", plain)) is not None
    is_html = "<s>" in plain and _HTML_WORDS.search(plain) is not None
    begin, end = len(plain) - len(plain.lstrip()), len(plain.rstrip())
    for looked_at, found in enumerate(_MARK.finditer(plain)):
        if looked_at >= CANDIDATES_MAX:
            break
        if plain[found.start() - 1 : found.start()] in _QUOTES and plain[found.end() : found.end() + 1] in _QUOTES:
            continue
        if is_html and found[0] in ("<s>", "</s>"):
            continue
        # A text about marks names them within its sentences; a leaked one stands at an edge of the text.
        at_an_edge = found.start() <= begin or found.end() >= end
        if not discussed or at_an_edge:
            return found[0].strip()
    return None


LOOP_REPEATS_MIN: Final = 10
LOOP_CHARS_MIN: Final = 300
LOOP_WORDS_CHARS_MIN: Final = 80
"""A shorter loop counts if it is one word or two, twenty times, and nearly all of the text."""


def loop(text: str) -> bool:
    """Whether the text ends in one phrase again and again, or is mostly one letter in a row."""
    stripped = text.rstrip()
    if len(stripped) < 40:
        return False
    if _row_of_one(stripped):
        return True
    if len(stripped) < LOOP_WORDS_CHARS_MIN:
        return False
    tail = stripped[-4096:]
    # The end of a loop is not the end of its phrase: the period is the way back to the last 24 characters.
    for width in (24, 64):
        probe = tail[-width:]
        at = tail.rfind(probe, 0, len(tail) - 1)
        if at < 0:
            continue
        period = len(tail) - width - at
        repeats = _repeats(tail, period)
        covered = repeats * period
        long_loop = repeats >= LOOP_REPEATS_MIN and covered >= LOOP_CHARS_MIN and covered * 3 >= len(tail)
        if long_loop or (repeats >= 20 and covered * 5 >= len(stripped) * 4):
            unit = tail[-period:]
            return sum(c.isalpha() for c in unit) * 3 >= len(unit.replace(" ", "")) > 0
    return False


def _repeats(tail: str, period: int) -> int:
    unit = tail[-period:]
    count, end = 0, len(tail)
    while end >= period and tail[end - period : end] == unit:
        count += 1
        end -= period
    return count


def _row_of_one(text: str) -> bool:
    """Whether at least half of the text is one letter (or `!`) in a row: such a row lies across its middle."""
    middle = len(text) // 2
    letter = text[middle]
    if not (letter.isalpha() or letter == "!"):
        return False
    left, right = text[:middle], text[middle:]
    row = len(left) - len(left.rstrip(letter)) + len(right) - len(right.lstrip(letter))
    return row >= 40 and row * 2 >= len(text)


_ESCAPED: Final = re.compile(r"\\u([0-9a-fA-F]{4})")


def as_sent(raw: bytes, codec: str) -> str:
    """The bytes as their charset reads them, with the `\\u` escapes of JSON opened."""
    text = raw.decode(codec, "replace")
    if "\\u" not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def other_script(text: str) -> bool:
    """Whether most letters of the text are of another script than the Latin one."""
    if text.isascii():
        return False
    letters = [ord(c) for c in text[:4096] if c.isalpha()]
    foreign = sum(1 for code in letters if code > 0x24F and not 0x1E00 <= code <= 0x1EFF)
    return foreign >= 8 and foreign * 2 > len(letters)
