"""One contract test for every environment, also for those of others: `check_environment("MyTag")`.

It plays a few episodes of text in one compiled program and looks at everything that comes out. A broken rule raises
AssertionError with the environment's tag, the rule, what was seen, and what to do about it.
"""

from __future__ import annotations

import copy
import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.errors import KeyReuseError

from envs_jax import registry
from envs_jax.core import TimeStep, Tokenizer
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.turn import TurnEnv, TurnParams, TurnState

RULES = {
    "make": "make the environment a frozen dataclass of hashable fields, so that equal settings are equal objects",
    "deterministic": "draw only from the key that is given; the same key must give the same tree",
    "jit": "use jax.numpy on arrays, and no Python branch on a traced value",
    "scan": "give every leaf of the state the same shape and dtype in `level` and in `transition`",
    "retrace": "keep what differs between pools in params, and out of shapes and of the fields",
    "lanes": "let an episode depend on its own level, key and text alone",
    "frozen": "leave the end of episodes to TurnEnv, which keeps a finished state as it is",
    "dtypes": "write every dtype out (jnp.int32, jnp.float32), so that x64 changes nothing",
    "keys": "split a key before drawing twice",
    "constants": "put tables into params; a closed-over array becomes part of every compiled program",
    "text": "observe only ids of `phrases()` (no duplicates); begin without whitespace, end with a newline",
    "overflow": "flag every observation that does not fit; raise obs_capacity if later states are longer",
    "canonical": "cut phrases only where every tokenizer cuts (docs/architecture.md, Fragments)",
    "reward": "widen `reward_range`, or bound the reward; a turn pays for executed actions alone",
    "actions": "make `parse` refuse what it does not know, whatever the bytes",
}
CONSTANT_BYTES = 16_384  # the largest array that may be part of a program
SLOTS = 160  # tokens of a response buffer

Answers = Callable[[random.Random, str], str]


class ContractError(AssertionError):
    """A broken rule; `rule` is a key of RULES."""

    def __init__(self, tag: str, rule: str, seen: str) -> None:
        self.rule = rule
        super().__init__(f"{tag} breaks the rule {rule!r}: {seen}. Remedy: {RULES[rule]}.")


@dataclass(frozen=True)
class Checked:
    """What was played, so that a caller can see that the check was not empty."""

    turns: int  # live turns
    executed: int  # actions
    effective: int  # of these
    finished: int  # episodes that ended
    texts: int  # observations compared with the canonical encoding, over all tokenizers


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Played:
    """One call of `_play`. `later` has leading axes [turns, B]."""

    state: TurnState
    step: TimeStep
    fragments: Array
    cut: Array  # bool[B], whether a first observation in a buffer of one token was flagged
    later: tuple[TurnState, TimeStep, Array, Array]


def _play(
    env: TurnEnv, levels: Array, ending: Array, tokens: Array, lengths: Array, keys: Array, params: TurnParams
) -> _Played:
    """Plays given responses i32[turns, B, T]; lanes that are `ending` have one turn left at the start."""
    state, step = jax.vmap(env.reset, in_axes=(0, None))(levels, params)
    short = jax.vmap(replace(env, prompt_capacity=1).reset, in_axes=(0, None))(levels, params)[1]
    first = jax.vmap(env.first_fragments, in_axes=(0, None))(state, params)
    last = jnp.full_like(state.turn, env.config.max_turns - 1)
    state = replace(state, turn=jnp.where(ending, last, state.turn))

    def turn(state: TurnState, x: tuple[Array, Array, Array]) -> tuple[TurnState, Any]:
        after, out = jax.vmap(env.step, in_axes=(0, 0, 0, 0, None))(x[2], state, x[0], x[1], params)
        said = jax.vmap(env.later_fragments, in_axes=(0, 0, 0, None))
        ids, off = said(after, out.reward, out.info.n_valid == 0, params)
        return after, (after, out, ids, off)

    return _Played(
        state, step, first, short.info.obs_overflow, jax.lax.scan(turn, state, (tokens, lengths, keys))[1]
    )


def check_environment(
    environment: str | tuple[TurnEnv, TurnParams],
    *,
    tokenizer: Tokenizer | None = None,
    tokenizers: Sequence[Tokenizer] = (),
    answers: Answers | None = None,
    batch: int = 8,
    turns: int = 4,
    seed: int = 0,
    x64_init: bool = True,
    **overrides: Any,
) -> Checked:
    """Checks an environment against the contract (RULES). Takes seconds: one program is compiled.

    Args:
        environment: a registered tag, or what `make` or `turn.build` gave.
        tokenizer: the one whose ids a given pair speaks; None for `ByteTokenizer`.
        tokenizers: for which the text must be canonical, besides that one.
        answers: (random numbers, text of the first state) -> one action as text, to reach states beyond the first.
            None: action names; without any, words of the state's own text and numbers. Garbage is played as well.
        batch: B, lanes played at once, >= 4.
        turns: responses of each episode, >= 2.
        seed: of texts, keys and level pools.
        x64_init: whether parameters are built once more with x64 on, which compiles their generator again.
        **overrides: fields for `make`; `num_levels` is 16 unless given.

    Returns:
        What was played. Raises ContractError (an AssertionError) for the first broken rule.
    """
    speaker = tokenizer or ByteTokenizer()
    key = registry.pool_key("train", seed)
    if isinstance(environment, str):
        options = {"num_levels": 16, "max_response_tokens": SLOTS, **overrides}
        make = functools.partial(registry.make, environment, speaker, **options)
        env, params = make(seed=seed)
        again, same = make(seed=seed)
        other = make(seed=seed + 1)[1]
    else:
        env, given = environment
        again = copy.deepcopy(env)
        params = replace(given, env=env.env.init_params(key))
        same = replace(given, env=env.env.init_params(key))
        other = given
    fail = functools.partial(_fail, env.tag)

    fail("make", env != again or hash(env) != hash(again), "a second make gives an unequal environment")
    fail("deterministic", not _same(params, same), "init_params gives another tree for the same key")
    fail("retrace", _kinds(params) != _kinds(other), "another pool has other shapes or dtypes")
    rng = random.Random(f"{env.tag} {seed}")
    ending = np.arange(batch) % 4 == 3
    levels = np.asarray([rng.randrange(env.num_levels) for _ in range(batch)], np.int32)
    keys = jax.random.split(jax.random.fold_in(key, 1), (turns, batch))
    texts = [["" for _ in range(batch)] for _ in range(turns)]

    traces: list[int] = []

    def counted(env: TurnEnv, *args: Any) -> _Played:
        traces.append(1)
        return _play(env, *args)

    program = jax.jit(counted, static_argnums=0)
    silent = (levels, ending, *_encode(texts, speaker), keys)
    with jax.debug_key_reuse(True):
        _check_program(program, env, silent, params, fail)
        start = _run(program, env, silent, params)
        states = [env.fragment_text(_state_part(env, row)) for row in start.fragments]
        said = [
            [_response(rng, env, t, lane, states[lane], answers) for lane in range(batch)]
            for t in range(turns)
        ]
        spoken = (levels, ending, *_encode(said, speaker), keys)
        played = _run(program, env, spoken, params)
        fail(
            "deterministic",
            not _same(played, _run(program, again, spoken, same)),
            "the same call gives another result",
        )
        _run(program, env, spoken, other)
        fail("retrace", len(traces) != 1, f"{len(traces)} traces for calls of equal shapes")
        order = np.asarray(rng.sample(range(batch), batch))
        mixed = _run(program, env, (levels[order], ending[order], *(x[:, order] for x in spoken[2:])), params)
        fail(
            "lanes",
            not _same(_lanes(played, order), mixed),
            "another order of the lanes gives other episodes",
        )
    _check_dtypes(env, spoken, params, played, key, x64_init, fail)
    _check_episodes(env, played, fail)
    _check_text(env, params, played, fail)
    count = sum(_check_canonical(env, played, one, fail) for one in (speaker, *tokenizers))
    _, step, _, _ = played.later
    ended = played.later[0].terminated | played.later[0].truncated
    before = np.concatenate([np.zeros((1, batch), bool), ended[:-1]])
    return Checked(
        turns=int(np.sum(~before)),
        executed=int(step.info.n_executed.sum()),
        effective=int(step.info.n_effective.sum()),
        finished=int(ended[-1].sum()),
        texts=count,
    )


def _fail(tag: str, rule: str, broken: bool | np.bool_, seen: str) -> None:
    if broken:
        raise ContractError(tag, rule, seen)


# -- what is said ---------------------------------------------------------------------------------------
def _state_part(env: TurnEnv, fragments: np.ndarray) -> list[int]:
    return [int(i) for i in fragments if i >= env.layout.count]


def _response(
    rng: random.Random, env: TurnEnv, turn: int, lane: int, state: str, answers: Answers | None
) -> str:
    """One response. Lane 0 always says garbage and lane 1 nothing; others speak well and sometimes not."""
    if lane == 1:
        return ""
    garbage = "".join(rng.choice("ab/<>|[](){},.'-+ 019\n\u00e9\u221a") for _ in range(rng.randrange(60)))
    if lane == 0 or rng.random() < 0.1:
        return garbage if turn % 2 else f"</think><answer>{garbage}</answer>"
    words = env.env.action_names or re.findall(r"\w+", state) or ("1",)
    pieces = []
    for _ in range(rng.randint(1, env.config.max_actions_per_turn)):
        text = answers(rng, state) if answers else rng.choice(words)
        pieces.append("fly" if rng.random() < 0.1 else text)
    opening = "so</think><answer>" if env.config.enable_think else ""
    return f"{opening}{env.config.action_sep.join(pieces)}</answer>"


def _encode(texts: list[list[str]], speaker: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.zeros((len(texts), len(texts[0]), SLOTS), np.int32)
    lengths = np.zeros(tokens.shape[:2], np.int32)
    for t, row in enumerate(texts):
        for lane, text in enumerate(row):
            ids = speaker.encode(text)[:SLOTS]
            tokens[t, lane, : len(ids)], lengths[t, lane] = ids, len(ids)
    return tokens, lengths


# -- the program ----------------------------------------------------------------------------------------
def _run(program: Any, env: TurnEnv, inputs: tuple[Any, ...], params: TurnParams) -> _Played:
    return jax.device_get(program(env, *inputs, params))


def _check_program(
    program: Any, env: TurnEnv, inputs: tuple[Any, ...], params: TurnParams, fail: Any
) -> None:
    """Traces the program: rules jit, scan, keys and constants."""
    try:
        traced = program.trace(env, *inputs, params)
    except KeyReuseError as e:
        raise ContractError(env.tag, "keys", str(e).splitlines()[0]) from e
    except jax.errors.JAXTypeError as e:
        raise ContractError(env.tag, "jit", " ".join(str(e).split())[:400]) from e
    except TypeError as e:
        rule = "scan" if "carry" in str(e) else "jit"
        raise ContractError(env.tag, rule, " ".join(str(e).split())[:400]) from e
    for value in _arrays(traced.jaxpr):
        size = value.size * value.dtype.itemsize
        fail(
            "constants",
            size > CONSTANT_BYTES,
            f"{value.dtype}{list(value.shape)} ({size} bytes) is in the program",
        )


def _arrays(jaxpr: Any) -> Iterator[Any]:
    """Arrays that a jaxpr, or one inside it, holds."""
    if hasattr(jaxpr, "consts"):
        yield from (c for c in jaxpr.consts if hasattr(c, "dtype") and hasattr(c.dtype, "itemsize"))
        jaxpr = jaxpr.jaxpr
    for equation in jaxpr.eqns:
        for value in equation.invars:
            constant = getattr(value, "val", None)
            if isinstance(constant, np.ndarray | jax.Array):
                yield constant
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from _arrays(inner)


def _kinds(tree: Any) -> Any:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def _same(a: Any, b: Any) -> bool:
    """Equal trees, bit for bit."""
    if _kinds(a) != _kinds(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(_bits(x), _bits(y)) for x, y in pairs)


def _bits(leaf: Any) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.frombuffer(np.ascontiguousarray(leaf).tobytes(), np.uint8)


def _lanes(played: _Played, order: np.ndarray) -> _Played:
    first = jax.tree.map(lambda x: x[order], (played.state, played.step, played.fragments, played.cut))
    later = jax.tree.map(lambda x: x[:, order], played.later)
    return _Played(first[0], first[1], first[2], first[3], later)


# -- rules on what came out -----------------------------------------------------------------------------
def _check_dtypes(
    env: TurnEnv, inputs: Any, params: TurnParams, played: _Played, key: Array, init: bool, fail: Any
) -> None:
    for leaf in jax.tree.leaves((params, played)):
        wide = leaf.dtype in (np.dtype("int64"), np.dtype("uint64"), np.dtype("float64"))
        fail("dtypes", wide, f"a leaf of {list(leaf.shape)} is {leaf.dtype}")
    with jax.enable_x64(True):
        try:
            shapes = jax.eval_shape(functools.partial(_play, env), *inputs, params)
        except TypeError as e:
            raise ContractError(env.tag, "dtypes", f"with x64 on, {' '.join(str(e).split())[:400]}") from e
        wide_params = env.env.init_params(key) if init else params.env
    for name, tree, other in (("an episode", played, shapes), ("init_params", params.env, wide_params)):
        for leaf, x64 in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
            seen = (
                f"{name} has a leaf of {list(leaf.shape)} that is {leaf.dtype}, and {x64.dtype} with x64 on"
            )
            fail("dtypes", leaf.dtype != x64.dtype, seen)


def _check_episodes(env: TurnEnv, played: _Played, fail: Any) -> None:
    """Rules frozen, reward and actions, turn by turn."""
    low, high = env.env.reward_range
    before = played.state
    states, steps, _, _ = played.later
    for t in range(len(steps.reward)):
        after, step = (jax.tree.map(lambda x, t=t: x[t], tree) for tree in (states, steps))
        over = np.asarray(before.terminated | before.truncated)
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            fail("frozen", not np.array_equal(old[over], new[over]), "a finished state changed")
        paid = np.abs(step.reward) + np.abs(step.penalty) + step.obs_len + step.info.n_executed
        fail("frozen", np.any(paid[over] != 0), "a finished episode was paid, or observed something")
        fail(
            "frozen",
            np.any(after.terminated & after.truncated),
            "an episode is terminated and truncated at once",
        )
        fail("reward", not np.all(np.isfinite(step.reward)), "a reward is not finite")
        n = step.info.n_executed
        off = (step.reward < min(low, 0) * n - 1e-5) | (step.reward > max(high, 0) * n + 1e-5)
        seen = f"{n[off][:1]} actions paid {step.reward[off][:1]}, outside of [{low}, {high}] each"
        fail("reward", np.any(off), seen)
        counts = (step.info.n_effective <= n) & (n <= step.info.n_valid)
        fail("actions", not np.all(counts | over), "more actions were executed than were known")
        fail("actions", step.info.n_executed[1] != 0, "a response without a word executed an action")
        fail("actions", np.any(after.actions_left < 0), "actions_left went below zero")
        fail("reward", not np.all(np.isfinite(step.info.metrics)), "a metric is not finite")
        before = after
    width = len(env.env.metric_names)
    fail("actions", steps.info.metrics.shape[-1] != width, f"metrics need {width} entries, one a name")


def _live_texts(played: _Played) -> list[np.ndarray]:
    """Fragments of every observation that an agent was shown."""
    states, _, ids, _ = played.later
    live = ~(states.terminated | states.truncated)
    return [*played.fragments, *ids[live]]


def _check_text(env: TurnEnv, params: TurnParams, played: _Played, fail: Any) -> None:
    """Rules text and overflow."""
    phrases = env.phrases()
    own = tuple(env.env.phrases())
    fail("text", len(set(own)) != len(own), "a phrase occurs twice")
    fail("text", not env.env.instruction().strip(), "the instruction is empty")
    _, step, ids, off = played.later
    for every in (played.fragments, ids):
        fail(
            "text",
            every.min() < -1 or every.max() >= len(phrases),
            f"a fragment id is outside [-1, {len(phrases)})",
        )
    for row in _live_texts(played):
        text = env.fragment_text(_state_part(env, row))
        fail("text", not text.endswith("\n") or text[:1].isspace(), f"a state reads {text!r}")
    fail("overflow", not np.all(played.cut), "a prompt in a buffer of one token was not flagged")
    lengths = np.asarray(params.phrases.lengths)
    for each, out, wrong, capacity in (
        (played.fragments, played.step, np.zeros(len(played.fragments), bool), env.prompt_capacity),
        (ids, step, off & ~(step.terminated | step.truncated), env.obs_capacity),
    ):
        need = np.sum(np.where(each >= 0, lengths[np.maximum(each, 0)], 0), axis=-1)
        need = np.where(out.terminated | out.truncated, 0, need)
        flagged = out.info.obs_overflow
        fail(
            "overflow",
            not np.array_equal(flagged, (need > capacity) | wrong),
            "the flag and the text disagree",
        )
        fail("overflow", np.any((out.obs_len != need) & ~flagged), "an observation was cut without a flag")
        seen = "a reward is not the one shown (to one decimal, within reward_range), or a state outgrew its buffer"
        fail("overflow", np.any(flagged), seen)


def _check_canonical(env: TurnEnv, played: _Played, tokenizer: Tokenizer, fail: Any) -> int:
    """Rule canonical: phrases encoded one by one are the encoding of their text. Returns how many were compared."""
    spoken = replace(env, chat=registry.choose_chat(tokenizer))
    phrases = spoken.phrases()
    encoded = functools.cache(lambda i: tokenizer.encode(phrases[i]))
    rows = {tuple(int(i) for i in row if i >= 0) for row in _live_texts(played)}
    for row in rows:
        text = "".join(phrases[i] for i in row)
        apart = [token for i in row for token in encoded(i)]
        fail(
            "canonical",
            apart != tokenizer.encode(text),
            f"{type(tokenizer).__name__} joins phrases in {text!r}",
        )
    return len(rows)
