# Everything a checkout needs, from nothing. `make setup` needs a package registry once; nothing after it does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q

# Where an environment forbids it, every process of tests compiles every changed module and test anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-sentiment test test-long test-fast check format bench bench-learning bench-plans clean-data

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# In the order they are named: two installs into one environment would be in each other's way.
.NOTPARALLEL:

BASE := broker,sklearn,onnx,learn,plan,insights,dev
ALL := $(BASE),bench,torch
UNREACHED := pip could not install what is needed (above). It needs a package registry, once: a mirror is named by \
	PIP_INDEX_URL, a proxy by HTTPS_PROXY; then repeat the command.
# The sources are compiled as pip does for a wheel: each process starts half a second sooner. What others wrote is compiled
# on all cores, which pip does not, and without their tests; some files are of a newer Python and cannot be.
define install
	$(PYTHON) -m venv $(VENV)
	@echo "pip install -c constraints.txt -e '.[$(1)]'"
	@$(PIP) install --no-compile -c constraints.txt -e '.[$(1)]' || { echo "$(UNREACHED)" >&2; exit 1; }
	$(BIN)/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true
	$(BIN)/python -m compileall -q streamserve workers
endef

$(VENV)/.base: pyproject.toml constraints.txt
	$(call install,$(BASE))
	touch $@

$(VENV)/.bench: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[bench]'
	touch $@

$(VENV)/.all: pyproject.toml constraints.txt
	$(call install,$(ALL))
	touch $(VENV)/.base $(VENV)/.bench $@

setup: $(VENV)/.base  ## install, fetch Kafka's jars and the data sets, train the example models
	$(BIN)/python -m streamserve.plan.kernels & kernels=$$!; \
	$(BIN)/streamserve broker prepare && $(BIN)/python -m streamserve.datasets && $(BIN)/python -m workers.train; \
	code=$$?; wait $$kernels && exit $$code

demo: setup  ## real images through a real Kafka: models break, the system learns around it (DEMO_SECONDS=90)
	$(BIN)/python -m examples.demo --seconds $${DEMO_SECONDS:-90}

demo-sentiment: setup  ## real texts of four domains through a real Kafka: learnt states by context (SENTIMENT_SECONDS=90)
	$(BIN)/python -m examples.sentiment --seconds $${SENTIMENT_SECONDS:-90}

# Several processes share the cores: threads of linear algebra and OpenMP beside them would wait for each other, busily.
BESIDE := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

test: $(VENV)/.all setup  ## every test, with a real broker and torch
	$(BESIDE) -n 3 -m '(not broker or beside) and not long' --durations=20
	$(BIN)/python -m pytest -m 'broker and not beside and not long' --durations=20

test-long: $(VENV)/.base  ## what takes hours at worst: every planted fault hunted from seed 0
	$(BIN)/python -m pytest -m long

test-fast: $(VENV)/.base  ## the tests that need neither broker nor torch
	$(BESIDE) -n 3 -m 'not broker and not torch and not slow and not long' --hypothesis-profile=fast

check: $(VENV)/.base  ## format, lint, types, import contracts, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m streamserve.cli.reference --check
	$(BIN)/python -m streamserve.topics.publish --check topics

format: $(VENV)/.base  ## rewrite the sources as `check` wants them, and the generated files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m streamserve.cli.reference
	$(BIN)/python -m streamserve.topics.publish topics

bench: setup $(VENV)/.bench  ## throughput, CPU and latency beside a hand-written loop and Bytewax (BENCH=--quick)
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.tabular $(BENCH)

bench-learning: $(VENV)/.base  ## how well and how fast the policies learn, beside the numbers to reach; no broker
	$(BIN)/python -m benchmarks.learning

bench-plans: setup  ## white-box plans beside scikit-learn: time, memory, loading (SCALE=0.1 is a short run)
	$(BIN)/python -m benchmarks.plans --scale $${SCALE:-1}

clean-data: $(VENV)/.base  ## wipe what this project keeps outside the checkout (broker's data, caches) and the results
	$(BIN)/python -m streamserve.places --wipe
	rm -rf results
