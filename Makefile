# make train: set up, then train the quickstart model.   make test: set up, then run the tests.
# Both are safe to run again and start at once when nothing changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help train test lint format setup clean

help:
	@echo "make train   set up .venv and train the quickstart model (ARGS='a.b=c ...' to change settings)"
	@echo "make test    set up .venv and run the tests"
	@echo "make lint    ruff and mypy"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Podium needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Podium into $(VENV) (about a minute)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

train: $(STAMP)
	@$(BIN)/podium train recipes/quickstart.yaml $(ARGS)

test: $(STAMP)
	@$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
