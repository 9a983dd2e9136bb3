"""Whose fault does a sentence name, where a code beside it is vague: the request's, another resource's, the way's?

Each function takes lower-case text. Rules ask them through the marks of rules.py, so a row can say it.
"""

from __future__ import annotations

import re
from typing import Final

_RESOURCE: Final = (
    r"(?:(?:input|output|training|message|vector|cached|fine-?tun\w{0,5}|memory|prompt) )?"
    r"(?:files?|file_id|uploads?|batch(?:es)?|batch_id|msgbatch|message_batch|threads?|runs?|assistants?|"
    r"conversations?|caches?|cachedcontents?|content cache|cache entry|cached contents?|responses?|sessions?|"
    r"vector ?stores?|containers?|images?|attachments?|artifacts?|blobs?|voices?|datasets?|corpora|corpus|documents?|"
    r"items?|skills?|jobs?|operations?|evals?|evaluations?|messages?|knowledge base|prompt templates?)"
)
_ID: Final = r"(?:`[^`\n]{1,160}`|'[^'\n]{1,160}'|\"[^\"\n]{1,160}\"|[\w./:\-]{1,160})"
_NOT_THERE: Final = (
    r"(?:(?:is|was|were|are|could|can)? ?not (?:be )?(?:found|located|exist)|does not exist|doesn't exist|do not exist|"
    r"couldn't be found|can't be found|not found|no longer exists|has expired|has been deleted|was deleted)"
)
_OTHER_RESOURCE: Final = re.compile(
    rf"\b{_RESOURCE}(?: objects?)?(?: with)?(?: the)?(?: id| ids| name| named)?[ :=]{{0,3}}"
    rf"(?:\({_ID}\)|{_ID})? ?{_NOT_THERE}"
    rf"|\b(?:no such|unknown|no|could not find|cannot find|can't find|couldn't find|unable to find|failed to find) "
    rf"(?:the |a |any )?{_RESOURCE}\b(?: (?:objects?|id|found|with|named|exists?|matching)\b|[: ]{{1,2}}{_ID})"
    r"|\b(?:file|upload|batch|msgbatch|thread|run|asst|resp|conv|vs|cachedcontents|files|batches|sess|skill|job)[_/\-]"
    rf"[\w\-]{{3,160}}[`'\"]? {_NOT_THERE}"
)
"""A thing that a caller keeps by an id, and that it is not there: `Upload 'u_9' was not found`."""

_RESOURCE_HINTS: Final = (
    "file", "upload", "batch", "thread", "run", "assistant", "asst", "conv", "cache", "resp", "session", "vector",
    "container", "image", "attach", "artifact", "blob", "voice", "dataset", "corp", "document", "item", "skill", "job",
    "operation", "eval", "message", "knowledge", "template", "vs_",
)  # fmt: skip
_GONE_HINTS: Final = ("deprecated", "retired", "removed", "discontinued", "sunset", "no longer")

_FEATURE_GONE: Final = re.compile(
    r"(?:\A|[.:\n] ?|\bthe |\bthis |\byour |\b)(?P<subject>(?:[\w'`\"\-]{1,40} ){0,5}[\w'`\"\-]{1,40}) "
    r"(?:is|are|was|were|has been|have been|is now|are now) (?:now )?"
    r"(?:deprecated|retired|removed|discontinued|sunset|no longer (?:supported|available|offered))"
)
_USE_INSTEAD: Final = re.compile(
    r"\b(?:use|switch to|migrate to|move to|replaced by|see) (?:the |our |to )?(?:[\w\-]{1,30} ){0,4}"
    r"(?:api|tools?|parameter|feature|field|option)\b"
)
_NO_FEATURE: Final = re.compile(
    r"\b(?:api|apis|endpoint|endpoints|route|url|path|version|models?|deployment|engine|server|key|account)\b|m-0"
)

_FORM_NOUN: Final = (
    r"(?:messages?(?:\[\d{1,4}\])?|roles?|content|contents|tools?|tool[_ ]calls?|tool[_ ]choice|tool_results?|"
    r"tool_use|function name|parameters?|arguments?|fields?|property|properties|json schema|schema|temperature|top_p|"
    r"top_k|max_tokens|max_completion_tokens|max_output_tokens|response_format|image_url|stream_options|system prompt|"
    r"input|inputs|stop sequences?|prefill)"
)
_FORM_VERB: Final = (
    r"(?:must (?:not )?(?:be (?:\"|'|`|greater|less|larger|smaller|at (?:least|most)|one of|in\b|an?\b|either|between|"
    r"positive|non-?empty|unique|user\b|followed|preceded|specified|set\b|text\b|string|integer|number|array|object|"
    r"the\b|provided|present|valid)|have\b|contain|start|begin|end\b|alternate|match|follow|include)|"
    r"should (?:be (?:an?\b|one of|in\b|greater|less|non-?empty|either|between)|have\b|contain|start|end\b|match)|"
    r"(?:is|are) (?:required|missing|empty|malformed|not of type|not valid under|not allowed|not permitted|"
    r"invalid(?! api))|cannot be (?:empty|null|blank)|can't be (?:empty|null|blank)|may not be (?:empty|null)|"
    r"not be (?:empty|null|blank)|has an? (?:invalid|unsupported|unexpected|wrong) |"
    r"expected (?:an? )?\w{1,20}, (?:but )?got)"
)
_REQUEST_FORM: Final = re.compile(
    rf"\b{_FORM_NOUN}\b[^.\n]{{0,60}}? {_FORM_VERB}"
    rf"|\b(?:invalid|malformed|missing|unexpected|unsupported|duplicate|unknown) (?:value for |type for )?(?:the )?"
    rf"[`'\"]?{_FORM_NOUN}\b(?! (?:from|by) )"
)
_FORM_HINTS: Final = ("must", "should", "requir", "missing", "empty", "invalid", "malformed", "expected", "not ",
                      "unsupported", "duplicate", "unknown", "has a")  # fmt: skip

_LIMIT_AND_ASKED: Final = re.compile(
    r"limit(?: is| of)?[ :=]{1,3}(\d{1,12}(?:,\d{3}){0,4})\b[^.\n]{0,80}?(?:requested|asked for|needs?)[ :=]{1,3}"
    r"(\d{1,12}(?:,\d{3}){0,4})\b"
)
_PARAMETER_MODEL: Final = re.compile(
    r"\bparameters?:? [`'\"]?model[`'\"]?(?: (?:specified|provided|given|passed|sent))?(?: in (?:the|your) request)?:? "
    r"(?:is|are|was) (?:invalid|not valid|not recogni[sz]ed|incorrect|illegal)"
    r"|\b(?:invalid|illegal) (?:value (?:for|of) )?(?:the )?parameter:? [`'\"]model[`'\"]"
    r"|\binvalid value (?:for|of) [`'\"]model[`'\"]"
)
_OF_ITS_TYPE: Final = re.compile(r"must be|type|string|expected|required|missing|empty|blank|null|length|format")


def names_other_resource(text: str) -> bool:
    """Whether something that is no model is said not to be there."""
    return any(noun in text for noun in _RESOURCE_HINTS) and _OTHER_RESOURCE.search(text) is not None


def says_feature_gone(text: str) -> bool:
    """Whether a feature, and no model, endpoint or version, is said to be given up in favour of another."""
    if not any(word in text for word in _GONE_HINTS) or _USE_INSTEAD.search(text) is None:
        return False
    return any(_NO_FEATURE.search(found["subject"]) is None for found in _FEATURE_GONE.finditer(text))


def is_about_request(text: str) -> bool:
    """Whether a sentence says what the request's form should be: `role must be user or assistant`."""
    return any(hint in text for hint in _FORM_HINTS) and _REQUEST_FORM.search(text) is not None


def asks_over_limit(text: str) -> bool:
    """Whether the request alone is larger than the limit that it met: no wait makes it fit."""
    found = _LIMIT_AND_ASKED.search(text) if "limit" in text else None
    return found is not None and int(found[2].replace(",", "")) > int(found[1].replace(",", ""))


def refuses_model_id(text: str) -> bool:
    """Whether the value of the request's own `model` is refused, and not its type or its absence."""
    if "parameter" not in text and "invalid value" not in text:
        return False
    return _PARAMETER_MODEL.search(text) is not None and _OF_ITS_TYPE.search(text) is None
