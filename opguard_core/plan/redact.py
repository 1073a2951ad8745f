"""Keep secrets out of what is stored or shown of command lines, logs and error texts.

Two things give a secret away: the name it stands under (``hf_token=...``, ``"api_key": "..."``, ``--password ...``), and a
shape that nothing else has (``ghp_...``, ``AKIA...``, a private key). What it cannot see: secrets under innocent names
and of no known shape. Every pattern is bounded, so that the time grows with the text and not faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MASK = "***"

_SECRET_WORDS = frozenset(
    "password passwords passwd passphrase pwd secret secrets credential credentials auth authorization cookie "
    "apikey accesskey secretkey privatekey authtoken accesstoken".split()
)
_SECRET_ENDINGS = ("token", "password", "passwd", "secret", "apikey")
_KEYS_OF = frozenset("api access secret private signing encryption ssh account auth master deploy service".split())
# What stands before "token" in the names of language models: a kind of token of text, not a secret.
_TEXT_TOKENS = frozenset(
    "pad padding eos bos unk unknown mask sep cls class sos sot eot eod bot boi eoi boa eoa start end stop next last first prev previous "
    "image video audio vision speech text current max min num per new target input output generated predicted sampled top single special "
    "think system prefix suffix middle fim added dist register query extra any each every one decoder forced word draft".split()
)
_AFTER_TOKEN = frozenset("value secret key string".split())
_INNOCENT_NAMES = frozenset(("pwd", "oldpwd"))  # a shell's working folder
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\d+")

_URL_PASSWORD = re.compile(r"(?P<before>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://[^/\s:@]{0,200}:)[^/\s@]{1,500}(?=@)", re.IGNORECASE)
_URL_USER_ONLY = re.compile(r"(?P<before>(?<![a-z0-9+.-])https?://)[A-Za-z0-9_-]{20,500}(?=@)")
_URL_PARAMETER = re.compile(r"(?P<before>[?&](?P<name>[\w.-]{1,80})=)[^&#\s\"'<>]+")
_URL_SIGNATURES = frozenset(("sig", "signature", "x-amz-signature", "x-goog-signature"))
_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:
    hf_[A-Za-z0-9]{30,} | api_org_[A-Za-z0-9]{30,}
    | sk-(?=[\w-]{0,40}\d)[A-Za-z0-9_-]{20,}
    | gh[pousr]_[A-Za-z0-9]{36,} | github_pat_[A-Za-z0-9_]{22,} | glpat-[\w-]{20,}
    | (?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])
    | xox[abeprs]-[\w-]{10,} | AIza[\w-]{35} | ya29\.[\w-]{20,}
    | nvapi-[\w-]{20,} | gsk_[A-Za-z0-9]{20,} | r8_[A-Za-z0-9]{30,} | npm_[A-Za-z0-9]{36} | pypi-AgE[\w-]{20,}
    | eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}
    )""",
    re.VERBOSE,
)
_HEADER = re.compile(
    r"(?P<before>(?<![\w-])(?:proxy-)?authorization\\*[\"']?\s{0,4}[:=]\s{0,4}\\*[\"']?(?:(?:bearer|basic|token|digest)\s{1,4})?)[^\s\"',}\\]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<before>(?<![\w-])bearer\s{1,4})(?=[\w.~+/-]{0,100}\d)[\w.~+/-]{12,}=*", re.IGNORECASE)
_COOKIE = re.compile(r"(?P<before>(?<![\w-])(?:set-)?cookie:\s{1,4})[^\s=]{1,200}=[^\n]+", re.IGNORECASE)
_NAMED = re.compile(
    r"""(?<![\w./-])(?P<dashes>-{0,2})(?P<quote>\\{0,4}["'])?(?P<name>[A-Za-z_][\w.-]{0,80})(?(quote)(?P=quote)|)(?P<sign>\s{0,4}[:=]\s{0,4})"""
)
_VALUE = re.compile(
    r"""(?P<open>\\{0,4}["'])(?P<inside>(?:(?!(?P=open))[^\n]){0,4000})(?:(?P=open))? | [^\s,;&"'{}()\[\]\\]+""", re.VERBOSE
)
_OPTION = re.compile(r"(?P<before>(?<![\w-])--(?P<name>[A-Za-z][\w.-]{0,80})\s{1,4})(?P<value>[^\s-][^\s]*)")
_LISTED = re.compile(  # a command line as a list of Python or JSON shows it
    r"""(?P<before>(?P<quote>\\{0,4}["'])--?(?P<name>[A-Za-z][\w.-]{0,80})(?P=quote),\s{0,40}(?P<open>\\{0,4}["']))"""
    r"""(?!-)(?:(?!(?P=open))[^\n]){1,4000}"""
)
_KEY_LINES = re.compile(r"-----(?P<edge>BEGIN|END) (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=\s\\\"',:|>-]*")
_NO_SECRET = frozenset(("none", "null", "true", "false", "yes", "no", "", "nil", "undefined", "unset", "redacted"))
_NUMBER = re.compile(r"[+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?[%a-zA-Z/]{0,12}", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether an option, a variable or a key of this name holds a secret."""
    words = [word.lower() for word in _WORDS.findall(name[:200])]
    if not words or "".join(words) in _INNOCENT_NAMES:
        return False
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        after = words[index + 1] if index + 1 < len(words) else ""
        if word == "token":
            if before not in _TEXT_TOKENS and (not after or after in _AFTER_TOKEN):
                return True
        elif word == "key":
            if before in _KEYS_OF:
                return True
        elif word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS):
            return True
    return False


def redact_text(text: str) -> str:
    """Mask what looks like a secret in text that a program wrote; as many lines as before.

    Args:
        text: A log, an error text, a document, or one word.
    """
    masked = redact_shapes(text)
    masked = _HEADER.sub(_before, masked)
    masked = _BEARER.sub(_before, masked)
    masked = _COOKIE.sub(_before, masked)
    masked = _URL_PARAMETER.sub(_parameter, masked)
    masked = _without_assigned(masked)
    masked = _LISTED.sub(_option, masked)
    return _OPTION.sub(_option, masked)


def redact_shapes(text: str) -> str:
    """Mask only what has the shape of a secret: for source text, where a name says nothing (``token = tokens[0]``)."""
    masked = _URL_PASSWORD.sub(_before, text)
    masked = _URL_USER_ONLY.sub(_before, masked)
    masked = _SHAPES.sub(MASK, masked)
    return _without_keys(masked) if "PRIVATE KEY" in masked else masked


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line with the values of secret options masked; as many words as before.

    Knows ``--name value``, ``-name value``, ``--name=value`` and ``NAME=value``.
    """
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        if hide_next and not word.startswith("--"):
            shown.append(MASK)
        elif equals and value and _is_name(name) and is_secret_name(name):
            shown.append(f"{name}={MASK}")
        else:
            shown.append(redact_text(word))
        hide_next = word.startswith("-") and not equals and is_secret_name(word)
    return shown


def _is_name(text: str) -> bool:
    """Whether the part before an equals sign is one name: anything else is left to the patterns."""
    return bool(re.fullmatch(r"-{0,2}[\w.+-]{1,200}", text))


def _before(match: re.Match[str]) -> str:
    return match["before"] + MASK


def _option(match: re.Match[str]) -> str:
    return _before(match) if is_secret_name(match["name"]) else match[0]


def _parameter(match: re.Match[str]) -> str:
    return _before(match) if is_secret_name(match["name"]) or match["name"].lower() in _URL_SIGNATURES else match[0]


def _without_assigned(text: str) -> str:
    """Mask the values of ``name = value`` and ``"name": value`` under secret names."""
    parts: list[str] = []
    position = 0
    for name in _NAMED.finditer(text):
        if name.end() <= position or not is_secret_name(name["name"]):
            continue
        value = _VALUE.match(text, name.end())
        if value is None or not _may_be_secret(name, value):
            continue
        quote = value["open"] or ""
        parts += [text[position : name.end()], quote, MASK, quote]
        position = value.end()
    return "".join([*parts, text[position:]])


def _may_be_secret(name: re.Match[str], value: re.Match[str]) -> bool:
    """Whether this value, under this secret name, is worth hiding: not a number of tokens, a switch, or a word of prose."""
    word = value["inside"] if value["open"] else value[0]
    if word.strip().lower() in _NO_SECRET or MASK in word:
        return False
    if re.search(r"pass|pwd|secret|cred|key", name["name"], re.IGNORECASE):
        return True
    in_prose = not (name["quote"] or name["dashes"]) and ":" in name["sign"] and (not value["open"] or name["name"].lower() == "token")
    return not _NUMBER.fullmatch(word) and (not in_prose or (len(word) >= 8 and bool(re.search(r"\d", word))))


def _without_keys(text: str) -> str:
    """Mask the bodies of private keys line by line, so that lines keep their numbers."""
    return "".join(_masked_key_lines(text.splitlines(keepends=True)))


def _masked_key_lines(lines: list[str]) -> Iterator[str]:
    ends = [index for index, line in enumerate(lines) if (edge := _KEY_LINES.search(line)) and edge["edge"] == "END"]
    begins = [index for index, line in enumerate(lines) if (edge := _KEY_LINES.search(line)) and edge["edge"] == "BEGIN"]
    hidden: set[int] = set()
    for begin in begins:
        end = next((index for index in ends if index > begin), None)
        stop = end if end is not None else next((i for i in range(begin + 1, len(lines)) if not _KEY_BODY.fullmatch(lines[i])), len(lines))
        hidden.update(range(begin + 1, min(stop, begin + 400)))
    for end in ends:  # the beginning was cut off
        index = end - 1
        while index >= 0 and index not in begins and index not in hidden and _KEY_BODY.fullmatch(lines[index]):
            hidden.add(index)
            index -= 1
    for index, line in enumerate(lines):
        if index in hidden:
            yield MASK + line[len(line.rstrip("\r\n")) :]
        elif _KEY_LINES.search(line):
            yield _inside_line(line)
        else:
            yield line


def _inside_line(line: str) -> str:
    """A key that stands in one line, with its line breaks escaped."""
    parts = list(_KEY_LINES.finditer(line))
    shown, position = "", 0
    for edge in parts:
        between = line[position : edge.start()]
        shown += (MASK if position or (edge["edge"] == "END" and between.strip()) else between) + edge[0]
        position = edge.end()
    rest = line[position:]
    return shown + (MASK + rest[len(rest.rstrip("\r\n")) :] if parts[-1]["edge"] == "BEGIN" and len(rest.strip()) > 8 else rest)
