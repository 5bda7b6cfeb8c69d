"""`response_format`: text, any JSON object, or a value of a JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from stratad.chat.json_schema import UnsupportedSchema, require_enforceable
from stratad.server.failures import bad_request
from stratad.server.strict import Strict

GrammarOfSchema = Callable[[Mapping[str, object]], str]
Schema = dict[str, JsonValue]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class JsonSchema(Strict):
    """The schema of an answer. Without `strict` what cannot be enforced is passed over."""

    name: FunctionName
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _be_whole(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema, and has to be there")
        return self

    def enforceable_schema(self, grammar_of: GrammarOfSchema) -> Mapping[str, object] | None:
        """The schema of the answer; None for text. Raises HttpFailure naming what cannot be enforced."""
        if self.type == "text":
            return None
        wanted = self.json_schema
        if wanted is None or not wanted.schema_:
            return {"type": "object"}
        try:
            require_enforceable(wanted.schema_, is_strict=bool(wanted.strict), grammar_of=grammar_of)
        except UnsupportedSchema as error:
            raise bad_request(
                str(error), code="unsupported_schema", parameter="response_format.json_schema.schema"
            ) from error
        return wanted.schema_
