"""Fields of dataclasses from plain data (YAML, the command line), each value checked by its annotation."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from envs_jax.errors import ConfigError, suggestion

_KINDS: dict[Any, str] = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}


def read_fields(cls: Any, tree: Any, where: str = "") -> dict[str, Any]:
    """Values for the fields of dataclass `cls` that `tree` names; `where` is the dotted name of `tree` in messages.

    Raises ConfigError for an unknown name (with a suggestion) and for a value of another type.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(where or "config", tree, "must be a section of named fields")
    known, hints = {f.name for f in dataclasses.fields(cls)}, get_type_hints(cls)
    values = {}
    for key, value in tree.items():
        name = f"{where}.{key}" if where else str(key)
        if key not in known:
            raise ConfigError(name, value, f"no such field; {suggestion(str(key), known)}")
        values[key] = convert(hints[key], value, name)
    return values


def convert(hint: Any, value: Any, name: str) -> Any:
    """`value` as annotation `hint` asks: a list becomes a tuple, a mapping a dataclass, a whole number a float.

    Raises ConfigError, naming `name`, when it does not fit. Annotations that say no more than Any are not checked.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        options = [o for o in inner if o is not type(None)]
        for option in options[:-1]:
            try:
                return convert(option, value, name)
            except ConfigError:
                continue
        return convert(options[-1], value, name)
    if origin is Literal:
        if value not in inner:
            raise ConfigError(name, value, f"use one of {', '.join(map(str, inner))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(name, value, "must be a list")
        if inner[-1] is Ellipsis:
            return tuple(convert(inner[0], v, name) for v in value)
        if len(value) != len(inner):
            raise ConfigError(name, value, f"must be a list of {len(inner)}")
        return tuple(convert(t, v, name) for t, v in zip(inner, value, strict=True))
    if dataclasses.is_dataclass(hint):
        cls = typing.cast(type, hint)
        return value if isinstance(value, cls) else cls(**read_fields(cls, value, name))
    if hint is float:
        return _number(value, name)
    if hint is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if hint in _KINDS and (hint is int or not isinstance(value, hint)):
        raise ConfigError(name, value, f"must be {_KINDS[hint]}")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, str):  # YAML 1.1 reads 1e-6 as text
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(name, value, f"must be {_KINDS[float]}")
    if math.isnan(value):
        raise ConfigError(name, value, "must not be NaN")
    return float(value)
