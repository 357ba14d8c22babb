"""Rows of data files, checked one by one: what cannot be used is named by line and counted, never silent.

    rows = read_json_lines(path)                                  # or read_json_array, or number(records)
    table = check_rows(rows, parse, source=path.name, on_bad_row="skip", identity=lambda row: row.id)
    table.rows, table.report

`parse` turns a decoded record into a row and raises `RowError` where it cannot; `field` and `text_field` raise it with
a message that names the field. Nothing is read by guessing: a file is UTF-8, and a row that is not is a bad row.
"""

from __future__ import annotations

import codecs
import collections
import json
import logging
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from envs_jax.errors import ConfigError

ON_BAD_ROW = ("refuse", "skip")
SHOWN = 5  # problems quoted in a message

T = TypeVar("T")
_LOG = logging.getLogger("envs_jax.datasets")
_OBJECT = re.compile(r"^[ \t]*\{", re.MULTILINE)
_SPOILT = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of a byte that is not UTF-8


class RowError(ValueError):
    """A row cannot be used. The message says why, without the line; `kind` is what it is counted under."""

    def __init__(self, kind: str, detail: str = "") -> None:
        self.kind = kind
        super().__init__(f"{kind}: {detail}" if detail else kind)


@dataclass(frozen=True)
class Record:
    """One record of a file: where it begins (line or row number, from 1), its value, or why there is none."""

    line: int
    value: Any = None
    error: RowError | None = None


@dataclass(frozen=True)
class Problem:
    """A row that was left out: where it was, what it is counted under, and the whole reason."""

    line: int
    kind: str
    reason: str


@dataclass(frozen=True)
class TableReport:
    """What became of the rows of a source. `kept + len(problems)` rows were read."""

    source: str
    kept: int
    problems: tuple[Problem, ...] = ()
    place: str = "line"  # what `Problem.line` counts

    @property
    def counts(self) -> dict[str, int]:
        """Number of bad rows by kind, most frequent first."""
        return dict(collections.Counter(p.kind for p in self.problems).most_common())

    def summary(self) -> str:
        """One paragraph: how many rows were kept and left out, by kind, with the first few named."""
        if not self.problems:
            return f"{self.source}: {self.kept} rows, all usable"
        kinds = ", ".join(f"{count} x {kind}" for kind, count in self.counts.items())
        named = "; ".join(f"{self.place} {p.line}: {p.reason}" for p in self.problems[:SHOWN])
        more = len(self.problems) - SHOWN
        return f"{self.source}: {self.kept} rows usable, {len(self.problems)} not ({kinds}). {named}" + (
            f"; and {more} more" if more > 0 else ""
        )


class BadRowsError(ValueError):
    """A source has rows that cannot be used, and `on_bad_row` is "refuse". `report` names them all."""

    def __init__(self, report: TableReport) -> None:
        self.report = report
        super().__init__(f'{report.summary()}. Mend the file, or set on_bad_row = "skip" to leave them out.')


@dataclass(frozen=True)
class Table(Generic[T]):
    """Usable rows in the order of the source, and what was left out."""

    rows: tuple[T, ...]
    report: TableReport


def check_on_bad_row(value: str) -> None:
    """Raises ConfigError unless `value` is a policy for bad rows."""
    if value not in ON_BAD_ROW:
        raise ConfigError("on_bad_row", value, f"use one of {', '.join(ON_BAD_ROW)}")


def check_rows(
    records: Iterable[Record],
    parse: Callable[[Any], T],
    *,
    source: str,
    on_bad_row: str = "refuse",
    identity: Callable[[T], Hashable] | None = None,
    place: str = "line",
) -> Table[T]:
    """Parses every record; duplicates by `identity` are bad rows as well, of which the first is kept.

    All rows are read before anything is raised, so that one message names every kind of problem.

    Args:
        records: as the readers below give them.
        parse: record's value to row; raises RowError.
        source: name for messages.
        on_bad_row: "refuse" raises BadRowsError if there is any bad row; "skip" leaves them out and logs a warning.
        identity: what must differ between two rows; None for no such check.
        place: what the records' numbers count: "line" or "row".

    Raises:
        BadRowsError: see `on_bad_row`; also when no row at all is usable.
    """
    check_on_bad_row(on_bad_row)
    rows: list[T] = []
    problems: list[Problem] = []
    seen: dict[Hashable, int] = {}
    for record in records:
        try:
            if record.error is not None:
                raise record.error
            row = parse(record.value)
            if identity is not None:
                name = identity(row)
                first = seen.setdefault(name, record.line)
                if first != record.line:
                    raise RowError("duplicate id", f"{_short(name)} is on {place} {first} already")
        except RowError as error:
            problems.append(Problem(record.line, error.kind, str(error)))
        else:
            rows.append(row)
    report = TableReport(source, len(rows), tuple(problems), place)
    if not rows or (problems and on_bad_row == "refuse"):
        raise BadRowsError(report)
    if problems:
        _LOG.warning("%s", report.summary())
    return Table(tuple(rows), report)


# -- readers ------------------------------------------------------------------------------------------------
def number(values: Iterable[Any]) -> Iterator[Record]:
    """Records of values that are decoded already, numbered from 1 (use `place="row"`)."""
    for index, value in enumerate(values, 1):
        yield Record(index, value)


def read_json_lines(path: Path) -> Iterator[Record]:
    """Records of a file with one JSON value a line; blank lines are passed over."""
    with open(path, "rb") as file:
        for line, raw in enumerate(file, 1):
            if line == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if not raw.strip():
                continue
            try:
                yield Record(line, json.loads(raw.decode("utf-8")))
            except UnicodeDecodeError as error:
                yield Record(line, error=_not_utf8(error))
            except ValueError as error:
                yield Record(line, error=_malformed(error))


def read_json_array(path: Path) -> Iterator[Record]:
    """Records of a file that is one JSON array of objects.

    A malformed object is one bad row; reading goes on at the next line that begins with a brace. Bytes that are not
    UTF-8 spoil the object that they stand in.
    """
    text = path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    decoder, at, line, counted = json.JSONDecoder(), 0, 1, 0
    at = _skip(text, 0, " \t\r\n")
    if text[at : at + 1] != "[":
        yield Record(1, error=RowError("malformed", "the file is not a JSON array"))
        return
    at += 1
    closed = False
    while True:
        at = _skip(text, at, " \t\r\n,")
        if at >= len(text):
            break
        line, counted = line + text.count("\n", counted, at), at
        if text[at] == "]":
            closed = True
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError as error:
            yield Record(line, error=_malformed(error))
            following = _OBJECT.search(text, text.find("\n", at) + 1 or len(text))
            at = following.end() - 1 if following else len(text)
            closed = closed or following is None
            continue
        spoilt = _SPOILT.search(text, counted, at)
        if spoilt is None:
            yield Record(line, value)
        else:
            yield Record(line, error=RowError("not UTF-8", f"byte 0x{ord(spoilt[0]) - 0xDC00:02x}"))
    if not closed:
        end = line + text.count("\n", counted)
        yield Record(end, error=RowError("malformed", "the file ends before its array does"))


def field(record: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """`record[name]` if it is there and an instance of `kind` (a bool is not a number); else raises RowError."""
    if not isinstance(record, Mapping):
        raise RowError("malformed", f"an object with named fields expected, not {_short(record)}")
    if name not in record or record[name] is None:
        raise RowError("missing field", repr(name))
    value = record[name]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(k.__name__ for k in kinds)
        raise RowError("wrong type", f"{name} = {_short(value)}, {wanted} expected")
    return value


def text_field(record: Any, name: str, max_bytes: int | None = None) -> str:
    """A text that is not empty: trimmed, with `\\n` line ends, at most `max_bytes` of UTF-8; else raises RowError."""
    text = field(record, name, str).replace("\r\n", "\n").replace("\r", "\n").strip()
    if not text:
        raise RowError("empty field", repr(name))
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise RowError("not UTF-8", f"{name} has a lone surrogate at {error.start}") from None
    if max_bytes is not None and size > max_bytes:
        raise RowError("too long", f"{name} has {size} bytes, at most {max_bytes} fit")
    return text


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _malformed(error: ValueError) -> RowError:
    return RowError("malformed", error.msg if isinstance(error, json.JSONDecodeError) else str(error))


def _not_utf8(error: UnicodeDecodeError) -> RowError:
    return RowError("not UTF-8", f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}")
