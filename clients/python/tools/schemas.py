"""Prepares the OpenAPI documents of the two services for the generation of response models.

What is generated must also read what later versions send: a new value of an enumeration, or a new variant of
a union. So an enumeration also admits other texts, and a union other objects. Names of scalars (ids, bounded
numbers) are resolved and bounds dropped, because a client checks no bounds of a response.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_BOUNDS = (
    "maximum",
    "minimum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "maxItems",
    "minItems",
    "maxProperties",
    "minProperties",
    "multipleOf",
    "pattern",
    "propertyNames",
    "default",
    "example",
    "examples",
)
_SCALARS = frozenset({"string", "integer", "number", "boolean"})
_KEPT_FORMATS = frozenset({"date", "date-time"})

Schema = dict[str, Any]


def response_document(document: Schema) -> Schema:
    """The schemas of the JSON bodies of successful responses, as a document without paths."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    wanted: dict[str, Schema] = {}
    waiting = sorted({name for body in _bodies(document) for name in _references(body)})
    while waiting:
        name = waiting.pop()
        if name in wanted:
            continue
        wanted[name] = _prepare(schemas[name], schemas, name)
        waiting += _references(wanted[name])
    named = {name: schema for name, schema in sorted(wanted.items()) if not _is_scalar(schemas[name])}
    info = {"title": document["info"]["title"], "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": {}, "components": {"schemas": named}}


def _bodies(document: Schema) -> Iterator[Schema]:
    for path, operations in document["paths"].items():
        if "cassette" in path or path == "/rpc":
            # A cassette is a document that programs pass on as it is; results of `/rpc` depend on the method.
            continue
        for operation in operations.values():
            if not isinstance(operation, dict):
                continue
            for status, response in operation.get("responses", {}).items():
                yield from _response_bodies(document, status, response)


def _response_bodies(document: Schema, status: str, response: Schema) -> Iterator[Schema]:
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    for kind, content in response.get("content", {}).items():
        if status.startswith("2") and kind == "application/json" and content.get("schema"):
            yield content["schema"]


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for item in schema for name in _references(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].rsplit("/", 1)[1]] if isinstance(schema.get("$ref"), str) else []
    return own + [name for item in schema.values() for name in _references(item)]


def _is_scalar(schema: Schema) -> bool:
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return "enum" not in schema and all(kind in _SCALARS or kind == "null" for kind in kinds)


def _prepare(schema: Any, schemas: dict[str, Schema], name: str) -> Any:
    if isinstance(schema, list):
        return [_prepare(item, schemas, name) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = schemas[reference.rsplit("/", 1)[1]]
        if not _is_scalar(target):
            return {"$ref": reference}
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    prepared = {key: value for key, value in schema.items() if key not in _BOUNDS}
    if prepared.get("format") not in _KEPT_FORMATS:
        prepared.pop("format", None)
    prepared.pop("additionalProperties" if prepared.get("additionalProperties") is False else "", None)
    for key, value in list(prepared.items()):
        if key == "properties":
            prepared[key] = {field: _prepare(item, schemas, name) for field, item in value.items()}
        elif isinstance(value, dict | list) and key not in ("enum", "required", "type"):
            prepared[key] = _prepare(value, schemas, name)
    return _open(prepared, schemas, name)


def _open(schema: Schema, schemas: dict[str, Schema], name: str) -> Schema:
    """Admits what a later version may send."""
    if len(schema.get("enum", ())) > 1 and schema.get("type") in ("string", None):
        return {"anyOf": [schema, {"type": "string"}]}
    variants = schema.get("oneOf") or schema.get("anyOf") or []
    tags = [_tag(_resolved(variant, schemas)) for variant in variants]
    if len(variants) < 2 or not all(tags):
        return schema
    schema.pop("discriminator", None)
    for variant, tag in zip(variants, tags, strict=True):
        if "$ref" not in variant:
            variant["title"] = name + "".join(part.capitalize() for part in str(tag).split("_"))
    schema.pop("oneOf", None)
    schema["anyOf"] = [*variants, {"type": "object", "additionalProperties": True}]
    return schema


def _resolved(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    reference = schema.get("$ref")
    return schemas[reference.rsplit("/", 1)[1]] if isinstance(reference, str) else schema


def _tag(variant: Schema) -> str | None:
    """The value of the property that tells a variant from the others."""
    for part in (variant, *variant.get("allOf", ())):
        for field in ("type", "kind", "status", "phase", "role"):
            schema = part.get("properties", {}).get(field, {})
            values = schema.get("enum", [schema["const"]] if "const" in schema else [])
            if len(values) == 1:
                return str(values[0])
    return None
