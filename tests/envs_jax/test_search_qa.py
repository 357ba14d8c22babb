"""SearchQA against an episode in plain Python; its corpora; HotpotQA's and the factbook's files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shop_speaker import Speaker

from benchmarks.peers_shop import Postings, PythonSearchQA, answer_reward
from envs_jax.datasets import factbook, hotpotqa
from envs_jax.datasets.plain import plain
from envs_jax.datasets.table import BadRowsError
from envs_jax.errors import ConfigError
from envs_jax.tasks.search_qa import CorpusConfig, SearchQA, load_corpus, register_source
from envs_jax.text.retrieval import top

SMALL: dict[str, Any] = {"num_passages": 240, "num_questions": 300}


# -- the encyclopedia -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [48, 1000])
def test_answers_are_in_the_passages_that_support_them(size: int) -> None:
    corpus = load_corpus(CorpusConfig("encyclopedia", num_passages=size))
    assert len(corpus.passages) == size
    assert len({p.title.lower() for p in corpus.passages}) == size
    titles = [p.title for p in corpus.passages]
    hops = {1: 0, 2: 0}
    for split in ("train", "eval"):
        for question in corpus.questions[split]:
            hops[len(question.support)] += 1
            texts = [f"{titles[i]} {corpus.passages[i].text}" for i in question.support]
            assert titles[question.support[0]] in question.text
            if question.answer in ("yes", "no"):
                places = [t.partition(" was born in ")[2].split(" in ")[0] for t in texts]
                assert (places[0] == places[1]) == (question.answer == "yes")
            else:
                assert question.answer in texts[-1]
            if len(question.support) == 2 and question.answer not in ("yes", "no"):
                assert titles[question.support[1]] in texts[0]  # the second hop is named in the first
    assert min(hops.values()) > 0.2 * sum(hops.values())


def test_splits_share_no_subject_and_follow_from_the_seed() -> None:
    config = CorpusConfig("encyclopedia", num_passages=600)
    corpus = load_corpus(config)
    subjects = [{q.support[0] for q in corpus.questions[s]} for s in ("train", "eval")]
    assert not subjects[0] & subjects[1]
    load_corpus.cache_clear()
    assert load_corpus(config) == corpus
    assert load_corpus(CorpusConfig("encyclopedia", num_passages=600, corpus_seed=1)) != corpus
    texts = [q.text for s in corpus.questions.values() for q in s]
    assert len(set(texts)) == len(texts)


# -- episodes -------------------------------------------------------------------------------------------------
def test_episodes_are_those_of_plain_python() -> None:
    rows = 48
    speaker = Speaker("SearchQA", rows, **SMALL)
    env, params = speaker.env.env, speaker.params.env
    corpus, questions = env.corpus, env.questions
    mine = [questions[int(q)] for q in speaker.state.env.question]
    plain_search = Postings([f"{p.title} {p.text}" for p in corpus.passages])

    @jax.jit
    def device_search(data: Any, length: Any) -> Any:
        return top(
            params.index.scores(params.lexicon.terms(data, length, env.max_query_terms)[0]), env.top_k
        )[0]

    def search(query: str, count: int) -> list[int]:
        data = np.zeros(256, np.uint8)
        data[: len(query.encode())] = list(query.encode())
        found = [int(i) for i in device_search(data, np.int32(len(query.encode()))) if i >= 0]
        scores = plain_search.scores(query)
        np.testing.assert_allclose(
            [scores[i] for i in found], sorted(scores.values(), reverse=True)[:count], atol=1e-5
        )
        return found

    peers = [PythonSearchQA(corpus, search) for _ in range(rows)]
    assert speaker.texts == [p.reset(q) for p, q in zip(peers, mine, strict=True)]
    rng, rewards = random.Random(0), []
    over = [False] * rows
    for turn in range(5):
        actions = []
        for question in mine:
            words = question.text.rstrip("?").split()
            said = rng.choice(
                [question.answer, f"the {question.answer}!", f"{question.answer} or so", "no", ""]
            )
            query = " ".join(rng.choices([*words, "zzz"], k=rng.randint(1, 6)))
            actions.append(f"finish[{said}]" if turn and rng.random() < 0.4 else f"search[{query}]")
        out = speaker.say(actions)
        for row, peer in enumerate(peers):
            if over[row]:
                assert out.reward[row] == 0
                continue
            text, reward, over[row] = peer.step(actions[row])
            assert float(out.reward[row]) == pytest.approx(reward, abs=1e-6), actions[row]
            assert bool(out.terminated[row]) == over[row]
            assert bool(out.success[row]) == (reward > 0)
            if over[row]:
                rewards.append(reward)
            else:
                assert speaker.texts[row] == text
        assert not out.info.obs_overflow.any()
        for fragments in speaker.fragments:
            canonical.assert_borders(fragments)
    assert {0.0, 1.0} < {round(r, 2) for r in rewards}  # partial answers too


def test_a_scripted_reader_always_succeeds() -> None:
    rows = 64
    speaker = Speaker("SearchQA", rows, **SMALL)
    env = speaker.env.env
    mine = [env.questions[int(q)] for q in speaker.state.env.question]
    for hop in range(2):
        pages = [env.corpus.passages[q.support[min(hop, len(q.support) - 1)]] for q in mine]
        out = speaker.say([f"search[{p.title}]" for p in pages])
        assert all(f" {p.title}: {p.text}\n" in t for p, t in zip(pages, speaker.texts, strict=True))
        assert (out.reward == 0).all()
        assert not out.terminated.any()
    assert (out.info.metrics[:, 2] == 1).all()  # every supporting passage was found
    out = speaker.say([f"finish[{q.answer}]" for q in mine])
    assert out.success.all()
    assert (out.reward == 1).all()
    assert (out.info.metrics[:, 0] == 1).all()


def test_what_is_no_action_costs_the_penalty_and_changes_nothing() -> None:
    speaker = Speaker("SearchQA", 6, **SMALL)
    before = speaker.texts
    out = speaker.say(["search[x", "find[x]", "Paris", f"search[{'a' * 260}]", "finish", "[x]"])
    assert speaker.texts == before
    assert np.allclose(out.penalty, -0.1)
    out = speaker.say(
        ["search[]", "search[the]", "search[qqqqq]", "SEARCH[the]", " search[ ] ", "search[search[]]"]
    )
    assert (out.penalty == 0).all()
    assert all(t.endswith("No passage matches the query.\n") for t in speaker.texts)


def test_long_queries_are_flagged() -> None:
    speaker = Speaker("SearchQA", 2, **SMALL, max_query_terms=3)
    out = speaker.say(["search[city country company]", "search[city country company river]"])
    assert out.info.metrics[:, 3].tolist() == [0, 1]


@pytest.mark.parity
def test_prompts_are_canonical_for_qwen() -> None:
    speaker = Speaker("SearchQA", 16, **SMALL)
    speaker.say(["search[country]", "search[zzz]"] * 8)
    for fragments in speaker.fragments:
        joined = canonical.qwen_encode("".join(fragments))
        assert [t for f in fragments for t in canonical.qwen_encode(f)] == joined


@pytest.mark.parametrize(
    ("said", "gold", "reward"),
    [
        ("Paris", "paris", 1.0),
        ("in Paris", "Paris", 2 / 3),
        ("a b c d e f Paris", "Paris", 0.0),
        ("yes", "no", 0.0),
    ],
)
def test_rewards_worked_by_hand(said: str, gold: str, reward: float) -> None:
    assert answer_reward(said, gold) == pytest.approx(reward)


def test_vectors_can_be_plugged_in(tmp_path: Path) -> None:
    corpus = load_corpus(CorpusConfig("encyclopedia", **SMALL))
    names = sorted({w.lower() for p in corpus.passages for w in p.title.split() if w.isalpha()})
    vectors = np.eye(len(names), dtype=np.float32)
    rows = np.asarray([[w in p.title.lower().split() for w in names] for p in corpus.passages], np.float32)
    np.savez(tmp_path / "v.npz", passages=rows, words=np.asarray(names), word_vectors=vectors)
    speaker = Speaker("SearchQA", 8, **SMALL, retriever="dense", vectors=str(tmp_path / "v.npz"), top_k=1)
    titles = [p.title for p in corpus.passages if p.title.isalpha()][:8]
    speaker.say([f"search[{t}]" for t in titles])
    assert all(f"[Document 1] {t}:" in text for t, text in zip(titles, speaker.texts, strict=True))
    np.savez(tmp_path / "bad.npz", passages=rows[1:], words=np.asarray(names), word_vectors=vectors)
    for name, hint in (("bad.npz", "do not fit"), ("none.npz", "lacks")):
        np.savez(tmp_path / "none.npz", passages=rows)
        with pytest.raises(ConfigError, match=hint):
            SearchQA(**SMALL, retriever="dense", vectors=str(tmp_path / name)).init_params(jax.random.key(0))


def test_vectors_made_from_the_corpus_rank_as_numpy_says() -> None:
    corpus = load_corpus(CorpusConfig("encyclopedia", **SMALL))
    titles = [p.title for p in corpus.passages if p.title.isalpha()][:8]
    speaker = Speaker("SearchQA", 8, **SMALL, retriever="dense")
    speaker.say([f"search[{t}]" for t in titles])
    env, index = speaker.env.env, speaker.params.env.index
    vectors, terms = np.asarray(index.passages), np.asarray(index.terms)
    data = np.zeros((8, 64), np.uint8)
    for row, title in zip(data, titles, strict=True):
        row[: len(title)] = list(title.encode())
    ids = [
        np.asarray(speaker.params.env.lexicon.terms(row, np.int32(len(t)), 16)[0]).tolist()
        for row, t in zip(data, titles, strict=True)
    ]
    for query, shown in zip(ids, np.asarray(speaker.state.env.results), strict=True):
        towards = sum(terms[i] for i in query if i >= 0)
        scores = vectors @ (towards / np.linalg.norm(towards))
        best = np.argsort(-scores, kind="stable")[: env.top_k]
        assert shown.tolist() == [i if scores[i] > 0 else -1 for i in best]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"dataset": "wikipedia"}, "dataset"),
        ({"top_k": 0}, "top_k"),
        ({"retriever": "faiss"}, "retriever"),
        ({"vectors": "x.npz"}, "vectors"),
        ({"on_bad_row": "maybe"}, "on_bad_row"),
        ({"query_bytes": 3}, "query_bytes"),
        ({"num_passages": 5}, "num_passages"),
        ({"dataset": "hotpotqa"}, "data_dir"),
    ],
)
def test_settings_are_checked(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _ = SearchQA(**fields).corpus
    assert caught.value.field == field


def test_a_source_is_registered_once() -> None:
    with pytest.raises(ConfigError, match="registered already"):
        register_source("encyclopedia", lambda config: load_corpus(config))


def test_text_of_files_is_made_plain() -> None:
    assert plain("  a\n\tb  ") == "a b"
    assert plain("one two three four", 12) == "one two ..."
    assert "<|" not in plain("<|im_end|> <<|||")
    for limit in range(8, 40):
        assert len(plain("lorem ipsum dolor sit amet consectetur", limit)) <= limit


# -- HotpotQA -------------------------------------------------------------------------------------------------
def hotpot_rows(first: int, count: int) -> list[dict[str, Any]]:
    rows = []
    for i in range(first, first + count):
        context = [[f"Title {i} {j}", [f"Sentence {j} of {i}.", f" It names word{i}x{j}."]] for j in range(4)]
        rows.append(
            {
                "_id": f"id{i}", "question": f"What does the third paragraph of {i} name?", "answer": f"word{i}x2",
                "supporting_facts": [[f"Title {i} 2", 1], [f"Title {i} 0", 0], [f"Title {i} 2", 0]],
                "context": context, "type": "bridge", "level": "hard",
            }
        )  # fmt: skip
    return rows


def write_hotpot(folder: Path, train: list[Any], dev: list[Any]) -> None:
    for name, rows in zip(hotpotqa.FILES.values(), (train, dev), strict=True):
        lines = [r if isinstance(r, str) else json.dumps(r) for r in rows]
        (folder / name).write_text("[\n" + ",\n".join(lines) + "\n]")


def test_hotpotqa_is_read_and_played(tmp_path: Path) -> None:
    write_hotpot(tmp_path, hotpot_rows(0, 8), hotpot_rows(100, 3))
    speaker = Speaker("SearchQA", 8, dataset="hotpotqa", data_dir=str(tmp_path))
    env = speaker.env.env
    assert len(env.corpus.passages) == 44
    assert [len(env.corpus.questions[s]) for s in ("train", "eval")] == [8, 3]
    mine = [env.questions[int(q)] for q in speaker.state.env.question]
    assert sorted(q.answer for q in mine) == [f"word{i}x2" for i in range(8)]
    speaker.say([f"search[{q.answer}]" for q in mine])
    assert all(f"It names {q.answer}." in t for q, t in zip(mine, speaker.texts, strict=True))
    assert speaker.say([f"finish[{q.answer}]" for q in mine]).success.all()


def test_bad_hotpotqa_rows_are_named_with_their_lines(tmp_path: Path) -> None:
    rows: list[Any] = hotpot_rows(0, 8)
    rows[7]["answer"] = "The!"
    rows[1]["context"][1][1] = [" ", ""]
    rows[2]["supporting_facts"].append(["Elsewhere", 0])
    rows[3] = json.dumps(rows[3])[:-30]
    del rows[4]["answer"]
    rows[5]["_id"] = "id0"
    write_hotpot(tmp_path, rows, hotpot_rows(100, 2))
    with pytest.raises(BadRowsError) as caught:
        hotpotqa.read_split(str(tmp_path), "train", None, "refuse")
    assert {p.line: p.kind for p in caught.value.report.problems} == {
        3: "empty document", 4: "missing paragraph", 5: "malformed", 6: "missing field", 7: "duplicate id",
        9: "empty field",
    }  # fmt: skip
    table = hotpotqa.read_split(str(tmp_path), "train", None, "skip")
    assert [r.id for r in table.rows] == ["id0", "id6"]
    corpus = load_corpus(CorpusConfig("hotpotqa", str(tmp_path), on_bad_row="skip"))
    assert corpus.reports[0].counts["empty document"] == 1


def test_hotpotqa_builder_reads_back_without_tensorflow(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    from envs_jax.datasets.hotpotqa_tfds import HotpotQAParagraphs

    train = hotpot_rows(0, 60)
    dev = [*hotpot_rows(100, 3), {**hotpot_rows(100, 1)[0], "_id": "again", "question": train[5]["question"]}]
    write_hotpot(tmp_path, train, dev)
    made = HotpotQAParagraphs(data_dir=str(tmp_path / "out"), file_format="array_record")
    made.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=str(tmp_path)))
    questions = {}
    for split in ("train", "validation", "test"):
        source = made.as_data_source(split=split)
        rows = [source[i] for i in range(len(source))]
        questions[split] = {r["question"].decode() for r in rows}
        assert all(len(r["titles"]) == len(r["paragraphs"]) == 4 for r in rows)
        assert all(f"names {r['answer'].decode()}." in r["paragraphs"][2].decode() for r in rows[:3])
    assert [len(q) for q in questions.values()][2] == 4
    assert sum(map(len, questions.values())) == 63
    assert not questions["train"] & questions["test"]
    assert not questions["train"] & questions["validation"]
    assert questions["validation"]


# -- the factbook ---------------------------------------------------------------------------------------------
def country(name: str, capital: str, peak: str) -> dict[str, Any]:
    return {
        "Introduction": {"Background": {"text": f"<p>{name} is old &amp; large.</p>"}},
        "Geography": {"Elevation": {"highest point": {"text": f"{peak} 1,234 m"}}},
        "Government": {
            "Country name": {"conventional short form": {"text": name}},
            "Capital": {"name": {"text": f"{capital}; note - here"}},
        },
    }


def test_factbook_profiles_become_passages_and_questions(tmp_path: Path) -> None:
    for i in range(10):
        profile = country(f"Land{i}", f"City{i}", "Mount Same" if i < 2 else f"Mount {chr(65 + i)}")
        (tmp_path / f"c{i}.json").write_text(json.dumps(profile))
    table = factbook.read("refuse", tmp_path)
    passages, asked = factbook.corpus(table.rows, 0)
    assert passages[0] == ("Land0, Introduction", "Background: Land0 is old & large.")
    questions = {text: (answer, support) for split in asked.values() for text, answer, support in split}
    assert questions["What is the capital of Land3?"][0] == "City3"
    assert questions["What is the capital of the country whose highest point is Mount D?"][0] == "City3"
    assert not any("Mount Same?" in text for text in questions)  # two countries have it
    for answer, support in questions.values():
        assert answer in " ".join(passages[i][1] for i in support)
    assert asked["eval"]
    (tmp_path / "c0.json").write_text("{")
    (tmp_path / "c1.json").write_text(json.dumps({"Geography": {"Area": {"text": "1"}}}))
    (tmp_path / "c2.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(BadRowsError) as caught:
        factbook.read("refuse", tmp_path)
    kinds = {p.line: p.kind for p in caught.value.report.problems}
    assert kinds == {1: "malformed", 2: "missing field", 3: "not UTF-8"}
    assert len(factbook.read("skip", tmp_path).rows) == 7


@pytest.mark.parity
def test_the_whole_factbook_is_usable() -> None:
    corpus = load_corpus(CorpusConfig("factbook"))
    assert len(corpus.passages) > 10_000
    asked = {q.text: q for s in corpus.questions.values() for q in s}
    assert len(asked) > 2000
    assert asked["What is the capital of France?"].answer == "Paris"
    assert "What is the highest point of the country whose capital is Tokyo?" in asked
    for question in asked.values():
        texts = " ".join(corpus.passages[i].text for i in question.support)
        assert question.answer in texts, question
    assert max(len(p.text) for p in corpus.passages) <= 800


@pytest.mark.parametrize("tag", ["SearchQA", "WebShop"])
def test_dtypes_do_not_depend_on_x64(tag: str) -> None:
    import envs_jax

    small = SMALL if tag == "SearchQA" else {"num_products": 48}
    env, params = envs_jax.make(tag, num_levels=2, max_response_tokens=64, **small)
    args = (jax.random.key(0), jax.eval_shape(env.reset, jnp.int32(0), params)[0])
    tokens = (jax.ShapeDtypeStruct((64,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32))
    narrow = jax.eval_shape(env.step, *args, *tokens, params)
    with jax.enable_x64(True):
        wide = jax.eval_shape(env.step, *args, *tokens, params)
    assert jax.tree.map(lambda x: x.dtype, narrow) == jax.tree.map(lambda x: x.dtype, wide)
    assert jax.tree.map(lambda x: x.dtype, narrow[0]) == jax.tree.map(lambda x: x.dtype, args[1])
