# `make tune` and `make test` do everything on a fresh machine; `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
ENGINE_VENV := $(or $(AUTOTUNER_ENGINE_VENV),$(CURDIR)/.venv-engine)
TINY_MODEL := $(CURDIR)/.cache/models/tiny-llama
SETUP := $(PYTHON) scripts/setup.py

# What `make tune` takes: STUDY=file MODEL=path-or-name OUT=folder ENGINE=simulated ENGINE_COMMAND="… vllm serve" FRESH=1
OUT ?= out
TUNE_STUDY := $(or $(STUDY),configs/studies/quickstart.yaml)
# A study with `model: auto` gets the small model, unless MODEL names another.
AUTO := $(shell grep -Es '^model:[[:space:]]*auto' '$(TUNE_STUDY)')
TUNE_MODEL := $(or $(MODEL),$(if $(filter simulated,$(ENGINE)),,$(if $(AUTO),$(TINY_MODEL))))
TUNE_NEEDS := tuner $(if $(filter simulated,$(ENGINE)),,engine) $(if $(filter $(TINY_MODEL),$(TUNE_MODEL)),model)
TUNE_COMMAND := $(or $(ENGINE_COMMAND),$(ENGINE_VENV)/bin/vllm serve)

# Values reach the recipes through the environment, so that blanks and quotes in them stay what they are.
export OUT TUNE_STUDY TUNE_MODEL TUNE_COMMAND
export ENGINE_COMMAND
unexport MAKEFLAGS MFLAGS MAKELEVEL

.PHONY: help
help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: tune
tune:  ## Set up and tune: [STUDY=file] [MODEL=model] [OUT=folder] [ENGINE=simulated] [ENGINE_COMMAND=…] [FRESH=1]
	@test -r "$$TUNE_STUDY" || { echo "make: error: no study file $$TUNE_STUDY. To mend it: STUDY=configs/studies/NAME.yaml." >&2; exit 2; }
	@$(SETUP) $(TUNE_NEEDS)
	@exec $(BIN)/autotuner tune "$$TUNE_STUDY" --out "$$OUT" $(if $(TUNE_MODEL),--model "$$TUNE_MODEL") \
		$(if $(filter simulated,$(ENGINE)),--engine simulated,--engine-command "$$TUNE_COMMAND") $(if $(FRESH),--fresh)

.PHONY: setup
setup:  ## Make the tuner's environment, the engine's and the small model, once
	@$(SETUP) all

.PHONY: setup-tuner
setup-tuner:
	@$(SETUP) tuner

.PHONY: test
test: setup  ## Every test, real vLLM included, with coverage; ARGS go to pytest
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest --durations=10 $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

.PHONY: test-unit
test-unit: setup-tuner  ## The fast tests: no process, no engine
	@exec $(BIN)/pytest tests/unit $(ARGS)

.PHONY: test-process
test-process: setup-tuner  ## The tests that start this project's own processes
	@exec $(BIN)/pytest -m "process and not real" $(ARGS)

.PHONY: test-real
test-real: setup  ## The tests that start real vLLM
	@exec $(BIN)/pytest -m real $(ARGS)

.PHONY: lint
lint: setup-tuner  ## Style, format and declared dependencies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/deptry . 2>&1

.PHONY: format
format: setup-tuner  ## Format, and mend what can be mended
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: types
types: setup-tuner  ## Check the types
	@exec $(BIN)/mypy

.PHONY: contracts
contracts: setup-tuner  ## Check who may import whom
	@exec $(BIN)/lint-imports

.PHONY: proto
proto: setup-tuner  ## Generate the protocol's stubs
	@exec scripts/proto.sh

.PHONY: proto-check
proto-check: setup-tuner  ## See that the committed stubs are what the protocol gives
	@exec scripts/proto.sh --check

.PHONY: bench
bench: setup  ## Run every benchmark; each writes benchmarks/results/NAME.json
	@exec $(PYTHON) scripts/bench.py $(ARGS)

.PHONY: wheel
wheel: setup-tuner  ## Build the wheel into dist/
	@exec $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

.PHONY: clean
clean:  ## Remove results and caches of tools; environments, models and compile caches stay
	rm -rf out dist build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find autotuner workers tests scripts benchmarks -name __pycache__ -prune -exec rm -rf {} +

.PHONY: clean-all
clean-all: clean  ## Also remove what the set-up made
	rm -rf .venv .venv-engine .cache
