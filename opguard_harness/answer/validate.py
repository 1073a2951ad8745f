"""A validator for the part of JSON Schema that our schemas use, so that checking an answer needs no package.

Known keywords: $ref (``#/$defs/NAME`` only), type, const, enum, properties, required, additionalProperties, items, minItems,
minimum, anyOf. A schema with any other keyword is refused, so that no rule is skipped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_NOTES = {"$schema", "$id", "$defs", "title", "description", "default"}
_RULES = {
    "$ref",
    "type",
    "const",
    "enum",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "minimum",
    "anyOf",
}


def faults(value: Any, schema: Mapping[str, Any], *, root: Mapping[str, Any] | None = None, at: str = "$") -> list[str]:
    """Every way in which ``value`` breaks ``schema``; empty when it is valid.

    Args:
        value: Plain JSON value.
        schema: Schema to check against.
        root: Schema that holds ``$defs``; defaults to ``schema``.
        at: Path of the value, for messages.

    Raises:
        ValueError: The schema uses a keyword that this validator does not know.
    """
    return list(_faults(value, schema, schema if root is None else root, at))


def _faults(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> Iterator[str]:
    unknown = schema.keys() - _RULES - _NOTES
    if unknown:
        raise ValueError(f"schema keyword {sorted(unknown)[0]!r} at {at} is not one this validator knows")
    if "$ref" in schema:
        yield from _faults(value, _resolve(schema["$ref"], root), root, at)
    if "anyOf" in schema:
        yield from _any_of(value, schema["anyOf"], root, at)
    if "type" in schema and not _has_type(value, schema["type"]):
        yield f"{at}: {_name(value)} where {schema['type']} is wanted"
        return
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{at}: {value!r} where {schema['const']!r} is wanted"
    if "enum" in schema and not any(_same(value, item) for item in schema["enum"]):
        yield f"{at}: {value!r} is not one of {schema['enum']}"
    if "minimum" in schema and _has_type(value, "number") and value < schema["minimum"]:
        yield f"{at}: {value!r} is below {schema['minimum']}"
    if isinstance(value, dict):
        yield from _object(value, schema, root, at)
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{at}: {len(value)} items where at least {schema['minItems']} are wanted"
        if "items" in schema:
            for index, item in enumerate(value):
                yield from _faults(item, schema["items"], root, f"{at}[{index}]")


def _object(value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> Iterator[str]:
    """Rules about an object's members."""
    known = schema.get("properties", {})
    for key in schema.get("required", []):
        if key not in value:
            yield f"{at}.{key}: missing"
    others = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in known:
            yield from _faults(item, known[key], root, f"{at}.{key}")
        elif others is False:
            yield f"{at}.{key}: not a documented key"
        elif isinstance(others, Mapping):
            yield from _faults(item, others, root, f"{at}.{key}")


def _any_of(value: Any, branches: list[Mapping[str, Any]], root: Mapping[str, Any], at: str) -> Iterator[str]:
    """Faults of the branch that comes closest, when none fits."""
    results = [list(_faults(value, branch, root, at)) for branch in branches]
    if all(results):
        yield from min(results, key=len)


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition that a ``$ref`` names."""
    prefix = "#/$defs/"
    if not reference.startswith(prefix):
        raise ValueError(f"$ref {reference!r} does not start with {prefix}")
    definition: Mapping[str, Any] = root["$defs"][reference[len(prefix) :]]
    return definition


def _has_type(value: Any, wanted: str | list[str]) -> bool:
    """Whether the value has a wanted type; in JSON a boolean is no number and 1.0 is an integer."""
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if isinstance(value, bool):
            if name == "boolean":
                return True
        elif isinstance(value, _TYPES[name]) or (name == "integer" and isinstance(value, float) and value.is_integer()):
            return True
    return False


def _same(value: Any, other: Any) -> bool:
    """Equality of JSON scalars: true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _name(value: Any) -> str:
    """JSON's name of a value's type."""
    return next((name for name in ("null", "boolean", "integer", "number", "string", "array", "object") if _has_type(value, name)), "?")
