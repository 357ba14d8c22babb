"""An encyclopedia of a world that does not exist, with questions of one and two hops: needs no files.

Countries, cities, people, books and companies refer to one another; every entity has one passage. A question of two
hops is answered by the passage of its subject and that of an entity named there. Train and eval ask about different
subjects. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from envs_jax.errors import ConfigError
from envs_jax.tasks.search_qa.corpus import Corpus, CorpusConfig, Passage, Question
from envs_jax.text.retrieval import STOP_WORDS

SHARES = {"country": 1, "city": 5, "person": 8, "book": 5, "company": 5}  # of 24 passages
EVAL_SHARE = 8  # one subject in 8 is for evaluation
MIN_PASSAGES = 48

_split = str.split

_ONSETS = _split("b br c d dr f g gr h k kr l m n p pr r s sh st t th tr v z")
_VOWELS = _split("a e i o u ai ea ou")
_CODAS = ["", "", "", "l", "m", "n", "r", "s", "th", "nd", "rk"]
_ENDINGS = {
    "country": ("ia", "land", "stan", "or"),
    "city": ("burg", "ton", "ville", "mouth", "holm", ""),
    "first": ("", "a", "o", "en", "is"),
    "last": ("sen", "ez", "ov", "ley", "er", "ini"),
    "company": (" Works", " Industries", " & Sons", " Group", " Labs"),
    "river": ("e", "a", "ow"),
    "currency": ("ar", "in", "ook"),
    "language": ("ish", "ese", "ic"),
}
_REGIONS = ("the north", "the south", "the east", "the west", "the centre", "the far islands")
_GOODS = _split(
    "glass clocks paper ships carpets lenses bells bread salt silk violins cheese ropes tiles ink candles bicycles tea"
)
_PROFESSIONS = _split(
    "painter chemist poet engineer botanist composer judge sailor surgeon architect historian weaver"
)
_GENRES = _split("novel play memoir satire romance travelogue thriller fable")
_ADJECTIVES = _split(
    "Silent Broken Golden Hidden Last Burning Quiet Distant Crooked Pale Winter Hollow Restless"
)
_NOUNS = _split(
    "Lantern Harbour Garden Bridge Orchard Mirror Staircase Letter River Compass Window Season Tower"
)


@dataclass
class _Entity:
    kind: str
    name: str
    number: int
    facts: dict[str, str] = field(default_factory=dict)
    links: dict[str, _Entity] = field(default_factory=dict)


class _Names:
    """Names that are given once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.taken = rng, set[str]()

    def word(self, kind: str) -> str:
        rng = self.rng
        parts = [
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(1, 2))
        ]
        return "".join(parts).capitalize() + rng.choice(_ENDINGS[kind])

    def fresh(self, make: Callable[[], str]) -> str:
        for _ in range(10_000):
            name = make()
            if name.lower() not in self.taken and name.lower() not in STOP_WORDS:
                self.taken.add(name.lower())
                return name
        raise ConfigError("num_passages", len(self.taken), "too many for the names there are; use fewer")

    def __call__(self, kind: str) -> str:
        rng = self.rng
        if kind == "person":
            return self.fresh(lambda: f"{self.word('first')} {self.word('last')}")
        if kind == "book":
            middle = lambda: "" if rng.random() < 0.3 else f" of {self.word('city')}"  # noqa: E731
            return self.fresh(lambda: f"The {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}{middle()}")
        return self.fresh(lambda: self.word(kind))


def _entities(count: int, rng: random.Random) -> list[_Entity]:
    names = _Names(rng)
    total = sum(SHARES.values())
    sizes = {kind: count * share // total for kind, share in SHARES.items()}
    sizes["person"] += count - sum(sizes.values())
    entities: list[_Entity] = []
    of: dict[str, list[_Entity]] = {}
    for kind, size in sizes.items():
        of[kind] = [_Entity(kind, names(kind), len(entities) + i) for i in range(size)]
        entities += of[kind]
    for place, city in enumerate(of["city"]):
        # The first cities are the capitals.
        city.links["country"] = (
            of["country"][place] if place < len(of["country"]) else rng.choice(of["country"])
        )
        city.facts = {
            "river": names("river"), "year": str(rng.randint(820, 1790)), "good": rng.choice(_GOODS),
        }  # fmt: skip
    for country, capital in zip(of["country"], of["city"], strict=False):
        country.links["capital"] = capital
        country.facts = {
            "currency": names("currency").lower(), "language": names("language"), "region": rng.choice(_REGIONS),
            "people": str(rng.randint(2, 90)),
        }  # fmt: skip
    for person in of["person"]:
        born = rng.randint(1800, 1950)
        person.links["city"] = rng.choice(of["city"])
        person.facts = {
            "year": str(born),
            "work": rng.choice(_PROFESSIONS),
            "died": str(born + rng.randint(35, 90)),
        }
    for book in of["book"]:
        book.links["author"] = author = rng.choice(of["person"])
        book.facts = {
            "year": str(int(author.facts["year"]) + rng.randint(20, 34)),
            "genre": rng.choice(_GENRES),
        }
    for company in of["company"]:
        company.links = {"founder": rng.choice(of["person"]), "city": rng.choice(of["city"])}
        company.facts = {
            "year": str(int(company.links["founder"].facts["year"]) + rng.randint(20, 34)),
            "good": rng.choice(_GOODS),
        }
    return entities


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _passage(e: _Entity, rng: random.Random) -> Passage:
    f, n = e.facts, {k: v.name for k, v in e.links.items()}
    if e.kind == "country":
        first = f"{e.name} is a country in {f['region']} of the known world."
        rest = [
            f"Its capital is {n['capital']}.", f"People pay with the {f['currency']}.",
            f"The official language is {f['language']}.", f"It has {f['people']} million inhabitants.",
        ]  # fmt: skip
    elif e.kind == "city":
        first = f"{e.name} is a city in {n['country']}."
        rest = [
            f"It lies on the river {f['river']}.", f"It was founded in {f['year']}.",
            f"The city is known for its {f['good']}.",
        ]  # fmt: skip
    elif e.kind == "person":
        first = f"{e.name} was {_article(f['work'])}."
        rest = [
            f"{e.name.split()[0]} was born in {n['city']} in {f['year']}.",
            f"{e.name.split()[1]} died in {f['died']}.",
        ]
    elif e.kind == "book":
        first = f"{e.name} is {_article(f['genre'])} by {n['author']}."
        rest = [f"It was published in {f['year']}."]
    else:
        first = f"{e.name} is a company that makes {f['good']}."
        rest = [f"It was founded in {f['year']} by {n['founder']}.", f"The head office is in {n['city']}."]
    rng.shuffle(rest)
    return Passage(e.name, " ".join([first, *rest]))


def _questions(e: _Entity, people: list[_Entity], rng: random.Random) -> list[Question]:
    """Every question with `e` as its subject."""

    def one(text: str, answer: str) -> Question:
        return Question(text, answer, (e.number,))

    def two(text: str, answer: str, link: str) -> Question:
        return Question(text, answer, (e.number, e.links[link].number))

    if e.kind == "country":
        return [
            one(f"What is the capital of {e.name}?", e.links["capital"].name),
            one(f"What is the currency of {e.name}?", e.facts["currency"]),
            one(f"What is the official language of {e.name}?", e.facts["language"]),
            two(
                f"On which river does the capital of {e.name} lie?",
                e.links["capital"].facts["river"],
                "capital",
            ),
        ]
    if e.kind == "city":
        country = e.links["country"]
        return [
            one(f"On which river does {e.name} lie?", e.facts["river"]),
            one(f"In which year was the city of {e.name} founded?", e.facts["year"]),
            two(
                f"What is the currency of the country in which {e.name} lies?",
                country.facts["currency"],
                "country",
            ),
            two(
                f"What is the official language in the city of {e.name}?",
                country.facts["language"],
                "country",
            ),
        ]
    if e.kind == "person":
        city = e.links["city"]
        other = rng.choice(people)
        if rng.random() < 0.5:
            other = next((p for p in people if p is not e and p.links["city"] is city), other)
        questions = [
            one(f"Where was {e.name} born?", city.name),
            one(f"What was the profession of {e.name}?", e.facts["work"]),
            two(f"On which river does the birthplace of {e.name} lie?", city.facts["river"], "city"),
            two(f"In which country was {e.name} born?", city.links["country"].name, "city"),
        ]
        if other is not e:
            same = "yes" if other.links["city"] is city else "no"
            text = f"Were {e.name} and {other.name} born in the same city?"
            questions.append(Question(text, same, (e.number, other.number)))
        return questions
    if e.kind == "book":
        author = e.links["author"]
        return [
            one(f"Who wrote {e.name}?", author.name),
            two(f"In which city was the author of {e.name} born?", author.links["city"].name, "author"),
            two(f"In which year did the author of {e.name} die?", author.facts["died"], "author"),
        ]
    founder = e.links["founder"]
    return [
        one(f"Who founded {e.name}?", founder.name),
        two(f"What was the profession of the founder of {e.name}?", founder.facts["work"], "founder"),
        two(
            f"In which country is the head office of {e.name}?", e.links["city"].links["country"].name, "city"
        ),
    ]


def encyclopedia(config: CorpusConfig) -> Corpus:
    """`num_passages` passages (at least 48) and at most `num_questions` questions."""
    if config.num_passages < MIN_PASSAGES:
        raise ConfigError("num_passages", config.num_passages, f"use at least {MIN_PASSAGES}")
    rng = random.Random(config.corpus_seed)
    entities = _entities(config.num_passages, rng)
    people = [e for e in entities if e.kind == "person"]
    passages = tuple(_passage(e, rng) for e in entities)
    held_out = {e.number for e in rng.sample(entities, len(entities) // EVAL_SHARE)}
    asked = [(q, e.number in held_out) for e in entities for q in _questions(e, people, rng)]
    rng.shuffle(asked)
    asked = asked[: config.num_questions]
    return Corpus(
        passages,
        {"train": tuple(q for q, out in asked if not out), "eval": tuple(q for q, out in asked if out)},
    )
