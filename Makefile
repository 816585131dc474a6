# make train: set up, then train the quickstart model.   make test: set up, then run the tests.
# Both are safe to run again and start at once when nothing changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help train test test-trackers test-faults test-browser lint format setup clean

help:
	@echo "make train   set up .venv and train the quickstart model (ARGS='a.b=c ...' to change settings)"
	@echo "make test    set up .venv and run the tests"
	@echo "make test-faults   the long soak: kills, stops and full disks over one run"
	@echo "make lint    ruff and mypy"
	@echo "make test-trackers   install the trackers' packages and test with them"

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
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-faults: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults -m soak -n 2 --dist loadfile -rP $(ARGS)

# The trackers' own packages: TensorBoard and W&B beside ours; SwanLab and MLflow want another protobuf, so apart.
TRACKERS := .venv-trackers
test-trackers: $(STAMP)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt tensorboard wandb
	@test -x $(TRACKERS)/bin/python || $(BIN)/python -m venv $(TRACKERS)
	@$(TRACKERS)/bin/pip install --quiet --disable-pip-version-check 'swanlab>=0.10' 'mlflow>=3' omegaconf pyyaml rich pytest pytest-timeout
	@$(TRACKERS)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	@$(BIN)/python -m pytest tests/tracking/test_real_trackers.py -k 'tensorboard or wandb'
	@$(TRACKERS)/bin/python -m pytest -p no:cacheprovider tests/tracking/test_real_trackers.py -k 'swanlab or mlflow'

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

# The dashboard in a real Chromium; screenshots and figures in .browser/artefacts. CHROMIUM=/path for another browser.
test-browser: $(STAMP) .browser/.installed
	@PODIUM_BROWSER=1 $(BIN)/python -m pytest tests/browser $(ARGS)

.browser/.installed: tests/browser/setup.sh
	@sh tests/browser/setup.sh .browser $(BIN)/python
