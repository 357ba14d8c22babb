"""Values on their way between a program and its judge: JSON, with tags for what JSON does not have.

What comes back from a program is a claim about a value and never an object, so no method of the program's (`__eq__`,
`__repr__`, `__hash__`) takes part in any comparison.
"""

from __future__ import annotations

import json
from typing import Any

TAG = "t"  # an object with this member stands for what JSON lacks; JSON objects are never written otherwise
REPR_LIMIT = 200


class Opaque:
    """A value that was not plain data. Equal to nothing, itself included."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _plain(x: Any) -> Any:
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, list):
        return [_plain(v) for v in x]
    if isinstance(x, (tuple, set, frozenset)):
        return {TAG: "tuple" if isinstance(x, tuple) else "set", "v": [_plain(v) for v in x]}
    if isinstance(x, dict):
        return {TAG: "dict", "v": [[_plain(k), _plain(v)] for k, v in x.items()]}
    if isinstance(x, (bytes, bytearray)):
        return {TAG: "bytes", "v": bytes(x).hex()}
    if isinstance(x, complex):
        return {TAG: "complex", "v": [x.real, x.imag]}
    return {TAG: "other", "v": repr(x)[:REPR_LIMIT]}


def dumps(x: Any) -> str:
    """Text of a value. Raises ValueError or RecursionError for one that contains itself or is nested too deeply."""
    return json.dumps(_plain(x))


def _value(x: Any) -> Any:
    if isinstance(x, list):
        return [_value(v) for v in x]
    if not isinstance(x, dict):
        return x
    kind, v = x[TAG], x["v"]
    if kind == "tuple":
        return tuple(_value(i) for i in v)
    if kind == "set":
        return frozenset(_value(i) for i in v)
    if kind == "dict":
        return {_value(k): _value(i) for k, i in v}
    if kind == "bytes":
        return bytes.fromhex(v)
    if kind == "complex":
        return complex(*v)
    return Opaque(str(v))


def loads(text: str) -> Any:
    """The value of a text. Raises ValueError for whatever `dumps` does not write."""
    try:
        return _value(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a value: {type(error).__name__}") from None
