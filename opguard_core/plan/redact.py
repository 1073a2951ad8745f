"""Keep secrets out of what is stored or shown of a command line.

A name decides, never the look of a value: a value is masked when the option or variable it belongs to says that it is
secret, and the password part of a URL always is. What it cannot see: secrets under innocent names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"
_SECRET_NAME = re.compile(r"(token|passw(or)?d|passwd|secret|credential|api[-_]?key|access[-_]?key|private[-_]?key|auth)", re.IGNORECASE)
# A count or a length of tokens is no secret; language model programs have many such options.
_INNOCENT_NAME = re.compile(
    r"(tokeni[sz]|tokens|(max|min|num|pad|eos|bos|unk|mask|sep|cls)[-_.]?\w*token|token[-_.]?(id|type|len|count|dim|size))", re.IGNORECASE
)
_URL_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)", re.IGNORECASE)
_URL_PARAMETER = re.compile(r"(?P<before>[?&](?P<name>[\w.-]+)=)[^&#\s]+")


def is_secret_name(name: str) -> bool:
    """Whether an option or variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _INNOCENT_NAME.search(name)


def redact_text(text: str) -> str:
    """Mask passwords and secret parameters of URLs inside one text."""
    masked = _URL_PASSWORD.sub(lambda match: match["before"] + MASK, text)
    return _URL_PARAMETER.sub(lambda match: match["before"] + MASK if is_secret_name(match["name"]) else match[0], masked)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line with the values of secret options masked; as many words as before.

    Knows ``--name value``, ``--name=value`` and ``NAME=value``.
    """
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        if hide_next and not word.startswith("--"):
            shown.append(MASK)
        elif equals and value and is_secret_name(name):
            shown.append(f"{name}={MASK}")
        else:
            shown.append(redact_text(word))
        hide_next = word.startswith("--") and not equals and is_secret_name(word)
    return shown
