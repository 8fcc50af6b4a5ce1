# make demo    train a small model on this machine, from scratch    make test      run the tests
# make check   check style, types and layers, under a minute        make test-all  run the long tests, too
# make bench   measure speed and memory                             make gpu       test and measure on a GPU
# make docs    build the site of docs/             make demo-instruct  teach a real chat model, 15 minutes
# A machine with an NVIDIA GPU gets vLLM's CUDA build, others its CPU build: make setup EXTRA=cpu|cuda
# .venv has the first Python that runs here: make setup PYTHON=python3.13 takes another.

PYTHONS := 3.11 3.12 3.13
BIN := .venv/bin
version = $(if $(1),$(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null))
# Each is started: a command of pyenv is there even where it refuses to run.
fits = $(if $(filter $(PYTHONS),$(call version,$(1))),$(1))
ifneq ($(origin PYTHON),command line)  # other tools read a variable PYTHON of the environment
PYTHON := $(or $(call fits,$(BIN)/python),$(call fits,python3.11),$(call fits,python3.12),$(call fits,python3.13),$(call fits,python3))
endif
VERSION := $(call version,$(PYTHON))
EXTRA ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
VENV := .venv/.python-$(VERSION)
READY := .venv/.ready-$(EXTRA)-$(VERSION)
UV := $(BIN)/uv
WANTED := 3.11, 3.12 or 3.13
REFUSED = $(or $(if $(VERSION),$(PYTHON) is Python $(VERSION)),$(if $(PYTHON),$(PYTHON) does not run ($(shell $(PYTHON) 2>&1 </dev/null | head -n 1))),the PATH has none that runs)
# uv does not read pip's setting for the places of local builds.
FIND_LINKS := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))
RESOLVE := $(if $(filter cpu,$(EXTRA)),$(FIND_LINKS) --override requirements/overrides.txt)

# A run starts a dozen processes; without stored bytecode each compiles all its imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-instruct test test-quick test-engines test-all gpu check format docs docs-serve bench setup pins check-pins audit verifiers clean

demo: $(READY)
	@$(BIN)/whetstone demo

demo-instruct: $(READY)
	@$(UV) pip install --quiet --no-deps $(FIND_LINKS) -r requirements/instruct.txt
	@$(BIN)/whetstone demo instruct

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

# The benchmarks and tests that need a GPU: make gpu MINUTES=12 leaves out what does not fit. They write
# docs/results/gpu.md.
gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu $(if $(MINUTES),--minutes $(MINUTES))

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

# An environment of another Python, or a broken one, is made anew.
ifneq ($(call version,$(BIN)/python),$(VERSION))
.PHONY: $(VENV)
$(READY): $(VENV)
endif
$(VENV):
ifeq ($(filter $(PYTHONS),$(VERSION)),)
	@echo "Whetstone needs Python $(WANTED): $(REFUSED); install one, or name it: make $(firstword $(MAKECMDGOALS) setup) PYTHON=/path/to/python3.13" >&2; exit 2
else
	@if test -e .venv && test "$(call version,$(BIN)/python)" != $(VERSION); then \
	  echo "making .venv anew with $(PYTHON), Python $(VERSION): it has $(or $(call version,$(BIN)/python),none that runs)"; rm -rf .venv; fi
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	@touch $@
endif

$(READY): requirements/$(EXTRA).txt requirements/overrides.txt | $(VENV)
	@echo "setting up .venv ($(EXTRA), Python $(VERSION)): a minute or two, once"
	@$(UV) pip install --quiet -r requirements/$(EXTRA).txt $(RESOLVE)
	@$(UV) pip install --quiet --no-deps --editable .
	@touch $@

# Resolve the dependencies of pyproject.toml into a list of name==version, one for all Pythons: what the newest
# takes, the others take. Torch's general build has CUDA's libraries, which a list for CPUs leaves out. These
# targets install nothing, or the CUDA build would replace that of a CPU.
EXTRAS := $(EXTRA) games adapters verifiable training-service dev
COMPILE = $(UV) pip compile pyproject.toml $(EXTRAS:%=--extra %) $(RESOLVE) --quiet --python-platform x86_64-unknown-linux-gnu

pins: | $(VENV)
	$(COMPILE) --python-version $(lastword $(PYTHONS)) --no-annotate --no-header --no-emit-find-links --upgrade \
	  --output-file requirements/$(EXTRA).txt
	sed -i -E 's/\+cpu$$//$(if $(filter cpu,$(EXTRA)),; /^(cuda|nvidia)-/d)' requirements/$(EXTRA).txt

# Check that the pins still resolve together with each Python; needs the network.
check-pins: $(PYTHONS:%=check-pins-%)

check-pins-%: | $(VENV)
	@mkdir -p build
	$(COMPILE) --python-version $* --constraint requirements/$(EXTRA).txt \
	  --output-file build/pins-$(EXTRA)-$*.txt

# Look up known vulnerabilities of each pinned package, which needs the network.
audit: | $(VENV)
	$(UV) tool run pip-audit==2.10.1 --strict --disable-pip --no-deps --progress-spinner off --requirement requirements/$(EXTRA).txt

# A Python of its own for environment=verifiers, whose packages are others than ours; tests use it if it is there.
verifiers: | $(VENV)
	$(UV) venv --quiet --python $(PYTHON) .venv-verifiers
	$(UV) pip install --quiet --python .venv-verifiers $(FIND_LINKS) verifiers==0.4.0 uv

clean:
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
