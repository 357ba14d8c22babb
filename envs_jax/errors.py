"""The error that configuration raises."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A field has a value that cannot be used. `field`, `value` and `remedy` are kept apart for callers."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{field} = {value!r}: {remedy}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """'did you mean X?' with the closest of `known`, else all of them."""
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    if close:
        return f"did you mean {lowered[close[0]]!r}?"
    return f"known: {', '.join(names)}"
