"""Compiling a run's programs for a TPU topology without a TPU, without weights: what they need and whether they fit.

The TPU's own compiler (libtpu, extra `tpu-compile`) runs on any CPU. Programs are those of `training.programs`, by
default at the paper's batch; their environment is a small one with a tokenizer of the model's size, as only shapes
matter.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from envs_jax.errors import ConfigError, suggestion
from ragen_jax.models import ModelConfig
from ragen_jax.models.presets import PRESETS
from ragen_jax.models.transformer import abstract_params
from ragen_jax.parallel.hlo import collectives, cycles
from ragen_jax.parallel.mesh import ParallelSection, make_placement
from ragen_jax.rl import Objective, OptimConfig, UpdateSpec, init_state
from ragen_jax.rl.layout import abstract
from ragen_jax.rollout import RolloutSpec, Trajectories, make_stop_table
from ragen_jax.scoring import Contexts, Traces, cross_marginals
from ragen_jax.training.diagnosis import DiagnosisSpec, empty_ema
from ragen_jax.training.programs import diagnosis_program, rollout_program, update_program

GIB = 2**30
PROGRAMS = ("rollout", "scoring", "diagnosis", "update")


@dataclass(frozen=True)
class Chip:
    """One chip: memory in bytes, and bfloat16 FLOP/s at its peak (published figures), and the clock that gives them."""

    hbm: int
    peak: float
    clock: float


CHIPS = {
    "v4": Chip(32 * GIB, 275e12, 1.05e9),
    "v5e": Chip(16 * GIB, 197e12, 1.5e9),
    "v5p": Chip(95 * GIB, 459e12, 1.75e9),
    "v6e": Chip(32 * GIB, 918e12, 1.75e9),
}


@dataclass(frozen=True)
class Workload:
    """What a step does. The defaults are the paper's batch: 8 groups of 16, 5 turns, 3,600 tokens an episode."""

    groups: int = 8
    members: int = 16
    turns: int = 5
    tokens: int = 3600
    micro_batch_size: int | None = (
        None  # rows of one forward and backward; None: one a device that splits rows
    )
    mini_batch_size: int = 32  # at least the microbatch
    samples: int = 64  # traces of a diagnosis
    remat: str = "full"
    critic: bool = True  # PPO with a critic of the policy's size
    reference: bool = True  # a KL to a reference policy

    @property
    def rows(self) -> int:
        return self.groups * self.members

    @property
    def slots(self) -> tuple[int, int, int]:
        """(prompt, response, observation) capacities that make up `tokens`: about a ninth, and 2 to 1 a turn."""
        prompt = self.tokens // 9
        response = (self.tokens - prompt) * 2 // (3 * self.turns)
        rest = self.tokens - prompt - self.turns * response
        observation = rest // max(self.turns - 1, 1)
        return self.tokens - self.turns * response - (self.turns - 1) * observation, response, observation


@dataclass(frozen=True)
class Compiled:
    """What the compiler said about one program; bytes and FLOPs are a chip's.

    `seconds` is the compiler's estimate (see `hlo.cycles`) with every loop run to its bound, and in an update with
    every row kept and of full length; a loop of scoring whose bound is only known at run time counts once. `flops` and
    `collectives` count the bodies of all loops once. `floor_flops` are those of the matrix products of the whole
    batch, all kept, none recomputed.
    """

    name: str
    arguments: int = 0
    outputs: int = 0  # beyond the arguments' buffers that they reuse
    temporaries: int = 0
    other: int = 0  # training state that stays in memory while the program runs, without being its argument
    flops: float = 0.0
    seconds: float = 0.0
    floor_flops: float = 0.0
    collectives: dict[str, tuple[int, int]] = field(default_factory=dict)
    compile_seconds: float = 0.0
    refused: str | None = None  # the compiler's words where it does not fit

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries + self.other

    def fits(self, chip: Chip) -> bool:
        return self.refused is None and self.total <= chip.hbm


class SizedTokenizer:
    """Bytes, then tokens of four letters up to `vocab_size`: a tokenizer of a given size, for its tables' shapes."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = (vocab_size - 1,)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        table = self.token_bytes()
        return b"".join(table[i] for i in ids).decode(errors="replace")

    def token_bytes(self) -> list[bytes]:
        return [bytes([i]) if i < 256 else b"ragj" for i in range(self.vocab_size)]

    def special_ids(self) -> dict[str, int]:
        return {}


def preset(name: str) -> ModelConfig:
    if name not in PRESETS:
        raise ConfigError("--model", name, suggestion(name, PRESETS))
    return PRESETS[name]


def topology(name: str) -> tuple[Chip, Sequence[Any]]:
    """The chip and the devices of a topology such as "v5e:4x4". Raises ConfigError for an unknown one."""
    kind = name.partition(":")[0]
    if kind not in CHIPS or not re.fullmatch(r"\w+:\d+(x\d+)+", name):
        raise ConfigError(
            "--topology", name, f"write KIND:AxB or KIND:AxBxC with KIND one of {', '.join(CHIPS)}"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError(
            "--topology",
            name,
            "needs the TPU's compiler, which is not installed: pip install 'ragen-jax[tpu-compile]'",
        )
    for variable, value in (("TPU_SKIP_MDS_QUERY", "1"), ("TPU_WORKER_HOSTNAMES", "localhost")):
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    try:
        return CHIPS[kind], topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except Exception as error:  # the plug-in's errors have no class of their own
        words = " ".join(str(error).split())[:200]
        raise ConfigError("--topology", name, f"is not one that the compiler knows ({words})") from error


class Job:
    """The programs of one model, workload and mesh, as abstract calls."""

    def __init__(
        self,
        model: ModelConfig,
        work: Workload,
        parallel: ParallelSection,
        chip: Chip,
        devices: Sequence[Any],
    ) -> None:
        self.chip = chip
        self.model = replace(model, placement=make_placement(parallel, devices))
        placement = self.model.placement
        if placement is None:
            raise ConfigError("--topology", len(devices), "compiling ahead needs more than one chip")
        self.placement, self.chips = placement, len(devices)
        micro = work.micro_batch_size or placement.rows
        self.work = work = replace(
            work,
            micro_batch_size=micro,
            mini_batch_size=-(-max(work.mini_batch_size, micro) // micro) * micro,
        )
        if work.rows % placement.rows or micro % placement.rows:
            raise ConfigError(
                "--batch", f"{work.groups}x{work.members} in microbatches of {micro}",
                f"rows are split over data x fsdp = {placement.rows} devices, which must divide both",
            )  # fmt: skip
        prompt, response, observation = work.slots
        tokenizer = SizedTokenizer(model.vocab_size)
        self.env, tables = envs_jax.make(
            "FrozenLake", tokenizer, style="brief", size=4, num_levels=8, max_turns=work.turns,
            max_response_tokens=response, prompt_capacity=prompt, obs_capacity=observation,
        )  # fmt: skip
        self.tables, self.stops = self._whole((tables, make_stop_table(tokenizer)))
        self.key = self._whole(jax.eval_shape(lambda: jax.random.key(0)))
        objective = Objective(adv_estimator="gae" if work.critic else "grpo", use_kl_loss=work.reference)
        self.rollout_spec = RolloutSpec(self.model, self.env, model.vocab_size)
        self.update_spec = UpdateSpec(
            self.model, objective, OptimConfig(), model.vocab_size, max_sampled=work.turns * response,
            mini_batch_size=work.mini_batch_size, micro_batch_size=micro, length_buckets=1, remat=work.remat,
        )  # fmt: skip
        self.diagnosis_spec = DiagnosisSpec(
            self.model, model.vocab_size, prompt, response, num_samples=work.samples
        )
        self.params = abstract(abstract_params(self.model), self.model)
        shapes = jax.eval_shape(
            lambda p: init_state(
                self.model, p, OptimConfig(), lora=None, critic=work.critic, key=jax.random.key(0)
            ),
            self.params,
        )
        self.state = abstract(shapes, self.model)
        self.temperature = self._whole(jax.ShapeDtypeStruct((), jnp.float32))

    def _whole(self, tree: Any) -> Any:
        sharding = self.placement.sharding()
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    def _ids(self, *shape: int) -> Any:
        return self._whole(jax.ShapeDtypeStruct(shape, jnp.int32))

    @property
    def trajectories(self) -> Trajectories:
        rows, turns, slots = self.work.rows, self.work.turns, self.rollout_spec.capacity
        shape = {"slots": (rows, slots), "turns": (rows, turns), "rows": (rows,)}
        i, f, b, u = jnp.int32, jnp.float32, jnp.bool_, jnp.uint8
        names = {
            "slots": {"tokens": i, "role": u, "turn": i, "logprob": f},
            "turns": {
                "prompt_end": i, "think_start": i, "think_end": i, "turn_end": i, "reward": f, "penalty": f,
                "format_ok": b, "executed": i, "effective": i,
            },
            "rows": {
                "length": i, "turns": i, "terminated": b, "truncated": b, "success": b, "overflow": b, "level": i,
            },
        }  # fmt: skip
        leaves = {
            name: self._whole(jax.ShapeDtypeStruct(shape[kind], dtype))
            for kind, fields in names.items()
            for name, dtype in fields.items()
        }
        return Trajectories(**leaves, group_size=self.work.members)

    def lowered(self, program: str) -> Any:
        """The program, lowered for the topology."""
        work, trainable = self.work, self.state.trainable
        if program == "rollout":
            return rollout_program.lower(
                trainable, None, self.tables, self.stops, self.key, self._ids(work.groups), self.temperature,
                self._ids(work.groups), spec=self.rollout_spec, group_size=work.members, lora=None, objective=None,
            )  # fmt: skip
        prompt, response, _ = work.slots
        if program == "scoring":
            contexts = Contexts(self._ids(work.groups, prompt), self._ids(work.groups))
            traces = Traces(
                self._ids(work.groups, work.members, response), self._ids(work.groups, work.members)
            )
            return jax.jit(cross_marginals, static_argnums=1).lower(
                trainable["policy"], self.model, contexts, traces
            )
        if program == "diagnosis":
            ema = self._whole(jax.eval_shape(lambda: empty_ema(self.diagnosis_spec.families)))
            return diagnosis_program.lower(
                trainable,
                None,
                self.trajectories,
                self.key,
                ema,
                self.temperature,
                spec=self.diagnosis_spec,
                lora=None,
            )
        return update_program.lower(
            self.state, self.trajectories, self._whole(jax.ShapeDtypeStruct((work.rows,), jnp.bool_)),
            spec=self.update_spec, base=None, reference=self.params if work.reference else None,
            temperature=self.temperature,
        )  # fmt: skip

    @property
    def resident(self) -> int:
        """Bytes a chip of the training state and of the reference, which stay in memory all along."""
        kept = (self.state, self.params if self.work.reference else None)
        return sum(_shard_bytes(x) for x in jax.tree.leaves(kept))

    def floor(self, program: str) -> float:
        """FLOPs a chip of the program's matrix products: 2 a weight and token forward, 4 backward, and attention."""
        work, model = self.work, self.model
        prompt, response, _ = work.slots
        if program == "rollout":
            tokens, pairs = work.rows * work.tokens, work.rows * work.tokens**2 / 2
            total = _forward_flops(model, tokens, pairs, heads=work.rows * work.turns * response)
        elif program == "update":
            tokens, pairs = work.rows * work.tokens, work.rows * work.tokens**2 / 2
            heads = work.rows * work.turns * response
            policy = _forward_flops(model, tokens, pairs, heads)
            value = _forward_flops(model, tokens, pairs, 0) if work.critic else 0.0
            scored = policy + value if work.critic or work.reference else 0.0
            total = 3 * (policy + value) + scored + (policy if work.reference else 0.0)
        else:
            if program == "scoring":
                sets = [(work.groups, prompt, work.rows)]
            else:
                sets = [(work.groups, prompt, work.samples), (work.samples, work.tokens, work.samples)]
            total = 0.0
            for contexts, length, traces in sets:
                scored = contexts * traces * response
                tokens, pairs = (
                    contexts * length + scored,
                    contexts * length**2 / 2 + scored * (length + response / 2),
                )
                total += _forward_flops(model, tokens, pairs, heads=scored)
        return total / self.chips

    def compile(self, program: str) -> Compiled:
        """Compiles one program; one that does not fit comes back with the compiler's words."""
        begun = time.monotonic()
        floor = self.floor(program)
        try:
            done = self.lowered(program).compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) and "memory" not in str(error):
                raise
            took = time.monotonic() - begun
            return Compiled(program, floor_flops=floor, compile_seconds=took, refused=_why(str(error)))
        memory, cost = done.memory_analysis(), done.cost_analysis() or {}
        text, arguments = done.as_text(), memory.argument_size_in_bytes
        return Compiled(
            program, arguments, memory.output_size_in_bytes - memory.alias_size_in_bytes, memory.temp_size_in_bytes,
            other=max(self.resident - arguments, 0), flops=cost.get("flops", 0.0),
            seconds=cycles(text, self._rounds if program == "update" else lambda *_: 1) / self.chip.clock,
            floor_flops=floor, collectives=collectives(text), compile_seconds=time.monotonic() - begun,
        )  # fmt: skip

    def _rounds(self, contains: bool, within: bool) -> int:
        """Rounds of an update's loops: of minibatches, of microbatches within one, of those that are only scored."""
        work = self.work
        assert work.micro_batch_size is not None
        if contains:
            return -(-work.rows // work.mini_batch_size)
        return (work.mini_batch_size if within else work.rows) // work.micro_batch_size


def _shard_bytes(x: Any) -> int:
    shape = x.sharding.shard_shape(x.shape)
    size = x.dtype.itemsize
    for n in shape:
        size *= n
    return size


def _forward_flops(model: ModelConfig, tokens: float, pairs: float, heads: float) -> float:
    """`tokens` through the blocks, `pairs` of query and key, `heads` products with the unembedding."""
    table = model.vocab_size * model.hidden_size
    blocks = model.num_parameters - table * (1 if model.tie_word_embeddings else 2)
    attention = 4 * model.num_hidden_layers * model.num_attention_heads * model.head_dim
    return 2 * blocks * tokens + attention * pairs + 2 * table * heads


def _why(text: str) -> str:
    found = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) hbm", text)
    return f"needs {found[1]} of {found[2]}" if found else " ".join(text.split())[:160]


def meshes(model: ModelConfig, work: Workload, chips: int) -> Iterator[ParallelSection]:
    """Meshes that the model and the batch allow, all chips on fsdp and tensor, small tensor sizes first."""
    for tensor in (n for n in (1, 2, 4, 5, 7, 8, 16) if chips % n == 0):
        fsdp = chips // tensor
        if work.rows % fsdp or model.hidden_size % fsdp or model.num_attention_heads % tensor:
            continue
        if model.num_key_value_heads % tensor == 0:
            yield ParallelSection(1, fsdp, tensor)
        elif tensor % model.num_key_value_heads == 0:
            yield ParallelSection(1, fsdp, tensor, replicate=("kv_heads",))


def search(
    model: ModelConfig, work: Workload, chip: Chip, devices: Sequence[Any], say: Callable[[str], None]
) -> tuple[ParallelSection, Workload]:
    """The mesh and the microbatch whose update and rollout fit with the fewest seconds by the compiler's estimate.

    Raises ConfigError when nothing fits.
    """
    best: tuple[float, ParallelSection, Workload] | None = None
    for section in meshes(model, work, len(devices)):
        rows = section.fsdp
        for micro in (n for n in (rows, 2 * rows, 4 * rows) if work.rows % n == 0):
            job = Job(model, replace(work, micro_batch_size=micro), section, chip, devices)
            found = job.compile("update")
            fits = found.fits(chip)
            cost = found.seconds
            say(
                f"fsdp {section.fsdp} x tensor {section.tensor}, microbatch {micro}: "
                + (
                    f"{found.total / GIB:.1f} GiB, {cost:.1f} s an update"
                    if found.refused is None
                    else f"refused: {found.refused}"
                )
            )
            if not fits:
                break  # a larger microbatch needs more
            if best is None or cost < best[0]:
                best = cost, section, replace(work, micro_batch_size=micro)
    if best is None:
        raise ConfigError(
            "--topology", len(devices), "no mesh of these chips fits the model and the batch; use more"
        )
    return best[1:]
