"""Rollouts of other trainers: what lines mean, what is refused, and metrics against scores of plain concatenations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import random_params

from envs_jax.text.chat import CHATML, PLAIN
from ragen_jax import cli
from ragen_jax.cli import main
from ragen_jax.models import ModelConfig, forward, save_pretrained, unembedding
from ragen_jax.tokenizers import SmallTokenizer
from ragen_jax.training.policy import Weights, load_weights
from ragen_jax.training.rollout_diagnosis import diagnose_rollouts, reward_metrics
from ragen_jax.training.rollout_files import Reader, Rollout, RolloutFileError, chat_format

TOKENIZER = SmallTokenizer.build(["The goal is up down left right. Go to it now"])
CFG = ModelConfig(  # five padding rows in the vocabulary
    vocab_size=TOKENIZER.vocab_size + 5, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, intermediate_size=24, max_position_embeddings=128,
)  # fmt: skip
PROMPTS = ("The goal is up.", "The goal is down.", "The goal is left now.")
THOUGHTS = ("Go up", "Go to it now", "up up", "left", "is it down", "right", "goal left")
READER = Reader(TOKENIZER, PLAIN)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line leaves JAX's settings alone here."""
    monkeypatch.setattr(cli, "_quiet_and_cached", lambda: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    params = jax.tree.map(lambda w: 3.0 * w, random_params(CFG))  # so that contexts matter
    return save_pretrained(params, CFG, tmp_path_factory.mktemp("scorer") / "model", TOKENIZER)


@pytest.fixture(scope="module")
def weights(model: Path) -> Weights:
    return load_weights(str(model))


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def text_rows() -> list[dict[str, Any]]:
    return [
        {
            "prompt": PROMPTS[i % 3],
            "response": f"<think>{thought}</think><answer>Up</answer>",
            "reward": float(i % 2),
        }
        for i, thought in enumerate(THOUGHTS)
    ]


# -- lines -------------------------------------------------------------------------------------------------
def test_text_ids_and_names_of_trainers_read_alike(tmp_path: Path) -> None:
    encode = TOKENIZER.encode
    wanted = [
        (tuple(encode(PROMPTS[i % 3] + "<think>")), tuple(encode(thought)))
        for i, thought in enumerate(THOUGHTS)
    ]
    rows = text_rows()
    variants = {
        "text": rows,
        "verl": [
            {"input": r["prompt"], "output": r["response"], "score": r["reward"], "step": 3} for r in rows
        ],
        "trl": [{"prompt": r["prompt"], "completion": r["response"], "advantage": 0.1} for r in rows],
        "split": [
            {"prompt": r["prompt"] + "<think>", "reasoning": thought}
            for r, thought in zip(rows, THOUGHTS, strict=True)
        ],
        "forced": [{"prompt": r["prompt"] + "<think>", "response": r["response"][7:]} for r in rows],
        "ids": [
            {"prompt": "not read", "prompt_ids": encode(r["prompt"]), "response_ids": encode(r["response"])}
            for r in rows
        ],
        "mixed": [{"prompt_ids": encode(r["prompt"]), "response": r["response"]} for r in rows],
        "spans": [{"context_ids": list(x), "reasoning_ids": list(z)} for x, z in wanted],
    }
    for name, lines in variants.items():
        found = READER.read(write(tmp_path / name, lines))
        assert [(p.context, p.trace) for r in found for p in r.pairs] == wanted, name
        assert [r.line for r in found] == list(range(1, 8))
    found = READER.read(write(tmp_path / "groups", rows))
    assert [found[i].group == found[0].group for i in range(7)] == [i % 3 == 0 for i in range(7)]
    assert [r.reward for r in found] == [r["reward"] for r in rows]


def test_a_dialogue_gives_a_pair_for_each_turn(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Go"},
        {"role": "user", "content": "The goal is up"},
        {"role": "assistant", "content": "<think>up</think>"},
        {"role": "user", "content": "now"},
        {"role": "assistant", "content": "no thought"},
        {"role": "user", "content": "now"},
        {"role": "assistant", "content": "<think>down</think>"},
    ]
    (row,) = READER.read(write(tmp_path / "a", [{"messages": messages, "reward": 1, "uid": 7}]))
    assert (row.group, row.reward, row.invalid) == ("7", 1.0, 1)
    first = "Go\nThe goal is up\n"
    assert [TOKENIZER.decode(p.context) for p in row.pairs] == [
        first + "<think>", first + "<think>up</think>\nnow\nno thought\nnow\n<think>",
    ]  # fmt: skip
    assert [(p.turn, TOKENIZER.decode(p.trace)) for p in row.pairs] == [(0, "up"), (2, "down")]
    chatml = Reader(TOKENIZER, CHATML)
    (row,) = chatml.read(write(tmp_path / "b", [{"prompt": messages[1:2], "completion": messages[2:3]}, ""]))
    wanted = "<|im_start|>user\nThe goal is up<|im_end|>\n<|im_start|>assistant\n<think>"
    assert TOKENIZER.decode(row.pairs[0].context) == wanted
    assert chat_format(TOKENIZER, None) is PLAIN
    with pytest.raises(RolloutFileError, match="'chatml' needs the token"):
        chat_format(TOKENIZER, "chatml")


class Pieces:
    """A tokenizer whose ids straddle the tags."""

    pieces = (b"a", b".</", b"think>", b"<th", b"ink>b", b"c", b"")
    vocab_size, fingerprint = 7, "pieces"

    def token_bytes(self) -> list[bytes]:
        return list(self.pieces)

    def special_ids(self) -> dict[str, int]:
        return {"<think>": 6}


@pytest.mark.parametrize(
    ("response", "before", "trace"),
    [
        ([6, 0, 5, 1, 2, 0], [6], [0, 5]),  # ".</" straddles the closing tag
        ([3, 4, 5, 0, 1, 2], [3, 4], [5, 0]),  # "ink>b" straddles the opening one
        ([0, 5, 1, 2], [], [0, 5]),  # opened in the prompt
        ([6, 0, 5], [6], []),  # never closed
        ([6, 1, 2], [6], []),  # nothing whole in it
    ],
)
def test_spans_of_ids_leave_out_what_straddles(
    response: list, before: list, trace: list, tmp_path: Path
) -> None:
    reader = Reader(Pieces(), PLAIN)  # type: ignore[arg-type]
    (row,) = reader.read(write(tmp_path / "x", [{"prompt_ids": [0], "response_ids": response}]))
    assert row.invalid == (not trace)
    assert [(list(p.context), list(p.trace)) for p in row.pairs] == [([0, *before], trace)] * bool(trace)


def test_whole_responses_and_other_tags(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [{"prompt": "up", "response": "Go [[down]] now"}])
    (row,) = Reader(TOKENIZER, PLAIN, None).read(path)
    assert TOKENIZER.decode(row.pairs[0].trace) == "Go [[down]] now"
    (row,) = Reader(TOKENIZER, PLAIN, ("[[", "]]")).read(path)
    assert TOKENIZER.decode(row.pairs[0].trace) == "down"
    assert TOKENIZER.decode(row.pairs[0].context) == "upGo [["


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "up"', "not JSON"),
        ("[1, 2]", "holds a JSON list"),
        ({"response": "x"}, "has no context; give one of prompt_ids"),
        ({"prompt": "up"}, "has no response; give one of reasoning_ids"),
        ({"prompt": "up", "response": 3}, "response is a JSON int"),
        ({"prompt": "", "reasoning": "up"}, "the context is empty"),
        ({"prompt_ids": [1, 10**6], "reasoning": "up"}, "prompt_ids must be a list of ids below"),
        ({"prompt_ids": [1, True], "reasoning": "up"}, "prompt_ids must be a list of ids below"),
        ({"prompt": "up", "reasoning_ids": "up"}, "reasoning_ids must be a list of ids"),
        ({"prompt": "up", "reasoning": "up", "reward": "1"}, "reward is '1'; give a finite number"),
        ('{"prompt": "up", "reasoning": "up", "score": NaN}', "score is nan"),
        ({"prompt": "up", "reasoning": "up", "group": [1]}, "group is [1]; give a string"),
        ({"messages": [{"role": "user", "content": "up"}]}, "no message of the assistant"),
        ({"messages": [{"role": "tool", "content": "up"}]}, "a message has role system, user or assistant"),
        ({"messages": "up"}, "messages must be a list of messages"),
    ],
)
def test_bad_lines_are_named(line: Any, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [text_rows()[0], "", line])
    with pytest.raises(RolloutFileError) as error:
        READER.read(path)
    assert str(error.value).startswith(f"{path}, line 3: ")
    assert words in str(error.value)


# -- metrics -----------------------------------------------------------------------------------------------
def brute_scores(weights: Weights, rollouts: list[Rollout]) -> tuple[np.ndarray, list[int], np.ndarray]:
    """log p of every trace after every line's context, from the forward pass over the two joined."""
    pairs = [pair for rollout in rollouts for pair in rollout.pairs]

    @jax.jit
    def logprobs(params: Any, ids: jax.Array) -> jax.Array:
        logits = forward(params, CFG, ids[None])[0] @ unembedding(params, CFG).T
        return jax.nn.log_softmax(logits[:, : TOKENIZER.vocab_size])

    out = np.zeros((len(pairs), len(pairs)))
    for i, row in enumerate(pairs):
        for j, column in enumerate(pairs):
            joined = (*column.context, *row.trace)
            table = np.asarray(logprobs(weights.params, jnp.asarray(joined + (0,) * (64 - len(joined)))))
            start = len(column.context)
            out[i, j] = sum(table[start + t - 1, token] for t, token in enumerate(row.trace))
    return out, [len(p.trace) for p in pairs], np.asarray([i % 3 for i in range(len(pairs))])


def test_metrics_equal_those_of_plain_concatenations(weights: Weights, tmp_path: Path) -> None:
    rollouts = READER.read(write(tmp_path / "x", text_rows()))
    found = diagnose_rollouts(rollouts, weights, show=7)
    scores, lengths, prompt = brute_scores(weights, rollouts)
    own = np.diag(scores)
    marginal = np.log(np.mean(np.exp(scores), axis=1))  # over every trace's own context, copies included
    assert np.std(own - marginal) > 0.05, "contexts must matter for this to test anything"
    wanted = {
        "mi_seq_estimate": np.mean(own - marginal),
        "mi_estimate": np.mean((own - marginal) / lengths),
        "conditional_entropy_est": -np.mean(own / lengths),
        "reasoning_entropy_est": -np.mean(marginal / lengths),
        "retrieval_accuracy": np.mean(prompt[scores.argmax(1)] == prompt),
        "retrieval_chance_level": 1 / 3,
        "num_distinct_prompts": 3,
        "num_rows": 7,
    }
    for name, value in wanted.items():
        assert found.metrics[f"collapse/{name}"] == pytest.approx(value, abs=2e-4), name
    assert found.metrics["rollouts/valid_thinking_rate"] == 1
    assert [t["reasoning"] for t in found.traces] == list(THOUGHTS)
    assert [t["own_logprob"] for t in found.traces] == pytest.approx(own, abs=1e-3)
    few = diagnose_rollouts(rollouts, weights, samples=4)
    assert few.metrics["collapse/num_rows"] == 4


def test_rewards_of_groups_of_any_size() -> None:
    groups = {"a": [0.0, 1.0], "b": [1.0, 1.0, 1.0], "c": [0.0, 1.0, 5.0], "d": [2.0]}
    rollouts = [Rollout(i, g, r, (), 1) for g, rewards in groups.items() for i, r in enumerate(rewards)]
    found = reward_metrics([*rollouts, Rollout(99, "a", None, (), 0)])
    spreads = [np.std(groups[g], ddof=1) for g in "abc"]
    assert found["reward_variance/mean"] == pytest.approx(np.mean(spreads))
    assert found["reward_variance/std"] == pytest.approx(np.std(spreads))
    assert found["reward_variance/max"] == pytest.approx(max(spreads))
    assert found["reward_variance/zero_count"] == 1
    assert found["reward_variance/groups"] == 3
    assert found["rollouts/groups_of_one_reward"] == 1
    assert found["rollouts/reward_mean"] == pytest.approx(12 / 9)
    assert reward_metrics([Rollout(1, "a", None, (), 0)]) == {}


def test_what_cannot_be_estimated_is_said(weights: Weights, tmp_path: Path) -> None:
    one = READER.read(write(tmp_path / "one", text_rows()[::3]))
    with pytest.raises(RolloutFileError, match="all reasoning has the same context"):
        diagnose_rollouts(one, weights)
    none = READER.read(write(tmp_path / "none", [{"prompt": "up", "response": "<think>up"}] * 2))
    with pytest.raises(RolloutFileError, match="no response has reasoning"):
        diagnose_rollouts(none, weights)
    long = [*text_rows(), {"prompt": "up " * 130, "reasoning": "up"}]
    with pytest.raises(
        RolloutFileError, match=r"line 8 has a context of 1\d\d tokens and line 2 reasoning of"
    ):
        diagnose_rollouts(READER.read(write(tmp_path / "long", long)), weights)


# -- the command line ----------------------------------------------------------------------------------------
def test_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x.jsonl", text_rows())
    argv = ["diagnose", str(model), "--rollouts", str(path)]
    assert main([*argv, "--show", "2"]) == 0
    out = capsys.readouterr().out
    for words in ("MI-Est", "Retrieval-Acc", "reward variance: mean", "valid thinking rate", "Go to it now"):
        assert words in out
    assert out.count("log p =") == 2
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["collapse/num_rows"] == 7
    for extra, words in (
        (["--env.size", "3"], "uses no setting of a configuration"),
        (["--samples", "1"], "--samples is 1"),
        (["--temperature", "0"], "--temperature is 0.0"),
        (["--chat", "llama3"], "needs the token"),
        (["--whole", "--tags", "a", "b"], "leave --tags out"),
        (["--step", "3"], "--step belongs to a run directory"),
    ):
        assert main([*argv, *extra]) == 2
        assert words in capsys.readouterr().err
    assert main(["diagnose", str(model), "--samples", "9"]) == 2
    assert "--samples belongs to --rollouts" in capsys.readouterr().err
    path.write_text(path.read_text() + "{\n")
    assert main(argv) == 2
    assert f"{path}, line 8: not JSON" in capsys.readouterr().err
