# make demo   trains a small model on this machine, from nothing        make test      passes the tests
# make check  style, types, layers, in under a minute                    make test-all  … and those of minutes each
# make bench  measures, both sides
# A machine with an NVIDIA GPU takes vLLM's CUDA build, others its CPU build: make setup EXTRA=cpu|cuda

PYTHON ?= python3.11
EXTRA ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
BIN := .venv/bin
READY := .venv/.ready-$(EXTRA)
# uv does not read pip's own setting of where local builds lie.
FIND_LINKS := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))
RESOLVE := $(if $(filter cpu,$(EXTRA)),$(FIND_LINKS) --override requirements/overrides.txt)

# A run starts a dozen processes; where bytecode isn't kept, each compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check format bench setup pins audit clean

demo: $(READY)
	@$(BIN)/whetstone demo

# Tests that start no engine and no cluster run two at a time. The others want the machine for themselves.
ALONE := ray or vllm

test: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not long and not ($(ALONE))"
	@$(BIN)/python -m pytest -m "not long and ($(ALONE))"

test-all: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not long and not ($(ALONE))"
	@$(BIN)/python -m pytest -m "long or $(ALONE)"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	@$(BIN)/python -m benchmarks

setup: $(READY)

$(READY): requirements/$(EXTRA).txt requirements/overrides.txt
	@command -v $(PYTHON) >/dev/null || { echo "Whetstone needs Python 3.11: $(PYTHON) was not found; make PYTHON=… names another"; exit 2; }
	@echo "setting up .venv ($(EXTRA)): a minute or two, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	@$(BIN)/uv pip install --quiet -r requirements/$(EXTRA).txt $(RESOLVE)
	@$(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

# Resolve pyproject.toml anew into a list of name==version.
pins: $(READY)
	$(BIN)/uv pip compile pyproject.toml --extra $(EXTRA) --extra games --extra adapters --extra dev $(RESOLVE) --python-version 3.11 \
	  --no-annotate --no-header --no-emit-find-links --quiet --upgrade --output-file requirements/$(EXTRA).txt
	sed -i 's/+cpu$$//' requirements/$(EXTRA).txt

# Known vulnerabilities of what is pinned; asks for each package by name, so it needs the network.
audit: $(READY)
	$(BIN)/uv tool run pip-audit==2.10.1 --strict --disable-pip --no-deps --progress-spinner off --requirement requirements/$(EXTRA).txt

clean:
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
