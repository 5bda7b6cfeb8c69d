"""JSON schemas that a client sends: what of them a grammar cannot enforce is found before anything is computed.

The converter is llama.cpp's; it reads the keywords below and passes over others. What it passes over would be a
promise not kept, so it is refused: always where it changes nothing at all about a pattern, and with `strict` for
every keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

_ANNOTATIONS = frozenset(
    {"$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description"}
    | {"examples", "readOnly", "title", "writeOnly"}
)
_ENFORCED_BY_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "format", "minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
# The first of these that a schema has decides alone; keywords beside it are passed over, and so is the type.
_DECIDING = ("$ref", "oneOf", "anyOf", "const", "enum", "allOf")
_FORMATS = frozenset({"date", "time", "date-time", "uuid", *(f"uuid{version}" for version in range(1, 6))})

# llama.cpp's grammars take no more (MAX_REPETITION_THRESHOLD in llama-grammar.cpp).
_MOST_REPETITIONS = 2000

# A subschema with its place, as a JSON pointer behind "#".
_Placed = tuple[str, Mapping[str, object]]


class UnsupportedSchema(ValueError):
    """A schema, or something in it, that answers cannot be held to; the text names the place."""


def require_enforceable(
    schema: Mapping[str, object], *, is_strict: bool, grammar_of: Callable[[Mapping[str, object]], str]
) -> None:
    """Does nothing when a grammar can hold answers to `schema`; `grammar_of` makes one, or raises ValueError.

    Raises:
        UnsupportedSchema: It cannot be converted, has a pattern that would be passed over, or, with
            `is_strict`, any other keyword that would be.
    """
    try:
        grammar_of(schema)
    except ValueError as error:
        raise UnsupportedSchema(str(error)) from error
    for place, part in _subschemas("#", schema):
        _require_small_counts(place, part)
        pattern = part.get("pattern")
        if isinstance(pattern, str) and _is_passed_over(pattern, grammar_of):
            raise UnsupportedSchema(
                f"{place}/pattern: {pattern!r} cannot be enforced; it must be anchored by ^ and $ and use "
                "plain classes, groups and repetitions"
            )
        if is_strict:
            _require_known_keywords(place, part)


def _is_passed_over(pattern: str, grammar_of: Callable[[Mapping[str, object]], str]) -> bool:
    """True when the converter takes any string in place of a pattern; it says so only on standard error."""
    return "root ::= string" in grammar_of({"type": "string", "pattern": pattern}).splitlines()


def _require_small_counts(place: str, schema: Mapping[str, object]) -> None:
    for keyword in ("minItems", "maxItems", "minLength", "maxLength"):
        count = schema.get(keyword)
        if isinstance(count, int) and count > _MOST_REPETITIONS:
            raise UnsupportedSchema(
                f"{place}/{keyword}: {count} is too many; a grammar repeats at most {_MOST_REPETITIONS} times"
            )


def _require_known_keywords(place: str, schema: Mapping[str, object]) -> None:
    given = set(schema) - _ANNOTATIONS
    deciding = next((keyword for keyword in _DECIDING if keyword in given), None)
    if deciding is not None:
        enforced = {deciding, "type"} if deciding in ("const", "enum") else {deciding}
    else:
        enforced = {"type"}.union(*(_ENFORCED_BY_TYPE.get(kind, ()) for kind in _types(schema)))
    for keyword in sorted(given - enforced):
        beside = f" beside {deciding!r}" if deciding else ""
        raise UnsupportedSchema(f"{place}: the keyword {keyword!r}{beside} cannot be enforced (strict)")
    _require_whole_string(place, schema)
    _require_whole_object(place, schema)


def _types(schema: Mapping[str, object]) -> list[str]:
    """The types that a schema names; without one, those whose keywords it has."""
    named = schema.get("type")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list):
        return [str(kind) for kind in named]
    return [kind for kind, keywords in _ENFORCED_BY_TYPE.items() if keywords & set(schema)][:1]


def _require_whole_string(place: str, schema: Mapping[str, object]) -> None:
    """A string has one rule: a pattern, a format or a length."""
    form = schema.get("format")
    if form is not None and form not in _FORMATS:
        raise UnsupportedSchema(f"{place}/format: {form!r} cannot be enforced (strict)")
    rules = [name for name in ("pattern", "format") if name in schema]
    rules += ["its length"] if {"minLength", "maxLength"} & set(schema) else []
    if len(rules) > 1:
        raise UnsupportedSchema(f"{place}: {' and '.join(rules)} cannot be enforced together (strict)")


def _require_whole_object(place: str, schema: Mapping[str, object]) -> None:
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list):
        return
    known = properties if isinstance(properties, dict) else {}
    for name in required:
        if name not in known:
            raise UnsupportedSchema(f"{place}/required: {name!r} is none of its properties (strict)")


def _subschemas(place: str, schema: object) -> Iterator[_Placed]:
    """A schema and every one inside it."""
    if not isinstance(schema, dict):
        return
    yield place, schema
    for keyword, value in schema.items():
        inner = f"{place}/{keyword}"
        if keyword in ("properties", "$defs", "definitions") and isinstance(value, dict):
            for name, part in value.items():
                yield from _subschemas(f"{inner}/{name}", part)
        elif keyword in ("items", "prefixItems", "oneOf", "anyOf", "allOf") and isinstance(value, list):
            for index, part in enumerate(value):
                yield from _subschemas(f"{inner}/{index}", part)
        elif keyword in ("items", "additionalProperties"):
            yield from _subschemas(inner, value)
