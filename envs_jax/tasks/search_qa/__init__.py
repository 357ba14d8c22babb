"""Open questions with a search engine."""

from envs_jax.tasks.search_qa.corpus import (
    Corpus,
    CorpusConfig,
    Passage,
    Question,
    load_corpus,
    register_source,
)
from envs_jax.tasks.search_qa.encyclopedia import encyclopedia
from envs_jax.tasks.search_qa.env import SearchQA
from envs_jax.tasks.search_qa.sources import factbook, hotpotqa

register_source("encyclopedia", encyclopedia)
register_source("factbook", factbook)
register_source("hotpotqa", hotpotqa)

__all__ = ["Corpus", "CorpusConfig", "Passage", "Question", "SearchQA", "load_corpus", "register_source"]
