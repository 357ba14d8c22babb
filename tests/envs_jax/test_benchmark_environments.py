"""The throughput table: every class of environments has a row, and what is timed is what the columns say."""

from __future__ import annotations

import time

import numpy as np
import pytest

import envs_jax
from benchmarks import environments, peers_shop
from envs_jax.core import Environment
from envs_jax.tasks.search_qa import CorpusConfig, load_corpus
from envs_jax.tasks.webshop import WebShop
from envs_jax.text.byte_tokenizer import ByteTokenizer


def test_every_class_of_environments_is_measured_once_with_a_peer() -> None:
    def ours(tag: str) -> bool:  # not what another test has registered
        return envs_jax.spec(tag).factory.__module__.startswith("envs_jax.")

    tags = [tag for tag in environments.families() if ours(tag)]
    classes = [envs_jax.spec(tag).factory for tag in tags]
    assert len(set(classes)) == len(classes)
    every = {envs_jax.spec(t).factory.__name__ for t in envs_jax.registered() if ours(t)}
    assert {c.__name__ for c in classes} == every - {"DeepCoder"}
    for tag, cls in zip(tags, classes, strict=True):
        small = {"WebShop": {"num_products": 48}, "SearchQA": {"num_passages": 48}}.get(tag, {})
        assert list(environments.peers(cls(**envs_jax.spec(tag).env, **small), 8)), tag
        assert cls.__name__ in environments.WORDS or cls().action_names


def test_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def peers(env: Environment, batch: int) -> list[environments.Peer]:
        loop = (lambda: time.sleep(0.001), 4)
        own = environments.Peer("written here", "own", lambda _: loop)
        return [environments.Peer("stub", "python", lambda _: loop), own]

    monkeypatch.setattr(environments, "SPAN", 0.0)
    monkeypatch.setattr(environments, "peers", peers)
    row, own = environments.measured("Bandit", 8, ByteTokenizer(), 1)
    tag, alone, text, peer, its, its_text, times, times_text, met = row
    assert (tag, peer) == ("Bandit", "stub")
    assert its < 4000
    assert times == f"{alone / its:,.1f}x"
    assert times_text == f"{text / its_text:,.1f}x"
    assert met == " / ".join("yes" if r >= 50 else "no" for r in (alone / its, text / its_text))
    assert own[-1] == "-"


def test_the_episodes_that_are_timed_come_to_an_end() -> None:
    shop = WebShop(num_products=48).shop.catalogue
    game = peers_shop.PythonShop(shop)
    ends = []
    for goal in shop.goals["train"][:12]:
        game.reset(goal)
        ends.append([game.step(action) for action in peers_shop.shop_episode(shop, goal)][-1])
    assert all(done for _, _, done in ends)
    assert np.mean([raw for _, raw, _ in ends]) > 0.5
    corpus = load_corpus(CorpusConfig("encyclopedia", num_passages=48))
    reader = peers_shop.PythonSearchQA(corpus)
    for question in corpus.questions["train"][:6]:
        reader.reset(question)
        said = [reader.step(action) for action in peers_shop.search_episode(question)]
        assert [done for _, _, done in said] == [False] * 4 + [True]
        assert said[-1][1] == 1.0


@pytest.mark.parity
@pytest.mark.parametrize("tag", ["Bandit", "FrozenLake", "MetaMathQA", "SearchQA"])
def test_packages_play_their_episodes(tag: str) -> None:
    small = {"SearchQA": {"num_passages": 48}}.get(tag, {})
    env = envs_jax.spec(tag).factory(**{"num_levels": 8, **envs_jax.spec(tag).env, **small})
    for peer in environments.peers(env, 8):
        for tokenizer in (None, ByteTokenizer())[: 1 + peer.has_text]:
            loop = peer.make(tokenizer)
            assert loop is not None, peer.name
            run, steps = loop
            run()
            assert steps > 0
