"""Steps per second of every environment at a batch of 1,024, beside the best public peers that the package index has.

    python -m benchmarks.environments [--record] [--rounds 3] [--batch 1024] [--tags FrozenLake SearchQA ...]

The transition alone, then with the tokens of each new observation. Where a peer's actions are text, reading them is
part of a step, here and there. Peers in JAX (jumanji, gymnax) are compiled as we are and have no text; peers in Python
are loops over one episode, as a trainer would call them. Plain Python written here, around an engine where there is
one, is timed too and named so: it shows what remains when a package's own cost is taken away. No package has WebShop.
DeepCoder runs programs and is measured by benchmarks/deepcoder.py.

Contenders take turns, so that a busy machine slows all of them; shown are medians over the rounds, of speeds and of
their ratios. No contender draws images. Episodes of text begin anew when they end, others go on.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from benchmarks import peers_games as games
from benchmarks import peers_shop as shop
from benchmarks import peers_text as text
from benchmarks._qwen import qwen_tokenizer
from benchmarks._table import report
from benchmarks.peers_games import STEPS, Loop
from envs_jax.core import Environment, Span, Tokenizer
from envs_jax.tasks.search_qa import SearchQA
from envs_jax.tasks.webshop import WebShop
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.text.phrases import PhraseTable, join
from envs_jax.turn import TurnEnv

SPAN = 0.2  # seconds that a contender runs for in a round
TURN_TOKENS = 64
ASKED = {"jax": 1.0, "python": 50.0}  # how many times as fast as a peer


def speed(run: Callable[[], Any], steps: int) -> float:
    """Steps per second of `run`, which makes `steps` of them, repeated for SPAN seconds, at least once."""
    count, start, spent = 0, time.perf_counter(), 0.0
    while not count or spent < SPAN:
        run()
        count += steps
        spent = time.perf_counter() - start
    return count / spent


# -- ours ---------------------------------------------------------------------------------------------------
def spans(texts: Sequence[Sequence[str]], width: int) -> Span:
    """Actions as text, with the leading axes of `texts`. Raises ValueError for one that is too long."""
    shape = (len(texts), len(texts[0]))
    data, length = np.zeros((*shape, width), np.uint8), np.zeros(shape, np.int32)
    for place in np.ndindex(shape):
        raw = texts[place[0]][place[1]].encode()
        if len(raw) > width:
            raise ValueError(f"an action of {len(raw)} bytes does not fit {width}")
        data[place][: len(raw)], length[place] = np.frombuffer(raw, np.uint8), len(raw)
    return Span(jnp.asarray(data), jnp.asarray(length))


def rollout(
    env: Environment, batch: int, episodes: list[list[str]] | None, tokenizer: Tokenizer | None, ahead: bool
) -> Loop:
    """A compiled scan over a batch, with a tokenizer also over the tokens of each new observation.

    `episodes`: what lane i says in each step of an episode, read on device (`ahead`: before the scan); None: random
    actions of the names. Every output enters a sum, so that none is optimised away.
    """
    params = env.init_params(jax.random.key(0))
    table = None if tokenizer is None else PhraseTable.build(list(env.phrases()), tokenizer)
    levels = jnp.arange(batch, dtype=jnp.int32) % env.num_levels
    start = jax.jit(jax.vmap(env.level, in_axes=(0, None)))(levels, params)
    capacity = 0
    if table is not None:
        longest = env.state_tokens(np.asarray(table.lengths), params)
        ids = jax.jit(jax.vmap(env.observe, in_axes=(0, None)))(start, params)
        shown = int(jnp.max(jnp.sum(jnp.where(ids >= 0, table.lengths[jnp.maximum(ids, 0)], 0), axis=1)))
        capacity = shown + 16 if longest is None else max(longest)
    parse = jax.vmap(env.parse, in_axes=(0, 0, None))
    said: Any
    if episodes is None:
        names = len(env.action_names)
        said = jax.random.randint(jax.random.key(1), (STEPS, batch), 0, names, jnp.int32)
        again = 0
    else:
        again = len(episodes[0])  # steps of an episode
        whole = [lane * max(1, STEPS // again) for lane in episodes]
        said = spans(list(zip(*whole, strict=True)), env.answer_bytes)  # by step, then by lane
        if ahead:
            said = jax.jit(jax.vmap(lambda words: parse(words, start, params)[0]))(said)
    steps = jax.tree.leaves(said)[0].shape[0]
    keys = jax.random.split(jax.random.key(2), steps)

    @jax.jit
    def run(start: Any, said: Any, keys: Any, params: Any, table: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            state, total = carry
            words, key, number = x
            lanes = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(batch, dtype=jnp.uint32))
            if again and not ahead:
                first = again == 1 or number % again == 0
                state = jax.tree.map(lambda a, b: jnp.where(first, a, b), start, state)
                words, known = parse(words, state, params)
                total = total + known
            out = jax.vmap(env.transition, in_axes=(0, 0, 0, None))(lanes, state, words, params)
            total = total + out.reward + out.terminated + out.success + out.effective + out.metrics.sum(-1)
            if table is not None:

                def tokens(state: Any) -> Any:
                    ids, length, overflow = join(table, env.observe(state, params), capacity)
                    return jnp.sum(ids, dtype=jnp.int32) + length + overflow

                total = total + jax.vmap(tokens)(out.state)
            return (out.state, total), None

        numbers = jnp.arange(steps, dtype=jnp.int32)
        return jax.lax.scan(step, (start, jnp.zeros(batch, jnp.float32)), (said, keys, numbers))[0]

    return lambda: jax.block_until_ready(run(start, said, keys, params, table)), batch * steps


# -- the tasks ----------------------------------------------------------------------------------------------
Make = Callable[[Tokenizer | None], Loop | None]


@dataclass(frozen=True)
class Peer:
    """`kind`: jax, python, or own (a loop written here, beside which nothing is asked); `has_text`: whether it can also
    be timed with text."""

    name: str
    kind: str
    make: Make
    has_text: bool = True


def bandit_words(env: Environment, batch: int) -> list[list[str]]:
    pairs = games.TRAIN_PAIRS
    return [[pairs[i // 2 % len(pairs)][i % 2]] for i in range(batch)]


def sudoku_words(env: Environment, batch: int) -> list[list[str]]:
    rng = random.Random(0)
    return [[",".join(str(rng.randint(1, 9)) for _ in range(3)) for _ in range(STEPS)] for _ in range(batch)]


def search_words(env: Environment, batch: int) -> list[list[str]]:
    assert isinstance(env, SearchQA)
    asked = np.asarray(env.init_params(jax.random.key(0)).levels)[np.arange(batch) % env.num_levels]
    return [shop.search_episode(env.questions[i]) for i in asked]


def shop_words(env: Environment, batch: int) -> list[list[str]]:
    assert isinstance(env, WebShop)
    catalogue = env.shop.catalogue
    goals = [*catalogue.goals["train"], *catalogue.goals["eval"]]
    asked = np.asarray(env.init_params(jax.random.key(0)).levels)[np.arange(batch) % env.num_levels]
    return [shop.shop_episode(catalogue, goals[i]) for i in asked]


def countdown_words(env: Environment, batch: int) -> list[list[str]]:
    return [[answer] for answer in text.countdown_answers(batch)[2]]


def question_words(env: Environment, batch: int) -> list[list[str]]:
    return [[answer] for answer in text.metamathqa_answers(batch)[2]]


WORDS: dict[str, Callable[[Environment, int], list[list[str]]]] = {
    "Bandit": bandit_words, "Sudoku": sudoku_words, "SearchQA": search_words, "WebShop": shop_words,
    "Countdown": countdown_words, "MetaMathQA": question_words,
}  # fmt: skip


AHEAD = ("Bandit", "SimpleSudoku", "MediumSudoku")  # peers take numbers, so what is said is read beforehand


def peers(env: Environment, batch: int) -> Iterator[Peer]:
    """The peers of an environment, by its class."""

    def compiled(name: str, make: Callable[[int], Loop | None]) -> Peer:
        return Peer(name, "jax", lambda _: make(batch), has_text=False)

    match type(env).__name__:
        case "Bandit":
            yield compiled("gymnax BernoulliBandit", games.gymnax_bandit)
            yield Peer("gym-bandits", "python", games.gym_bandits_steps)
        case "FrozenLake":
            yield compiled("gymnax FrozenLake", games.gymnax_lake)
            yield Peer("gymnasium FrozenLake", "python", games.gymnasium_lake)
        case "Sokoban":
            yield compiled("jumanji Sokoban, 10 x 10", games.jumanji_sokoban)
            yield Peer("gym-sokoban", "python", games.gym_sokoban_steps)
        case "Sudoku":
            yield compiled("jumanji Sudoku", games.jumanji_sudoku)
        case "Game2048":
            yield compiled("jumanji Game2048", games.jumanji_2048)
        case "RubiksCube":
            yield compiled("jumanji RubiksCube, 2 x 2", games.jumanji_cube)
        case "Countdown":
            yield Peer("reasoning-gym countdown, judge alone", "python", text.countdown_reasoning_gym)
            yield Peer("plain Python (ast, fractions)", "own", text.countdown_python)
        case "MetaMathQA":
            yield Peer("reasoning-gym gsm_symbolic, judge alone", "python", text.metamathqa_reasoning_gym)
            yield Peer("skyrl-gym gsm8k_multi_turn", "python", text.metamathqa_skyrl_gym)
            yield Peer("plain Python, judge alone", "own", text.metamathqa_python)
        case "SearchQA":
            assert isinstance(env, SearchQA)
            make = functools.partial(shop.skyrl_gym_search, env.corpus)
            yield Peer("skyrl-gym search, bm25s behind its HTTP", "python", make)
            for name, engine in (("bm25s", shop.bm25s_search), ("rank-bm25", shop.rank_bm25_search)):
                make = functools.partial(shop.search_loop, env.corpus, engine)
                yield Peer(f"plain Python episode, {name}", "own", make)
        case "WebShop":
            assert isinstance(env, WebShop)
            for name, engine in (("bm25s", shop.bm25s_search), ("rank-bm25", shop.rank_bm25_search)):
                make = functools.partial(shop.shop_loop, env.shop.catalogue, engine)
                yield Peer(f"plain Python episode, {name}", "own", make)


def families() -> list[str]:
    """The first tag of each class of environments."""
    known = {envs_jax.spec(tag).factory: tag for tag in reversed(envs_jax.registered())}
    named = {"game_2048", "CoordSokoban", "FrozenLake"}  # better known than the first of their class
    first = [next((n for n in named if envs_jax.spec(n).factory is f), tag) for f, tag in known.items()]
    return sorted(tag for tag in first if tag != "DeepCoder")


def measured(tag: str, batch: int, tokenizer: Tokenizer, rounds: int) -> list[list[Any]]:
    """Rows of an environment, one a peer."""
    spec = envs_jax.spec(tag)
    count = batch if spec.factory.__name__ in ("Countdown", "MetaMathQA") else max(batch, 1024)
    env = spec.factory(**{"num_levels": count, **spec.env})
    words = WORDS.get(type(env).__name__)
    episodes = None if words is None else words(env, batch)
    others = list(peers(env, batch))
    loops: dict[Any, Loop | None] = {}
    for spoken in (None, tokenizer):
        loops["ours", spoken is not None] = rollout(env, batch, episodes, spoken, tag in AHEAD)
        for peer in others:
            if spoken is None or peer.has_text:
                loops[peer.name, spoken is not None] = peer.make(spoken)
    live = {name: loop for name, loop in loops.items() if loop is not None}
    for run, _ in live.values():
        run()  # compile, fill caches
    found: dict[Any, list[float]] = {name: [] for name in live}
    for _ in range(rounds):
        for name, loop in live.items():
            found[name].append(speed(*loop))

    def middle(name: Any) -> Any:
        return float(statistics.median(found[name])) if name in found else "-"

    rows: list[list[Any]] = []
    for peer in others:
        row = [tag, middle(("ours", False)), middle(("ours", True)), peer.name]
        if (peer.name, False) not in found:
            rows.append([*row, "not installed", *["-"] * 4])
            continue
        ratios = []
        for spoken in (False, True):
            pairs = zip(found["ours", spoken], found.get((peer.name, spoken), []), strict=False)
            ratios.append([a / b for a, b in pairs])
        best = [statistics.median(r) for r in ratios if r]
        shown = [f"{r:,.1f}x" for r in best] + ["-"] * (2 - len(best))
        asked = ASKED.get(peer.kind)
        met = "-" if asked is None else " / ".join("yes" if r >= asked else "no" for r in best)
        rows.append([*row, middle((peer.name, False)), middle((peer.name, True)), *shown, met])
    return rows


# -- whole turns --------------------------------------------------------------------------------------------
def responses(tokenizer: Tokenizer, count: int, names: tuple[str, ...], seed: int) -> list[list[int]]:
    """`count` responses of exactly TURN_TOKENS ids with two random actions each."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        first, second = rng.choice(names, 2)
        tail = tokenizer.encode(f"</think><answer>{first} || {second}</answer>")
        words = tokenizer.encode("The box must go to the target, so I walk around it and push it there. " * 8)
        out.append(words[: TURN_TOKENS - len(tail)] + tail)
    if any(len(ids) != TURN_TOKENS for ids in out):
        raise ValueError("this tokenizer needs more than a turn for the two actions")
    return out


def turns(env: TurnEnv, params: Any, tokenizer: Tokenizer, batch: int) -> Loop:
    """A compiled scan of four full turns."""
    count = 4
    ids = np.asarray(responses(tokenizer, count * batch, env.env.action_names, 0), np.int32)
    tokens = jnp.asarray(ids.reshape(count, batch, TURN_TOKENS))
    length = jnp.full(batch, TURN_TOKENS, jnp.int32)

    @jax.jit
    def run(tokens: Any, params: Any) -> Any:
        level = jnp.arange(batch, dtype=jnp.int32)
        state, first = jax.vmap(env.reset, in_axes=(0, None))(level, params)
        keys = jax.random.split(jax.random.key(0), batch)

        def step(carry: Any, tokens: Any) -> Any:
            state, total = carry
            state, out = jax.vmap(env.step, in_axes=(0, 0, 0, 0, None))(keys, state, tokens, length, params)
            total = total + out.reward + out.penalty + out.obs_tokens.sum(-1) + out.obs_len
            return (state, total), None

        return jax.lax.scan(step, (state, first.obs_tokens.sum(-1).astype(jnp.float32)), tokens)[0]

    return lambda: jax.block_until_ready(run(tokens, params)), batch * count


def whole_turns(tokenizer: Tokenizer, batch: int, rounds: int) -> list[list[Any]]:
    """The whole protocol: ours, and a loop over gym-sokoban."""
    env, params = envs_jax.make(
        "CoordSokoban", tokenizer, num_levels=batch, max_response_tokens=TURN_TOKENS, length_hint=120
    )
    ours = turns(env, params, tokenizer, batch)
    loop = games.gym_sokoban_turns(tokenizer, responses(tokenizer, 64, ("Up", "Down", "Left", "Right"), 0))
    if loop is None:
        return []
    for run, _ in (ours, loop):
        run()
    pairs = [(speed(*ours), speed(*loop)) for _ in range(rounds)]
    fast, slow = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    peer = "gym-sokoban: decode, parse, 2 steps, text, encode"
    return [["CoordSokoban", fast, peer, slow, f"{ratio:,.1f}x"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--record", action="store_true", help="append the tables to RESULTS.md")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--tags", nargs="+", help="these tags alone, without the table of whole turns")
    options = parser.parse_args()
    batch, rounds = options.batch, options.rounds
    tokenizer = qwen_tokenizer() or ByteTokenizer()
    spoken = "Qwen's" if len(tokenizer.token_bytes()) > 1000 else "bytes (dashscope is not installed)"
    how = f"Batch {batch}, medians of {rounds} interleaved rounds, tokenizer: {spoken}."
    notes = (
        f"{how} Asked: not slower than a package in JAX, 50 times as fast as one in Python; for the transition / with "
        "text. Beside plain Python that was written here nothing is asked."
    )
    rows = []
    for tag in options.tags or families():
        start = time.perf_counter()
        rows += measured(tag, batch, tokenizer, rounds)
        print(f"{tag}: measured in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    columns = [
        "environment", "transition", "with text", "peer", "its transition", "with text", "times", "with text", "met",
    ]  # fmt: skip
    report("Every environment, steps/s", columns, rows, notes, options.record)
    if options.tags is None:
        columns = ["environment", "turns/s", "peer", "its turns/s", "times"]
        rows = whole_turns(tokenizer, batch, rounds)
        report(f"Whole turns of {TURN_TOKENS} tokens, turns/s", columns, rows, how, options.record)


if __name__ == "__main__":
    main()
