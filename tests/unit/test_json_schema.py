"""Which schemas are refused, on both sides of every limit, with the place of what cannot be enforced."""

from __future__ import annotations

import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.chat.json_schema import UnsupportedSchema, require_enforceable
from stratad.native.chat import NativeChatKnowledge

Schema = dict[str, object]


def _check(schema: Schema, *, is_strict: bool) -> None:
    require_enforceable(schema, is_strict=is_strict, grammar_of=NativeChatKnowledge().grammar_of_schema)


GOOD: list[Schema] = [
    {},
    {"type": "object"},
    {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2000},
    {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}]},
    {"type": ["string", "null"], "maxLength": 5},
    {"type": "string", "format": "date-time"},
    {"type": "string", "pattern": "^[a-z]{2}(-[0-9]+)?$"},
    {"type": "integer", "minimum": 0, "exclusiveMaximum": 10},
    {"enum": ["a", 1, None], "title": "One of them", "description": "x", "default": "a"},
    {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/other"}], "$defs": {"other": {"const": 3}}},
    {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    },
    {"minLength": 3},
]
# Refused even where a client only wishes.
BAD: list[tuple[Schema, str]] = [
    ({"type": "thing"}, "#: unrecognized type thing"),
    ({"properties": {"a": {"type": "thing"}}}, "#/properties/a"),
    ({"$ref": "https://example.org/schema"}, r"only references into the same document"),
    ({"$ref": "#/$defs/none"}, "cannot resolve"),
    ({"properties": {"next": {"$ref": "#"}}}, "only references into the same document"),
    ({"anyOf": []}, "#/anyOf: must not be empty"),
    ({"type": "string", "pattern": "[a-z]+"}, "#/pattern: .* cannot be enforced"),
    ({"items": {"type": "string", "pattern": "^(?=a).*$"}}, "#/items/pattern"),
    ({"type": "string", "pattern": "^(a$"}, "unbalanced"),
    ({"type": "array", "maxItems": 2001}, "#/maxItems: 2001 is too many"),
    ({"type": "array", "minItems": -1}, "minItems must be a non-negative integer"),
]
# Refused where a client insists.
STRICT_BAD: list[tuple[Schema, str]] = [
    ({"type": "string", "format": "email"}, "#/format: 'email'"),
    (
        {"type": "string", "pattern": "^a$", "maxLength": 1},
        "pattern and its length cannot be enforced together",
    ),
    ({"type": "number", "minimum": 0}, "#: the keyword 'minimum'"),
    ({"type": "integer", "multipleOf": 2}, "'multipleOf'"),
    ({"type": "array", "items": {}, "uniqueItems": True}, "'uniqueItems'"),
    ({"type": "object", "properties": {"a": {"not": {}}}}, "#/properties/a: the keyword 'not'"),
    ({"type": "object", "patternProperties": {}}, "'patternProperties'"),
    ({"type": "object", "properties": {}, "required": ["a"]}, "#/required: 'a'"),
    ({"anyOf": [{"type": "string"}], "properties": {}}, "'properties' beside 'anyOf'"),
    ({"$defs": {"a": {"type": "string", "format": "uri"}}, "$ref": "#/$defs/a"}, r"#/\$defs/a/format"),
]


@pytest.mark.parametrize("schema", GOOD)
@pytest.mark.parametrize("is_strict", [True, False])
def test_a_schema_that_a_grammar_can_hold_is_accepted(schema: Schema, is_strict: bool) -> None:
    _check(schema, is_strict=is_strict)


@pytest.mark.parametrize(("schema", "words"), BAD)
@pytest.mark.parametrize("is_strict", [True, False])
def test_what_no_grammar_can_hold_is_refused_always(schema: Schema, words: str, is_strict: bool) -> None:
    with pytest.raises(UnsupportedSchema, match=words):
        _check(schema, is_strict=is_strict)


@pytest.mark.parametrize(("schema", "words"), STRICT_BAD)
def test_what_would_be_passed_over_is_refused_where_the_client_insists(schema: Schema, words: str) -> None:
    _check(schema, is_strict=False)
    with pytest.raises(UnsupportedSchema, match=words):
        _check(schema, is_strict=True)


def test_a_schema_without_end_is_refused() -> None:
    schema: Schema = {"type": "string"}
    for _ in range(300):
        schema = {"items": schema}
    with pytest.raises(UnsupportedSchema, match="nested too deeply"):
        _check(schema, is_strict=True)
