"""Two-armed bandit: two trades by name, one safe and one risky; one pull ends the episode.

The agent must infer from the names which arm pays more on average. Names and payoffs are those of RAGEN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Environment, Span, Transition
from envs_jax.errors import ConfigError
from envs_jax.text.actions import NameTable, match_name

# (safe arm, risky arm)
TRAIN_PAIRS = (
    ("Teacher", "Trader"),
    ("Nurse", "StartupFounder"),
    ("Librarian", "Investor"),
    ("Accountant", "StockBroker"),
    ("Engineer", "RealEstateAgent"),
    ("Pharmacist", "Musician"),
    ("Clerk", "Freelancer"),
    ("Technician", "Youtuber"),
    ("Planner", "Artist"),
    ("Postman", "Pilot"),
    ("Banker", "VentureCapitalist"),
    ("Gardener", "Cryptominer"),
)
TEST_PAIRS = (
    ("Receptionist", "Explorer"),
    ("Archivist", "Filmmaker"),
    ("Bookkeeper", "Consultant"),
    ("SocialWorker", "Photographer"),
    ("Mechanic", "GameDesigner"),
    ("Secretary", "Entrepreneur"),
    ("Cashier", "DataScientist"),
    ("CivilServant", "StartupAccelerator"),
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BanditParams:
    """Traced parameters: name 2 p is the safe arm of pair p and name 2 p + 1 its risky arm."""

    names: NameTable
    lo_arm_score: Float[Array, ""]
    hi_arm_loscore: Float[Array, ""]
    hi_arm_hiscore: Float[Array, ""]
    hi_arm_hiscore_prob: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BanditState:
    """Pair of names, whether the risky one is named first, arm pulled (-1 none, 0 safe, 1 risky), points."""

    pair: Int[Array, ""]
    swapped: Bool[Array, ""]
    pulled: Int[Array, ""]
    points: Float[Array, ""]


@dataclass(frozen=True)
class Bandit(Environment):
    """Two arms, a safe one and a risky one that pays more on average; their names say which is which.

    Level i is pair (i // 2) mod P, with the risky arm named first where i is odd, so members of a group
    read the same prompt; the risky arm's draw comes from the transition key. Success is the choice of the
    risky arm. An action is the arm's name (action: i32, 0 safe, 1 risky).

    Fields:
        names: "train" or "test", the table of pairs.
        lo_arm_score: what the safe arm pays.
        hi_arm_loscore: the risky arm's lower pay.
        hi_arm_hiscore: the risky arm's higher pay.
        hi_arm_hiscore_prob: the probability of the higher one.
    """

    num_levels: int = 2 * len(TRAIN_PAIRS)
    names: str = "train"
    lo_arm_score: float = 0.1
    hi_arm_loscore: float = 0.0
    hi_arm_hiscore: float = 1.0
    hi_arm_hiscore_prob: float = 0.25

    def __post_init__(self) -> None:
        if self.names not in ("train", "test"):
            raise ConfigError("names", self.names, 'use "train" or "test"')
        if not 0.0 <= self.hi_arm_hiscore_prob <= 1.0:
            raise ConfigError("hi_arm_hiscore_prob", self.hi_arm_hiscore_prob, "use a probability")
        if self.num_levels < 1:
            raise ConfigError("num_levels", self.num_levels, "use a number of at least 1")

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        return TRAIN_PAIRS if self.names == "train" else TEST_PAIRS

    @property
    def answer_bytes(self) -> int:
        return max(len(name) for pair in self.pairs for name in pair)

    @property
    def reward_range(self) -> tuple[float, float]:
        scores = (self.lo_arm_score, self.hi_arm_loscore, self.hi_arm_hiscore)
        return min(scores), max(scores)

    def instruction(self) -> str:
        return (
            "You face two arms, each named after a trade. Each arm pays points with its own "
            "distribution, which its name hints at. Judge from what the names stand for which arm pays "
            "more on average, and choose it. "
            "Your answer is the name of one arm."
        )

    def phrases(self) -> Sequence[str]:
        low, high = self._point_bounds
        names = [name for pair in self.pairs for name in pair]
        return (
            "The arms are",
            " and",
            ".\n",
            *(f" {name}" for name in names),
            *(f"{name} paid" for name in names),
            *(f" {value / 10:g} points.\n" for value in range(low, high + 1)),
        )

    @property
    def _point_bounds(self) -> tuple[int, int]:
        """Smallest and largest points that a state can show, in tenths."""
        low, high = self.reward_range
        return round(10 * low), round(10 * high)

    def init_params(self, key: Array, split: str = "train") -> BanditParams:
        names = [name for pair in self.pairs for name in pair]
        return BanditParams(
            NameTable.build(names, self.answer_bytes),
            *(
                jnp.asarray(x, jnp.float32)
                for x in (
                    self.lo_arm_score,
                    self.hi_arm_loscore,
                    self.hi_arm_hiscore,
                    self.hi_arm_hiscore_prob,
                )
            ),
        )

    def level(self, index: Int[Array, ""], params: BanditParams) -> BanditState:
        return BanditState(
            pair=((index // 2) % len(self.pairs)).astype(jnp.int32),
            swapped=index % 2 == 1,
            pulled=jnp.full((), -1, jnp.int32),
            points=jnp.zeros((), jnp.float32),
        )

    def observe(self, state: BanditState, params: BanditParams) -> Int[Array, " 5"]:
        """Before the pull "The arms are A and B.", after it "A paid 1 points."."""
        arms, paid = 3, 3 + 2 * len(self.pairs)
        points, (low, high) = paid + 2 * len(self.pairs), self._point_bounds
        swap = state.swapped.astype(jnp.int32)
        first, second = 2 * state.pair + swap, 2 * state.pair + 1 - swap
        asked = jnp.stack(
            [
                jnp.zeros_like(first),
                arms + first,
                jnp.ones_like(first),
                arms + second,
                jnp.full_like(first, 2),
            ]
        )
        tenths = jnp.clip(jnp.round(10 * state.points), low, high).astype(jnp.int32)
        none = jnp.full_like(first, -1)
        told = jnp.stack([paid + 2 * state.pair + state.pulled, points + tenths - low, none, none, none])
        return jnp.where(state.pulled < 0, asked, told)

    def parse(
        self, span: Span, state: BanditState, params: BanditParams
    ) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        index, found = match_name(span, params.names)
        return index % 2, found & (index // 2 == state.pair)

    def transition(
        self, key: Array, state: BanditState, action: Int[Array, ""], params: BanditParams
    ) -> Transition:
        lucky = jax.random.uniform(key, (), jnp.float32) < params.hi_arm_hiscore_prob
        risky = action == 1
        points = jnp.where(
            risky, jnp.where(lucky, params.hi_arm_hiscore, params.hi_arm_loscore), params.lo_arm_score
        )
        true = jnp.ones((), bool)
        return Transition(
            state=BanditState(state.pair, state.swapped, action.astype(jnp.int32), points),
            reward=points,
            terminated=true,
            success=risky,
            valid=true,
            effective=true,
            metrics=jnp.zeros((0,), jnp.float32),
        )
