# Everything is made with these. PYTHON is any Python 3.11 to 3.13; each target that needs packages makes its own
# virtual environment from constraints.txt. After installation nothing needs the network.
PYTHON ?= python3
VENV ?= .venv
RUN := quickstart-$(shell date +%Y%m%d-%H%M%S)
WORKERS ?= 2

BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST = $(BIN)/python -m pytest
# What must also work with the newer JAX of accelerator images.
SMOKE := tests/envs_jax/test_bandit.py tests/envs_jax/test_text.py tests/ragen_jax/test_estimators.py \
  tests/ragen_jax/test_scoring_logprobs.py tests/ragen_jax/test_update.py tests/ragen_jax/test_trainer.py

.DEFAULT_GOAL := help
.PHONY: help quickstart test check format pytest parity slow pods smoke ci-slow docs presets clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=$(PYTHON) VENV=$(VENV) WORKERS=$(WORKERS)"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else \
	  f"Python 3.11 to 3.13 is needed, and $(PYTHON) is {v[0]}.{v[1]}; say which: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras that is installed.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable .
	@touch $@
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
$(VENV)/.installed-parity: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[dev,parity]'
	@touch $@ $(VENV)/.installed-dev $(VENV)/.installed
$(VENV)/.installed-tpu-compile: pyproject.toml constraints.txt | $(VENV)/.installed-dev
	$(INSTALL) --editable '.[dev,tpu-compile]'
	@touch $@

quickstart: $(VENV)/.installed  ## train a policy from scratch in minutes, and write its report
	$(BIN)/ragen-jax train --config configs/quickstart.yaml --run.name $(RUN)
	@echo "Open runs/$(RUN)/report.html in a browser."

test: check pytest  ## what every change must pass: check, then the fast tests

check: $(VENV)/.installed-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## put the whole tree in its canonical form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pytest: $(VENV)/.installed-dev  ## the fast tests alone
	$(PYTEST) -m 'not slow and not parity and not pods' -n $(WORKERS) --dist loadfile

parity: $(VENV)/.installed-parity  ## comparisons with torch, transformers, gymnasium, gym-sokoban, jumanji and others
	$(PYTEST) -m 'parity and not slow and not pods' -n $(WORKERS) --dist loadfile

slow: $(VENV)/.installed-dev  ## tests that take over 20 s, parity among them where its packages are there
	$(PYTEST) -m slow -n $(WORKERS) --dist loadfile

pods: $(VENV)/.installed-tpu-compile  ## compile the paper's batch for TPU pods; about 10 minutes
	$(PYTEST) -m pods

smoke: $(VENV)/.installed-dev  ## a few files of tests, for another Python: make smoke PYTHON=python3.12 VENV=.venv-3.12
	$(PYTEST) -m 'not slow and not parity and not pods' -n $(WORKERS) --dist loadfile $(SMOKE)

ci-slow: parity slow  ## what .ci/run adds to make test, apart from the other Python

docs: $(VENV)/.installed-dev  ## write docs/configuration.md and the table of docs/environments.md anew from the source
	$(BIN)/python docs/build_configuration.py
	$(BIN)/python docs/build_environments.py

bench-%: $(VENV)/.installed-parity  ## run benchmarks/%.py, such as bench-environments or bench-decode
	$(BIN)/python -m benchmarks.$(subst -,_,$*)

presets: $(VENV)/.installed  ## every preset with and without the filter on easy Sokoban: a table
	$(BIN)/python -m benchmarks.presets

clean:  ## remove environments, caches and build products; runs/ and models/ stay
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
