# make demo    train a small model on this machine, from scratch    make test      run the tests
# make check   check style, types and layers, under a minute        make test-all  run the long tests, too
# make bench   measure speed and memory                             make gpu       test and measure on a GPU
# make docs    build the site of docs/
# A machine with an NVIDIA GPU gets vLLM's CUDA build, others its CPU build: make setup EXTRA=cpu|cuda

PYTHON ?= python3.11
EXTRA ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
BIN := .venv/bin
READY := .venv/.ready-$(EXTRA)
UV := $(BIN)/uv
# uv does not read pip's setting for the places of local builds.
FIND_LINKS := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))
RESOLVE := $(if $(filter cpu,$(EXTRA)),$(FIND_LINKS) --override requirements/overrides.txt)

# A run starts a dozen processes; without stored bytecode each compiles all its imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-quick test-engines test-all gpu check format docs docs-serve bench setup pins check-pins audit verifiers clean

demo: $(READY)
	@$(BIN)/whetstone demo

# Tests that start an engine or a cluster run one by one and mostly wait. All others run beside them, and are
# nice: they take what the engines leave, whose row of tests is the longer one. (Ray's workers have niceness 15.)
ENGINES := ray or vllm

test: $(READY)
	@echo "two parts run at the same time; each is shown when it ends: the quick tests, then engines and clusters"
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target test-quick test-engines

test-quick: $(READY)
	@nice -n 19 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not long and not gpu and not ($(ENGINES))"

test-engines: $(READY)
	@$(BIN)/python -m pytest tests -m "not long and not gpu and ($(ENGINES))"

test-all: test
	@$(BIN)/python -m pytest tests -m "long and not gpu"

# The tests and benchmarks that need a GPU, at most half an hour; they write docs/results/gpu.md.
gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a dead link, a missing anchor or page, or an address in the network fails the build. -m imports our
# packages from here.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the site is in build/site; make docs-serve serves it on port 8001, with search"

docs-serve: docs
	@$(BIN)/python -m http.server 8001 --bind 127.0.0.1 --directory build/site

bench: $(READY)
	@$(BIN)/python -m benchmarks

setup: $(READY)

$(UV):
	@command -v $(PYTHON) >/dev/null || { echo "Whetstone needs Python 3.11: $(PYTHON) was not found; make PYTHON=… names another"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8

$(READY): requirements/$(EXTRA).txt requirements/overrides.txt | $(UV)
	@echo "setting up .venv ($(EXTRA)): a minute or two, once"
	@$(UV) pip install --quiet -r requirements/$(EXTRA).txt $(RESOLVE)
	@$(UV) pip install --quiet --no-deps --editable .
	@touch $@

# Resolve the dependencies of pyproject.toml into a list of name==version. Lists of other machines are made here,
# too: these targets install nothing, or the CUDA build would replace that of a CPU.
pins: | $(UV)
	$(UV) pip compile pyproject.toml --extra $(EXTRA) --extra games --extra adapters --extra verifiable --extra dev $(RESOLVE) --python-version 3.11 \
	  --no-annotate --no-header --no-emit-find-links --quiet --upgrade --output-file requirements/$(EXTRA).txt
	sed -i 's/+cpu$$//' requirements/$(EXTRA).txt

# Check that the pins still resolve together, for Linux on x86-64, on any machine; needs the network.
check-pins: | $(UV)
	@mkdir -p build
	$(UV) pip compile pyproject.toml --extra $(EXTRA) --extra games --extra adapters --extra verifiable --extra dev $(RESOLVE) --python-version 3.11 \
	  --python-platform x86_64-unknown-linux-gnu --constraint requirements/$(EXTRA).txt --quiet --output-file build/pins-$(EXTRA).txt

# Look up known vulnerabilities of each pinned package, which needs the network.
audit: | $(UV)
	$(UV) tool run pip-audit==2.10.1 --strict --disable-pip --no-deps --progress-spinner off --requirement requirements/$(EXTRA).txt

# A Python of its own for environment=verifiers, whose packages are others than ours; tests use it if it is there.
verifiers: | $(UV)
	$(UV) venv --quiet --python $(PYTHON) .venv-verifiers
	$(UV) pip install --quiet --python .venv-verifiers $(FIND_LINKS) verifiers==0.4.0 uv

clean:
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
