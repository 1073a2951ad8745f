"""Reads the mangled names of C++ (Itanium ABI) as far as kernels need it, straight into a short form.

Of a name of namespaces and classes the last part stays, and those with template arguments; `const` and references go, and so do
the parameters of the kernel itself. A lambda is named after the function around it.

Source: Itanium C++ ABI, section 5.1 (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling).
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_CHARS = 16_000
"""Longest mangled name that is read; the longest kernel of PyTorch 2.11 has some 4,000 characters."""

MAX_DEPTH = 120
MAX_PIECE = 6_000
"""Characters of a part of a name: substitutions could make a short text grow without bound."""

_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short", "t": "unsigned short",
    "i": "int", "j": "unsigned", "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long", "n": "__int128",
    "o": "unsigned __int128", "f": "float", "d": "double", "e": "long double", "g": "__float128", "z": "...",
}  # fmt: skip
_BUILTIN_D = {"d": "decimal64", "e": "decimal128", "f": "decimal32", "h": "half", "i": "char32_t", "s": "char16_t", "u": "char8_t"}
_BUILTIN_D |= {"a": "auto", "c": "auto", "n": "nullptr_t"}
_STD = {"a": "allocator", "b": "basic_string", "s": "string", "i": "istream", "o": "ostream", "d": "iostream"}
_LAMBDAS = ("__nv_dl_wrapper_t", "__nv_hdl_wrapper_t")  # nvcc's stand-ins for lambdas of host functions
_LAMBDA_TAGS = ("__nv_dl_tag", "__nv_hdl_tag")
_SUFFIX = {"P": "*", "R": "", "O": "", "C": "", "G": ""}


class Unreadable(Exception):
    """A name is not one of those that are read here."""


@dataclass
class Name:
    """A name without its surroundings.

    Attributes:
        base: The last part, without template arguments.
        args: Its template arguments; None if it has none.
        outer: Parts before it that have template arguments.
    """

    base: str
    args: list[str] | None = None
    outer: str = ""

    def __str__(self) -> str:
        if self.args is not None and self.base in _LAMBDA_TAGS and len(self.args) > 1:
            return self.args[1]
        if self.args is not None and self.base in _LAMBDAS:
            told = [arg for arg in self.args if arg not in ("true", "false")]
            return f"{told[0]}::lambda{told[1][told[1].find('(') :] if len(told) > 1 and '(' in told[1] else ''}" if told else "lambda"
        args = "" if self.args is None else f"<{', '.join(self.args)}>"
        return f"{self.outer}::{self.base}{args}" if self.outer else f"{self.base}{args}"


@dataclass
class Reader:
    """One pass over a mangled name.

    Attributes:
        text: The name.
        at: Position.
        name: The name of the function as far as it is read, for whoever has to do with a part.
    """

    text: str
    at: int = 0
    name: Name | None = None
    _known: list[str] = field(default_factory=list)
    _depth: int = 0

    def kernel(self) -> Name:
        """The name of a function; its parameters are not read.

        Raises:
            Unreadable: It is none, or holds what no kernel's name holds. ``name`` is then what was understood of it, if anything.
        """
        if not self.text.startswith("_Z") or len(self.text) > MAX_CHARS:
            raise Unreadable
        self.at = 2
        return self._name(top=True)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def _take(self, word: str) -> bool:
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise Unreadable

    def _know(self, piece: str) -> str:
        if len(piece) > MAX_PIECE:
            raise Unreadable
        self._known.append(piece)
        return piece

    def _name(self, *, top: bool = False) -> Name:
        if self._take("N"):
            return self._nested(top=top)
        if self._take("Z"):
            return self._local()
        if self._peek() == "S" and self._peek(2) != "St":
            found = Name(self._substitution())
            needs_args = True
        else:
            self._take("St")
            found = Name(self._unqualified())
            needs_args = False
        self.name = found if top else self.name
        if self._peek() == "I":
            if not needs_args:
                self._know(found.base)
            found.args = self._template_args()
        elif needs_args:
            raise Unreadable
        return found

    def _nested(self, *, top: bool) -> Name:
        while self._peek() and self._peek() in "rVKRO":
            self.at += 1
        found = Name("")
        while not self._take("E"):
            if self._peek() == "I":
                self.name = found if top else self.name
                found.args = self._template_args()
            else:
                kept = str(found) if found.args is not None else found.outer
                if self._peek() == "S" and self._peek(2) != "St":
                    found = Name(self._substitution(), outer=kept)
                    continue
                if self._take("St"):
                    continue
                found = Name(self._template_param() if self._peek() == "T" else self._unqualified(), outer=kept)
            if self._peek() != "E":
                self._know(str(found))
        if not found.base:
            raise Unreadable
        return found

    def _local(self) -> Name:
        """Something inside a function: named after the function, whatever lies between the two."""
        around = self._encoding()
        self._need("E")
        inner = around.base.startswith(("lambda", "operator()")) and around.outer
        outer = around.outer if inner else str(Name(around.base, around.args))
        if self._take("s"):
            self._discriminator()
            return Name(outer)
        if self._take("d"):
            self._number()
            self._need("_")
        entity = self._name()
        self._discriminator()
        return Name(entity.base, entity.args, outer)

    def _discriminator(self) -> None:
        if self._take("__"):
            self._number()
            self._need("_")
        elif self._peek() == "_" and self._peek(2)[1:].isdigit():
            self.at += 2

    def _encoding(self) -> Name:
        self._deeper()
        found = self._name()
        while self._peek() not in ("E", "", "."):
            self._type()
        self._depth -= 1
        return found

    def _unqualified(self) -> str:
        self._take("L")
        char = self._peek()
        if char.isdigit():
            found = self._source_name()
        elif self._take("Ul"):
            found = self._lambda()
        elif self._take("Ut"):
            self._number()
            self._need("_")
            found = "unnamed"
        elif char in ("C", "D") and self._peek(2)[1:] in ("0", "1", "2", "3", "4", "5"):
            self.at += 2
            found = "constructor" if char == "C" else "destructor"
        elif self._take("cl"):
            found = "operator()"
        elif self._take("cv"):
            found = f"operator {self._type()}"
        elif self._peek(2).islower() and len(self._peek(2)) == 2:
            found = f"operator {self._peek(2)}"
            self.at += 2
        else:
            raise Unreadable
        while self._take("B"):
            self._source_name()
        return found

    def _source_name(self) -> str:
        start = self.at
        while self._peek().isdigit():
            self.at += 1
        length = int(self.text[start : self.at] or "0")
        found = self.text[self.at : self.at + length]
        if not 0 < length == len(found):
            raise Unreadable
        self.at += length
        return found

    def _lambda(self) -> str:
        while self._peek() == "T" and self._peek(2) in ("Ty", "Tn", "Tp"):
            self.at += 2
            if self.text[self.at - 1] == "n":
                self._type()
        kinds = []
        while not self._take("E"):
            kinds.append(self._type())
        self._number()
        self._need("_")
        told = [kind for kind in kinds if kind != "void"]
        return f"lambda({', '.join(told)})" if told else "lambda"

    def _number(self) -> int:
        start = self.at
        self._take("n")
        while self._peek().isdigit():
            self.at += 1
        digits = self.text[start : self.at].replace("n", "-")
        return int(digits) if digits.strip("-") else 0

    def _sequence(self) -> int:
        """Index of a substitution or template parameter: nothing is the first, then 0-9A-Z."""
        start = self.at
        while self._peek().isdigit() or ("A" <= self._peek() <= "Z"):
            self.at += 1
        digits = self.text[start : self.at]
        self._need("_")
        if len(digits) > 4:
            raise Unreadable
        return int(digits, 36) + 1 if digits else 0

    def _substitution(self) -> str:
        self._need("S")
        if self._peek() in _STD:
            self.at += 1
            return _STD[self.text[self.at - 1]]
        number = self._sequence()
        if number >= len(self._known):
            raise Unreadable
        return self._known[number]

    def _template_param(self) -> str:
        self._need("T")
        self._sequence()
        return self._know("T")

    # -- types ---------------------------------------------------------------------------------------------------------

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable

    def _type(self) -> str:
        self._deeper()
        found = self._any_type()
        self._depth -= 1
        return found

    def _any_type(self) -> str:
        char = self._peek()
        if char in _BUILTIN:
            self.at += 1
            return _BUILTIN[char]
        if char and char in "rVK":
            while self._peek() and self._peek() in "rVK":
                self.at += 1
            return self._know(self._type())
        if char in _SUFFIX:
            self.at += 1
            return self._know(self._type() + _SUFFIX[char])
        if char == "D":
            return self._type_d()
        if self._take("F"):
            return self._know(self._function())
        if self._take("A"):
            size = self._number()
            self._need("_")
            return self._know(f"{self._type()}[{size or ''}]")
        if self._take("M"):
            owner = self._type()
            return self._know(f"{self._type()} {owner}::*")
        if self._take("u"):
            return self._know(self._source_name())
        if char == "T":
            found = self._template_param()
            return self._know(str(Name(found, self._template_args()))) if self._peek() == "I" else found
        if char == "S" and self._peek(2) != "St":
            found = self._substitution()
            return self._know(str(Name(found, self._template_args()))) if self._peek() == "I" else found
        if char and (char.isdigit() or char in "NZSL"):
            return self._know(str(self._name()))
        raise Unreadable

    def _type_d(self) -> str:
        self.at += 1
        char = self._peek()
        self.at += 1
        if char in _BUILTIN_D:
            return _BUILTIN_D[char]
        if char == "p":
            return self._know(f"{self._type()}...")
        if char == "o":  # noexcept function
            self._need("F")
            return self._know(self._function())
        if char == "v":
            size = self._number()
            self._need("_")
            return self._know(f"{self._type()}[{size}]")
        if char == "F":
            bits = self._number()
            if self._take("b"):
                return f"bfloat{bits}"
            self._need("_")
            return f"float{bits}"
        raise Unreadable  # among them types that are computed (decltype)

    def _function(self) -> str:
        self._take("Y")
        kinds = []
        while not self._take("E"):
            if self._peek(2) in ("RE", "OE"):
                self.at += 1
                continue
            kinds.append(self._type())
        return f"{kinds[0]}({', '.join(kind for kind in kinds[1:] if kind != 'void')})" if kinds else "()"

    def _template_args(self) -> list[str]:
        self._need("I")
        found: list[str] = []
        while not self._take("E"):
            found += self._template_arg()
        return found

    def _template_arg(self) -> list[str]:
        if self._peek() == "L":
            return [self._literal()]
        if self._take("J"):
            pack: list[str] = []
            while not self._take("E"):
                pack += self._template_arg()
            return pack
        if self._take("XadL"):  # the address of a function
            self.at -= 1
            found = self._literal()
            self._need("E")
            return [found]
        if self._peek() == "X":
            raise Unreadable
        return [self._type()]

    def _literal(self) -> str:
        self._need("L")
        if self._take("_Z"):
            found = str(self._encoding())
            self._need("E")
            return found
        kind = self._type()
        start = self.at
        while self._peek() not in ("E", ""):
            self.at += 1
        value = self.text[start : self.at].replace("n", "-", 1)
        self._need("E")
        return {"0": "false", "1": "true"}.get(value, value) if kind == "bool" else value
