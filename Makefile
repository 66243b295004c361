# `make demo` and `make test` are each enough on a machine with Python 3.11 to 3.13 and make.
# Each makes .venv, installs what it needs there, and installs it once.
#
# Variables, given as `make test NAME=value`:
#   PYTHON             the interpreter that makes .venv           (the first suitable python3)
#   TORCH_REQUIREMENT  the PyTorch to install for the tests       (torch==2.13.0)
#   TORCH_PIP_FLAGS    more options for that one `pip install`. On Linux a plain install brings the CUDA
#                      build, several gigabytes; for the small CPU build give the `--index-url` that
#                      PyTorch's installation page names for it. A PyTorch that is already in .venv stays.
#   WORKERS            test processes at a time                   (number of cores, at most 4)
#   PYTEST_FLAGS       more options for every pytest, e.g. PYTEST_FLAGS="-k quantile"
#   DEMO_FLAGS         options for the example that `make demo` runs
#   BENCH_FLAGS        options for `make bench` and `make bench-federated`, e.g. BENCH_FLAGS="--make-environments .venv-peers"

TORCH_REQUIREMENT ?= torch==2.13.0
TORCH_PIP_FLAGS ?=
PYTEST_FLAGS ?=
DEMO_FLAGS ?=
BENCH_FLAGS ?=
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); \
             if [ "$$n" -gt 4 ]; then echo 4; else echo "$$n"; fi)

VENV := .venv
BIN := $(VENV)/bin
# uv installs in a fifth of the time.
PIP_OF = $(if $(shell command -v uv 2>/dev/null),uv pip install --quiet --python $(1)/bin/python,\
           $(1)/bin/python -m pip --disable-pip-version-check --no-input --quiet --quiet install)
PIP := $(call PIP_OF,$(VENV))
GOLDEN := $(CURDIR)/build/golden
# Many tests compile the same step, and most of the time on JAX goes into compiling.
test-contract-jax test-all-jax: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/build/jax-cache
test-contract-jax test-all-jax: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
test-contract-jax test-all-jax: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1
export TF_CPP_MIN_LOG_LEVEL ?= 2
# As users have it; conftest.py switches it off elsewhere, where some virtual machines fail with it.
test-all-tensorflow: export TF_ENABLE_ONEDNN_OPTS ?= 1

TFP_VENV := .venv-tensorflow-privacy
FLOWER_VENV := .venv-flower
OLDEST_VENV := .venv-oldest
PEERS_VENV := .venv-peers
PACKAGE := build/package

# The paths of a tier: see tests/tiers.py.
TIER = $(shell $(BIN)/python -m tests.tiers $(1))
PYTEST := $(BIN)/python -m pytest $(PYTEST_FLAGS)
PARALLEL := -n $(WORKERS) --dist=worksteal

.PHONY: help demo demo-smoke test test-all checks checks-all venv lint types test-once \
        test-contract-tensorflow test-contract-jax test-contract-torch test-rest test-golden \
        test-all-tensorflow test-all-jax test-all-torch test-all-golden test-tensorflow-privacy test-flower \
        test-oldest test-notebooks test-faults package bench bench-federated docs clean
.NOTPARALLEL:

help:
	@echo "make demo      train on Fashion-MNIST with differential privacy (TensorFlow)"
	@echo "make test      the gate: lint, types, documentation, and what must hold on each backend"
	@echo "make test-all  everything on every backend, and what takes environments of its own: hours"
	@echo "Parts of the gate: make lint | types | docs | test-once | test-rest | test-golden |"
	@echo "                   test-contract-tensorflow | test-contract-jax | test-contract-torch"
	@echo "Parts of the rest: make test-all-tensorflow | test-all-jax | test-all-torch | test-notebooks |"
	@echo "                   test-tensorflow-privacy | test-flower | test-oldest |"
	@echo "                   test-faults | package"
	@echo "Others:            make demo-smoke | bench | bench-federated | venv | clean"

# ---- the commands -----------------------------------------------------------------------------------

demo: $(VENV)/.installed-demo
	@echo "==> Running examples/fashion_mnist.py"
	@KERAS_BACKEND=tensorflow $(BIN)/python examples/fashion_mnist.py $(DEMO_FLAGS)

# The same script on a little data for a few steps: does it run from end to end?
demo-smoke: $(VENV)/.installed-demo
	@echo "==> Running examples/fashion_mnist.py --smoke"
	@KERAS_BACKEND=tensorflow $(BIN)/python examples/fashion_mnist.py --smoke

# Every check runs even where one before it failed; any failure fails the whole.
test test-all: test%:
	@$(MAKE) --no-print-directory --keep-going checks$* || \
	    { echo "==> Some checks failed: see above"; exit 1; }
	@echo "==> All checks passed"

checks: lint types docs test-once test-contract-tensorflow test-contract-jax test-contract-torch \
        test-rest test-golden

checks-all: lint types docs test-once test-all-tensorflow test-all-jax test-all-torch \
            test-all-golden test-notebooks test-tensorflow-privacy test-flower test-oldest package \
            test-faults

# ---- the environment --------------------------------------------------------------------------------

venv: $(VENV)/.created

$(VENV)/.created:
	@python="$(PYTHON)"; \
	suits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'; \
	for candidate in python3 python3.13 python3.12 python3.11; do \
	    [ -n "$$python" ] && break; \
	    if $$candidate -c "$$suits" 2>/dev/null; then python=$$candidate; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "No Python 3.11, 3.12 or 3.13 was found. Name one with: make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	echo "==> Making $(VENV) with $$python ($$($$python --version))"; \
	$$python -m venv $(VENV) || { \
	    echo "$$python cannot make virtual environments (Debian and Ubuntu: apt install python3-venv)" >&2; \
	    rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/.installed-demo: pyproject.toml | $(VENV)/.created
	@echo "==> Installing keras_adaclip, TensorFlow, matplotlib and scikit-learn (about 2 minutes)"
	@$(PIP) --editable ".[tensorflow,plots]" "scikit-learn>=1.4"
	@touch $@

$(VENV)/.installed-torch: | $(VENV)/.created
	@if $(BIN)/python -c "import torch" 2>/dev/null; then \
	    echo "==> PyTorch is in $(VENV) already"; \
	else \
	    echo "==> Installing $(TORCH_REQUIREMENT) (about 2 minutes for the CPU build)"; \
	    $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet --quiet install \
	        $(TORCH_PIP_FLAGS) "$(TORCH_REQUIREMENT)"; \
	fi
	@touch $@

$(VENV)/.installed-test: pyproject.toml $(VENV)/.installed-torch
	@echo "==> Installing keras_adaclip, TensorFlow, JAX and the test tools (about 3 minutes)"
	@$(PIP) --editable ".[tensorflow,jax,torch,plots,test]"
	@touch $@

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.created
	@echo "==> Installing the documentation tools (about 1 minute)"
	@$(PIP) --editable ".[docs]"
	@touch $@

# ---- checks -----------------------------------------------------------------------------------------

lint: $(VENV)/.installed-test
	@echo "==> Lint: ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	@echo "==> Types: mypy"
	@$(BIN)/mypy

test-once: $(VENV)/.installed-test
	@echo "==> Tests that depend on no backend"
	@KERAS_BACKEND=torch $(PYTEST) $(PARALLEL) --ignore=tests/docs/test_notebooks.py $(call TIER,once)

test-contract-tensorflow test-contract-jax test-contract-torch: test-contract-%: $(VENV)/.installed-test
	@echo "==> What must hold on every backend: $* ($(WORKERS) processes)"
	@rm -rf "$(GOLDEN)/$*"
	@KERAS_BACKEND=$* KERAS_ADACLIP_GOLDEN="$(GOLDEN)" $(PYTEST) $(PARALLEL) $(call TIER,contract-$*)

# PyTorch compiles nothing, so its tests take the least time.
test-rest: $(VENV)/.installed-test
	@echo "==> All other tests, on PyTorch"
	@KERAS_BACKEND=torch $(PYTEST) $(PARALLEL) $(call TIER,rest)

# Compares what the three runs before recorded.
GOLDEN_TESTS = KERAS_BACKEND=torch KERAS_ADACLIP_GOLDEN="$(GOLDEN)" $(PYTEST) tests/golden
test-golden: test-contract-tensorflow test-contract-jax test-contract-torch
	@echo "==> Agreement of the three backends"
	@$(GOLDEN_TESTS)

# TensorFlow keeps some 20 MB of each model that it has compiled with XLA, so folders of many models run in
# processes of their own, the largest one twice. Tests of several devices start processes themselves.
OWN_TURNS := tests/gradients tests/tuners tests/models tests/federated
TURNS := tests/gradients tests/tuners "tests/models/test_[a-o]*.py" "tests/models/test_[p-z]*.py" tests/federated
test-all-tensorflow test-all-jax test-all-torch: test-all-%: $(VENV)/.installed-test
	@echo "==> All tests on $* ($(WORKERS) processes)"
	@rm -rf "$(GOLDEN)/$*"
	@failed=0; \
	for part in "$(addprefix --ignore=,$(OWN_TURNS) tests/distribution tests/golden tests/docs tests/packaging)" \
	        $(TURNS) "-n 0 tests/distribution"; do \
	    KERAS_BACKEND=$* KERAS_ADACLIP_GOLDEN="$(GOLDEN)" $(PYTEST) $(PARALLEL) $$part \
	        || [ $$? -eq 5 ] || failed=1; \
	done; \
	exit $$failed

test-all-golden: test-all-tensorflow test-all-jax test-all-torch
	@echo "==> Agreement of the three backends"
	@$(GOLDEN_TESTS)

test-notebooks: $(VENV)/.installed-test
	@echo "==> The notebooks of the documentation"
	@KERAS_BACKEND=tensorflow $(PYTEST) tests/docs/test_notebooks.py

# Puts each fault of the table into a copy of the package; about half an hour on two cores.
test-faults: $(VENV)/.installed-test
	@echo "==> The table of faults: every one must be caught"
	@$(BIN)/python -m tests.faults.inject

# The next two need Python 3.11, whatever .venv has. Without it they are left out, and say so.
PYTHON_311 = $(shell for candidate in $(BIN)/python python3.11; do \
    if $$candidate -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then \
        echo $$candidate; break; \
    fi; \
done)

# TensorFlow Privacy pins old releases of NumPy and dp-accounting: an environment of its own.
$(TFP_VENV)/.installed: pyproject.toml | $(VENV)/.created
	@echo "==> Making $(TFP_VENV) with TensorFlow Privacy (about 2 minutes)"
	@$(PYTHON_311) -m venv $(TFP_VENV)
	@$(call PIP_OF,$(TFP_VENV)) --editable ".[tensorflow,tensorflow-privacy]" "pytest>=8.3" "hypothesis>=6.100"
	@touch $@

test-tensorflow-privacy: | $(VENV)/.created
	@if [ -z "$(PYTHON_311)" ]; then \
	    echo "==> Left out: tests beside TensorFlow Privacy, which installs on Python 3.11 alone"; \
	else \
	    $(MAKE) --silent --no-print-directory $(TFP_VENV)/.installed && \
	    echo "==> Tests beside TensorFlow Privacy" && \
	    $(TFP_VENV)/bin/python tests/packaging/releases.py installed tensorflow-privacy && \
	    KERAS_BACKEND=tensorflow $(TFP_VENV)/bin/python -m pytest $(PYTEST_FLAGS) tests/integrations; \
	fi

# Flower pins many packages: an environment of its own.
$(FLOWER_VENV)/.installed: pyproject.toml | $(VENV)/.created
	@echo "==> Making $(FLOWER_VENV) with Flower (about 2 minutes)"
	@$(BIN)/python -m venv $(FLOWER_VENV)
	@$(call PIP_OF,$(FLOWER_VENV)) --editable ".[jax,flower]" "flwr[simulation]" "pytest>=8.3" "hypothesis>=6.100"
	@touch $@

test-flower: $(FLOWER_VENV)/.installed
	@echo "==> Tests over Flower's nodes"
	@$(FLOWER_VENV)/bin/python tests/packaging/releases.py installed flower
	@KERAS_BACKEND=jax $(FLOWER_VENV)/bin/python -m pytest $(PYTEST_FLAGS) tests/integrations/flower

# The oldest releases that pyproject.toml allows, with TensorFlow and JAX.
$(OLDEST_VENV)/.installed: pyproject.toml tests/packaging/releases.py | $(VENV)/.created
	@echo "==> Making $(OLDEST_VENV) with the oldest releases that are supported (about 2 minutes)"
	@$(PYTHON_311) -m venv $(OLDEST_VENV)
	@$(PYTHON_311) tests/packaging/releases.py oldest tensorflow jax > $(OLDEST_VENV)/constraints.txt
	@$(call PIP_OF,$(OLDEST_VENV)) --constraint $(OLDEST_VENV)/constraints.txt --editable ".[tensorflow,jax]" "pytest>=8.3" "hypothesis>=6.100"
	@touch $@

# A selection: what Keras, NumPy and the backends have changed under us before.
OLDEST_TESTS := tests/backend/test_keras_private.py tests/gradients/test_rules.py \
                tests/gradients/test_isolation.py::test_masks_of_a_sequence_are_rescaled_over_one_example \
                tests/gradients/test_cross_entropies.py \
                tests/models/test_saving.py::test_every_strategy_comes_back_as_it_was \
                tests/models/test_saving.py::test_a_model_and_its_layers_bring_the_whole_ledger \
                'tests/federated/test_round.py::test_a_round_is_that_of_a_loop_over_the_clients[mlp-None]'

test-oldest: | $(VENV)/.created
	@if [ -z "$(PYTHON_311)" ]; then \
	    echo "==> Left out: tests of the oldest releases, which need Python 3.11"; \
	else \
	    $(MAKE) --silent --no-print-directory $(OLDEST_VENV)/.installed && \
	    echo "==> Tests of the oldest releases that are supported" && \
	    $(OLDEST_VENV)/bin/python tests/packaging/releases.py installed tensorflow jax && \
	    for backend in tensorflow jax; do \
	        KERAS_BACKEND=$$backend $(OLDEST_VENV)/bin/python -m pytest $(PYTEST_FLAGS) $(OLDEST_TESTS) || exit 1; \
	    done; \
	fi

# The wheel and the source archive: what they hold, and whether the README's first example runs from
# the wheel in an empty environment. On JAX, which installs in half a minute.
package: $(VENV)/.installed-test
	@echo "==> Building the wheel and the source archive into $(PACKAGE)"
	@rm -rf $(PACKAGE)
	@mkdir -p $(PACKAGE)
	@$(BIN)/python -m build --outdir $(PACKAGE) . >$(PACKAGE)/build.log 2>&1 || { cat $(PACKAGE)/build.log; exit 1; }
	@$(BIN)/python tests/packaging/distribution.py $(PACKAGE)
	@echo "==> Installing the wheel with JAX in an empty environment"
	@$(BIN)/python -m venv $(PACKAGE)/venv
	@$(call PIP_OF,$(PACKAGE)/venv) "$$(ls $(PACKAGE)/*.whl)[jax]"
	@$(PACKAGE)/venv/bin/python -m pip --disable-pip-version-check check
	@KERAS_BACKEND=jax $(PACKAGE)/venv/bin/python tests/packaging/first_example.py

# ---- speed --------------------------------------------------------------------------------------------

# Hours, on a machine that does nothing else; goes on where it was stopped. See benchmarks/speed/README.md.
bench: $(VENV)/.installed-test
	@echo "==> Benchmark of speed and memory"
	@TORCH_PIP_FLAGS="$(TORCH_PIP_FLAGS)" $(BIN)/python benchmarks/speed/bench.py $(BENCH_FLAGS)

# Rounds of federated training, beside loops over clients, pfl-research and Flower. As long as `bench`.
bench-federated: $(VENV)/.installed-test
	@echo "==> Benchmark of federated rounds"
	@TORCH_PIP_FLAGS="$(TORCH_PIP_FLAGS)" $(BIN)/python benchmarks/federated/bench.py $(BENCH_FLAGS)

# ---- the rest ---------------------------------------------------------------------------------------

# Strict: a warning is an error, and so is a public name that the page of the API leaves out.
docs: $(VENV)/.installed-docs
	@echo "==> Building the documentation into site/"
	@# With `--quiet`, `--strict` would count no warning.
	@output=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict 2>&1) || \
	    { echo "$$output"; exit 1; }

clean:
	rm -rf $(VENV) $(TFP_VENV) $(FLOWER_VENV) $(OLDEST_VENV) $(PEERS_VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
