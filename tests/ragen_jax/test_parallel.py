"""Mesh, rules and shares on any number of devices: what is refused, and which dimension lies on which axis."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import jax
import numpy as np
import pytest

from envs_jax.errors import ConfigError
from ragen_jax.models import ModelConfig, weight_specs
from ragen_jax.models.presets import PRESETS
from ragen_jax.parallel import ParallelSection, ShardingRules, check_rows, check_rules, make_mesh
from ragen_jax.parallel.hlo import collectives, cycles
from ragen_jax.parallel.rules import Placement
from ragen_jax.rollout.shares import Division, share_out
from ragen_jax.training.config import config_from_dict
from ragen_jax.training.setup import _check_rows

QWEN = PRESETS["qwen2.5-7b"]


def weights(cfg: ModelConfig):
    return {".".join(path): (spec.shape, spec.axes) for path, spec in weight_specs(cfg).items()}


def check(cfg: ModelConfig, rules: ShardingRules | None = None, **sizes: int) -> None:
    check_rules(rules or ShardingRules(), {"data": 1, "fsdp": 1, "tensor": 1} | sizes, cfg, weights(cfg))


@pytest.mark.parametrize(
    ("section", "devices", "shape"),
    [
        (ParallelSection(), 8, (8, 1, 1)),
        (ParallelSection(fsdp=4), 8, (2, 4, 1)),
        (ParallelSection(2, 2, 2), 8, (2, 2, 2)),
        (ParallelSection(), 1, (1, 1, 1)),
    ],
)
def test_shape_of_the_mesh(section, devices, shape):
    assert section.shape(devices) == shape


@pytest.mark.parametrize(
    ("section", "devices", "message"),
    [
        (ParallelSection(4, 2, 2), 8, r"parallel.data = 4: .*4 x 2 x 2 = 16, but there are 8 devices"),
        (ParallelSection(fsdp=3), 8, r"parallel.fsdp = 3: .*= 6, but there are 8"),
        (ParallelSection(tensor=16), 8, r"parallel.tensor = 16: .*= 16, but there are 8"),
    ],
)
def test_a_mesh_that_does_not_multiply_to_the_devices_is_refused(section, devices, message):
    with pytest.raises(ConfigError, match=message):
        section.shape(devices)


@pytest.mark.parametrize("fields", [{"fsdp": 0}, {"data": 0}, {"replicate": ("mlp",)}])
def test_sections_are_checked(fields):
    with pytest.raises(ConfigError, match=f"parallel.{next(iter(fields))}"):
        ParallelSection(**fields)


def test_weights_lie_as_the_rules_say():
    rules = ShardingRules()
    specs = weight_specs(QWEN)
    assert rules.spec(specs["layers", "q"].axes) == jax.P("fsdp", "tensor")
    assert rules.spec(("layers", *specs["layers", "down"].axes)) == jax.P(None, "tensor", "fsdp")
    assert rules.spec(specs["layers", "q_bias"].axes) == jax.P("tensor")
    assert rules.spec(specs["norm", "weight"].axes) == jax.P()
    assert rules.spec(specs["layers", "q"].axes, gathered=True) == jax.P(None, "tensor")
    assert rules.spec(("batch", None, "heads")) == jax.P(("data", "fsdp"), None, "tensor")


def test_a_mesh_that_fits_the_model_is_accepted():
    check(QWEN, data=2, fsdp=16, tensor=4)
    check(PRESETS["qwen2.5-3b"], replace(ShardingRules(), kv_heads=()), tensor=4)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor": 3}, "28 query heads; use a size that divides them: 1, 2, 4, 7, 14, 28"),
        ({"tensor": 28}, r"4 key-value heads; .*parallel.replicate=\[kv_heads\]"),
        ({"fsdp": 10}, r"parallel.fsdp = 10: .*embed = 3584, which fsdp does not divide"),
    ],
)
def test_a_mesh_that_does_not_fit_the_model_is_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        check(QWEN, **sizes)


def test_a_vocabulary_that_does_not_divide_must_be_replicated():
    odd = ModelConfig(
        vocab_size=101, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=32,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"vocab = 101.*parallel.replicate=\[vocab\]"):
        check(odd, tensor=4)
    check(odd, replace(ShardingRules(), vocab=()), tensor=4)


def test_two_axes_of_a_weight_on_one_mesh_axis_are_refused():
    rules = replace(ShardingRules(), mlp=("fsdp",))
    with pytest.raises(
        ConfigError, match=r"parallel.rules.mlp = \('fsdp',\): splits layers.gate over 'fsdp' twice"
    ):
        check(QWEN, rules, fsdp=2)


def test_a_rule_for_an_axis_that_the_mesh_lacks_is_refused():
    with pytest.raises(ConfigError, match="the mesh has no axis 'expert'"):
        check(QWEN, replace(ShardingRules(), mlp=("expert",)))


def test_copies_of_key_value_heads():
    mesh = make_mesh((1, 1, 1), jax.devices()[:1])
    assert Placement(mesh).kv_copies(4) == 1
    fake = Placement(mesh, replace(ShardingRules(), kv_heads=()))
    assert fake.kv_copies(4) == 1


@pytest.mark.parametrize(
    ("groups", "members", "devices"), [(8, 4, 8), (8, 16, 16), (12, 4, 8), (6, 8, 8), (4, 2, 1)]
)
def test_shares_are_the_rows_in_order(groups, members, devices):
    levels = jax.numpy.arange(groups) + 100
    division = share_out(levels, jax.numpy.arange(groups), members, devices)
    assert len(division.shares.levels) % devices == 0
    assert division.n_groups == (len(division.shares.levels) // devices,)
    everyone = [(100 + p, p, k) for p in range(groups) for k in range(members)]
    assert rows_of(division) == everyone
    assert division.places.tolist() == list(range(len(everyone)))


def rows_of(division: Division) -> list[tuple[int, int, int]]:
    """(level, group, member) of each device's rows, one device after the other."""
    shares = division.shares
    return [
        (int(level), int(group), int(first) + k)
        for level, group, first in zip(shares.levels, shares.group_ids, shares.first_member, strict=True)
        for k in range(division.members)
    ]


@pytest.mark.parametrize(
    ("n_groups", "members", "devices"), [((4, 4), 2, 8), ((5, 3), 16, 8), ((2, 6, 4), 4, 4), ((3, 1), 2, 1)]
)
def test_every_device_plays_equally_many_rows_of_each_part_of_a_mixture(n_groups, members, devices):
    groups = sum(n_groups)
    division = share_out(jax.numpy.arange(groups) + 100, jax.numpy.arange(groups), members, devices, n_groups)
    rows = rows_of(division)
    assert [rows[i] for i in division.places] == [
        (100 + p, p, k) for p in range(groups) for k in range(members)
    ]
    part = np.repeat(np.arange(len(n_groups)), n_groups)
    for own in np.split(np.array([part[group] for _, group, _ in rows]), devices):
        wanted = np.repeat(np.arange(len(n_groups)), np.array(division.n_groups) * division.members)
        np.testing.assert_array_equal(own, wanted)
        assert np.bincount(own).tolist() == [n * members // devices for n in n_groups]


def test_rows_that_do_not_come_out_even_are_refused():
    three, eight = jax.numpy.arange(3), jax.numpy.arange(8)
    with pytest.raises(ValueError, match="3 groups of 2 cannot be shared out over data x fsdp = 4"):
        share_out(three, three, 2, 4)
    with pytest.raises(ValueError, match=r"7 \+ 1 groups of 2 cannot be shared out over data x fsdp = 8"):
        share_out(eight, eight, 2, 8, (7, 1))


def test_batch_sizes_are_refused_by_name():
    class Four:
        rows = 4

    check_rows(Four(), training__micro_batch_size=8)
    check_rows(None, training__micro_batch_size=3)
    with pytest.raises(ConfigError, match=r"training.micro_batch_size = 6: .*use a multiple of 4"):
        check_rows(Four(), rollout__group_size=8, training__micro_batch_size=6)


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        (
            {"env": {"tags": ["FrozenLake", "Bandit"], "n_groups": [7, 1]}},
            r"rollout.group_size = 14: .*multiple of 4",
        ),
        (
            {"gradients": {"every": 1, "env_groups": 1, "group_size": 6}},
            r"gradients.group_size = 6: .*multiple of 4",
        ),
        ({}, None),
    ],
)
def test_batches_that_cannot_be_shared_out_are_refused_before_anything_is_built(sections, named):
    class Four:
        rows = 4

    sizes = {
        "rollout": {"env_groups": 8, "group_size": 2}, "training": {"micro_batch_size": 4}, "warm_start": {"steps": 0},
        "evaluation": {"batch_size": 8},
    }  # fmt: skip
    config = config_from_dict(sizes | sections)
    with pytest.raises(ConfigError, match=named) if named else nullcontext():
        _check_rows(config, Four())


# Parameter counts as published with the checkpoints (Hugging Face model cards).
PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama3.1-8b": 8_030_261_248,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
}


def test_presets_have_the_published_numbers_of_parameters():
    assert {name: cfg.num_parameters for name, cfg in PRESETS.items()} == PUBLISHED


HLO = """
  %a = f32[8,4]{1,0} all-gather(f32[2,4]{1,0} %p), channel_id=1
  ROOT %b = (f32[2]{0}, bf16[3]{0}) all-reduce(f32[2]{0} %x, bf16[3]{0} %y), to_apply=%add
  %s = (bf16[2,8]{1,0}, bf16[16,8]{1,0}, u32[], u32[]) all-gather-start(bf16[2,8]{1,0} %q)
  %d = bf16[16,8]{1,0} all-gather-done(%s)
  %c = f32[5]{0} add(f32[5]{0} %u, f32[5]{0} %v), metadata={op_name="all-gather"}
"""


def test_collectives_are_read_with_their_bytes():
    assert collectives(HLO) == {"all-gather": (2, 8 * 4 * 4 + 16 * 8 * 2), "all-reduce": (1, 2 * 4 + 3 * 2)}


def test_attention_in_blocks_equals_attention_at_once(monkeypatch):
    from ragen_jax.models import attention

    rng = np.random.default_rng(0)
    q, k, v = (jax.numpy.asarray(rng.normal(size=(2, 50, heads, 8)), "float32") for heads in (4, 2, 2))

    def loss(q, k, v):
        return jax.numpy.sum(jax.numpy.sin(attention.causal_attention(q, k, v)))

    want = jax.value_and_grad(loss, (0, 1, 2))(q, k, v)
    monkeypatch.setattr(attention, "WHOLE", 16)
    monkeypatch.setattr(attention, "BLOCK", 16)
    got = jax.value_and_grad(loss, (0, 1, 2))(q, k, v)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


LOOPS = """HloModule jit_f

%step (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %fusion.1 = f32[8]{0} fusion(%p), kind=kLoop, calls=%g, backend_config={"estimated_cycles":"7"}
}

%known (p: (s32[], f32[8])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(36)
  ROOT %compare = pred[] compare(%i, %constant.1), direction=LT
}

%traced (p: (s32[], s32[])) -> pred[] {
  ROOT %compare.2 = pred[] compare(%i, %n), direction=LT
}

%micro (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %while.1 = (s32[], f32[8]) while(%p), condition=%known, body=%step
  %fusion.2 = f32[8]{0} fusion(%p), kind=kLoop, calls=%g, backend_config={"estimated_cycles":"1000"}
}

%mini (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %while.2 = (s32[], f32[8]) while(%p), condition=%traced, body=%micro
}

%cheap (p: f32[8]) -> f32[8] {
  %copy = f32[8]{0} copy(%p), backend_config={"estimated_cycles":"1"}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %while.3 = (s32[], f32[8]) while(%t), condition=%traced, body=%mini
  %conditional = f32[8]{0} conditional(%c, %p, %p), branch_computations={%cheap, %step}
  ROOT %while.4 = (s32[], f32[8]) while(%t), condition=%traced, body=%step
}
"""


def test_cycles_follow_the_loops():
    """36 rounds of the known loop; of the others those asked for: two nested, and one alone."""
    micro = 36 * 7 + 1000
    assert cycles(LOOPS) == micro + 7 + 7
    rounds = {(True, False): 4, (False, True): 5, (False, False): 20}
    assert cycles(LOOPS, lambda contains, within: rounds[contains, within]) == 4 * 5 * micro + 7 + 20 * 7
