"""Does a sentence say that a model does not exist, and is it ours that it names?

A model counts as named only whole: a longer id that starts with ours is another model (Rule 3).
"""

from __future__ import annotations

import re
from typing import Final

_PART_OF_ONE: Final = (
    r"(?!(?:config|token|header|file|output|param|field|response|weight|setting|path|type|format|request|key|permission|card|info|"
    r"capabilit|feature|endpoint|context|input|tool|function|message|temperature|prompt|provider|option|argument|adapter|"
    r"template|image|region|location|rank|registr|catalog|cache|queue|state|server|runner|"
    r"worker|session|checkpoint|artifact|api|slot|snapshot|weight|shard|owner|slug|download|access|property|pric|value|group|list|url|schema|mode)\w{0,12}\b)"
)
"""A bare word after `model` that makes it a part or a property of a model, not its name."""
_NAME: Final = (
    r"(?:`[^`\n]{0,160}`|'[^'\n]{0,160}'|\"[^\"\n]{0,160}\"|<[^>\n]{0,160}>|" + _PART_OF_ONE + r"[^\s`'\"]{1,160})"
)
_GONE: Final = (
    r"(?:does not exist(?! on (?:replica|node|worker|shard|host))|doesn't exist|"
    r"do not exist|did not exist|not exist|not found|isn't found|could not be found|"
    r"cannot be found|can not be found|can't be found|was not found|not recogni[sz]ed|"
    r"not valid(?! (?:json|yaml|xml|for|in)\b)|is invalid|isn't valid|unknown|"
    r"has been (?:deprecated(?! for)|retired|decommissioned|discontinued|archived|removed|shut down|sunset|deleted|"
    r"disabled|"
    r"taken offline)|"
    r"(?:is|was) (?:deprecated|in deprecation|archived|retired|decommissioned|discontinued|sunset|"
    r"removed(?! from (?:the |its )?(?:queue|cache|memory|batch|pool|list)))|"
    r"(?:has )?reached (?:its |the )?end[ -]of[ -](?:its )?(?:life|support|service)|"
    r"no longer (?:available|supported|served|exists|offered|hosted)|"
    r"(?:is |are )?not (?:available|supported|served|deployed|listed|offered|hosted|registered|configured|loaded|"
    r"installed)"
    r"(?! (?:for|in|on|with|when|while|via|to|by this|at|under|until|as|right|now|yet|currently|temporarily|today|"
    r"because)\b)|"
    r"(?:is |are )?not (?:supported|served|available) by (?:any|provider)|"
    r"(?:is |are )?not (?:supported|available) (?:for|in|on) (?:this (?:environment|server|deployment|gateway|"
    r"provider)|the selected provider)|"
    r"isn't (?:available|supported|served)(?! (?:for|in|on|with|to|at|under|while|when|right|now|yet|currently)\b)|"
    r"not in (?:the|this|our) (?:list|set) of (?:\w{1,12} )?models|"
    r"unavailable on this)"
)
_FORWARD: Final = re.compile(
    # "the model `x` does not exist", "model 'x' not found", "deployment x was not found": read from the noun on.
    r"(?:models?|deployment|engine|inference profile|lora)(?: adapter)?(?: or (?:endpoint|deployment))?"
    r"(?: with(?: the)?(?= name| id| identifier))?"
    r"(?: id| ids| name| named| code| version| identifier| alias)?"
    rf"(?: at)?(?: for api)?(?![a-z0-9_])[ :=]{{0,3}}(?:\(?{_NAME}\)?[ ,:.]{{0,3}})?"
    r"\b(?:(?:is|was|are|which|that|you requested|requested) ){0,3}"
    rf"(?:that )?{_GONE}"
)
_NOUN: Final = re.compile(r"model|deployment|engine|inference profile|lora")
_BACKWARD: Final = re.compile(
    # "unknown model: x", "invalid model name", "no such model": read back from the noun.
    r"(?:unknown|invalid|no such|unsupported|unrecogni[sz]ed|nonexistent|non-existent|undefined) "
    r"(?:requested )?model(?!_)"
    r"(?! (?:output|response|parameter|config|input|type|format|argument|arn|provider|field|setting|option|family|"
    r"error|state|exception|failure|path|url))"
    r"|(?:unknown|no such) \w{1,20} model(?: id| name)?(?:: ?| ?[`'\"])"
    r"|(?:cannot|can't|could not|couldn't|unable to) (?:find|locate|resolve) (?:the )?(?:\w{1,20} )?model"
    r"|no [`'\"]?models?(?:_name|_id)?[`'\"]? (?:"
    r"named|found(?! (?:in (?:the |your )?(?:request|body|payload)|"
    r"for (?:your|this)))|with (?:the |this )?(?:id|name|alias|identifier|string)|"
    r"with [`'\"]|matches|matching|"
    r"available with)"
)
_PHRASES: Final = (
    "non-serverless model", "not a valid model", "not found the model", "no endpoints found for", "try pulling it",
    "is not a model",
    "model identifier is invalid", "deployment for this resource does not exist",
    "supported api model names are", "allowed now, your model", "model disabled.",
    "unavailable for free", "model_not_found", "no deployments found for",
    "repository not found for url", "no available channel for model", "no available channels for model",
    "llm provider not provided", "is not found for api", "model is not a valid", "no models loaded",
)  # fmt: skip
_WIDE: Final = re.compile(
    r"模型不存在|模型(?:(?!文件|工具|返回|参数|字段|会话|输出|图片)[^，。\n]){0,80}不存在|不存在[^，。\n]{0,8}模型|模型[^，。\n]{0,40}(?:已下线|已下架|未找到|找不到)|"
    r"未知的?模型|无效的?模型|无此模型|不支持的模型|模型[^，。\n]{0,40}无可用渠道"
)
_TONGUES: Final = re.compile(
    r"(?<!für )(?<!für das )(?<!dem )(?<!pour )(?<!pour le )(?<!du )"
    r"(?<!para )(?<!para el )(?<!para o )(?<!del )(?<!do )"
    r"mod[eè]l(?:l|lo|o|e|os|i)?\b[^.\n]{0,80}(?:nicht gefunden|existiert nicht|introuvable|n'existe p|no existe|"
    r"n[oã]o? (?:fue |foi )?encontrad|no se encontr|não existe|non esiste|non trovato)|"
    r"(?<!для )модел[ьи][^.\n]{0,80}не (?:найден|существу)|"
    r"モデル[^。\n]{0,80}(?:見つかりません|存在しません|見つからない)|"
    r"모델[^.\n]{0,40}(?:찾을 수 없|존재하지)"
)
"""The same in other tongues: a noun and what is said of it, in one sentence."""
NOUNS_MAX: Final = 24
_FOREIGN_OBJECT: Final = re.compile(
    r"\b(?:tool|function|file|item|assistant|thread|run|session|cache|cachedcontent|conversation|response|prompt|batch|"
    r"message|vector store|container|user|project|organization|workspace|image|voice|dataset)s?"
    r"(?: with)?(?: id| name| named)?[ :]{0,2}(?:`[^`]{0,160}`|'[^']{0,160}'|\"[^\"]{0,160}\"|[\w.\-/]{1,160})?"
    r" (?:is |was |does )?(?:not (?:found|exist)|could not be found)"
    r"|\b(?:tokenizer|template|price|pricing|configuration|adapter|provider|voice) for (?:the )?model"
    r"|not (?:found|exist) in (?:the |your )?(?:cooldown|fallback|request|cost|pric)"
)
_NAMED: Final = re.compile(
    r"\b(?:models?|deployment|engine)(?: id| name| named| code)?[ :=]{0,3}"
    r"(?:`([^`\n]{1,160})`|'([^'\n]{1,160})'|\"([^\"\n]{1,160})\"|([^\s`'\",;()]{1,160}))"
)
_INSIDE: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.:/@+")
_LIKE_AN_ID: Final = re.compile(r"(?=[^\s]*[\d/])[a-z0-9@][a-z0-9._:/@+\-]{2,159}")


def says_missing(text: str) -> bool:
    """Whether lower-case text says of a model, and of nothing else, that it is not there."""
    return _missing(text) and _FOREIGN_OBJECT.search(text) is None


def _missing(text: str) -> bool:
    if any(phrase in text for phrase in _PHRASES):
        return True
    if not text.isascii() and (_WIDE.search(text) or _TONGUES.search(text)):
        return True
    if ("modell" in text or "modelo" in text) and _TONGUES.search(text):
        return True
    if PLAIN_ID in text and _ITSELF.search(text):
        return True
    at = 0
    for _ in range(NOUNS_MAX):
        noun = _NOUN.search(text, at)
        if noun is None:
            return False
        start, at = noun.span()
        if (
            text[start - 1 : start] not in _LETTERS
            and _FORWARD.match(text, start)
            and _OF_ANOTHER.search(text, max(start - 20, 0), start) is None
        ):
            return True
        if noun[0] == "model" and _BACKWARD.search(text, max(start - 40, 0), start + 40):
            return True
    return False


_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-/")
_OF_ANOTHER: Final = re.compile(
    r"[\w`'\")\]] (?:for|(?<!associated )with|of|by|in|on|from|owns|using|runs|serves)"
    r"(?: the| this| your| requested)? ?\Z"
)
"""Before the noun: what is missing is something else, and the model only says whose it is (`batch with model ...`)."""


def names_whole(text: str, model: str) -> bool:
    """Whether lower-case text names this model itself and not a longer id that contains it."""
    wanted = model.lower()
    for name in (wanted, wanted.rpartition("/")[2], wanted.removesuffix(":latest")):
        if len(name) > 1 and _occurs(text, name):
            return True
    return False


PLAIN_ID: Final = "m-0"
_ITSELF: Final = re.compile(
    # The id alone at the start of a sentence: "acme/m-9 does not exist".
    rf"(?:\A|[:-] )model: {PLAIN_ID}(?:\Z|\n|\. received)|"
    rf"(?:\A|[.:\n] ?)[`'\"]?{PLAIN_ID}[`'\"]?:? (?:(?:is|was|has been) )?(?:does not exist|doesn't exist|not exist|"
    r"not found|could not be found|no longer available|deprecated|decommissioned|retired|discontinued|"
    r"not (?:supported|available)\.?\Z)"
)


def without_name(text: str, model: str) -> str:
    """Lower-case text with this model's id made plain: `omni-moderation-2` says nothing of a moderation."""
    wanted = model.lower()
    for name in (wanted, wanted.rpartition("/")[2]):
        if _IS_AN_ID.match(name) and name in text:
            text = text.replace(name, PLAIN_ID)
    return text


_IS_AN_ID: Final = re.compile(r"(?=.*[\d/:.-])[a-z0-9@][a-z0-9._:/@+\-]{4,159}\Z")


def _occurs(text: str, name: str) -> bool:
    at = text.find(name)
    for _ in range(64):
        if at < 0:
            return False
        before = text[at - 1 : at]
        after = text[at + len(name) : at + len(name) + 2]
        # A full stop or colon may end the sentence; followed by more of an id it belongs to a longer name.
        ends = (
            not after
            or after[0] not in _INSIDE
            or (after[0] in ".:" and (len(after) == 1 or after[1] not in _INSIDE))
            or after == "--"
        )
        if ends and (before not in _INSIDE or before in ("", "/", ":", "=")):
            return True
        if after == ":l" and text.startswith(":latest", at + len(name)) and before not in _INSIDE:
            return True
        at = text.find(name, at + 1)
    return False


def names_another(text: str, model: str) -> bool:
    """Whether lower-case text speaks of a model by an id that is not this one, and nowhere of this one."""
    if names_whole(text, model):
        return False
    for found in _NAMED.finditer(text):
        name = (found[1] or found[2] or found[3] or found[4] or "").rstrip(".:,")
        if _LIKE_AN_ID.fullmatch(name) and ("-" in name or "/" in name or any(c.isdigit() for c in name)):
            return True
    return False
