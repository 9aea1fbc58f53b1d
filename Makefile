# Everything people and CI do here. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
NATIVE := $(VENV)/.native
READY := $(VENV)/.ready
PURE := tests/stats tests/work tests/wire tests/cluster tests/control \
  tests/ports/test_partition_port.py tests/ports/test_source_port.py tests/ports/test_worker_link_port.py
SEED ?= 1
KIND ?= elections
SECONDS ?= 600
FRAMES ?= 1000000
ANSWERS ?= 1000000
MINUTES ?= 25
SAMPLE ?= 400
OLD ?= HEAD
NEW ?= .
SHELL := /bin/sh
# Where this is set, every process compiles all it loads: half of what a test with processes costs.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help

.PHONY: help demo test test-waiting test-computing test-fast test-all check fix sizes bench-truth bench-compare bench-load bench-wheels bench-cluster bench-idle bench-journey bench-members bench-jobs bench-tasks bench-million fuzz sim sim-long ablation mutants chaos nft promtool rules soak-tasks docs clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Set-up happens once and again when the dependencies change: first what running needs, which is all that `make demo` waits for.
$(BIN)/pip:
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	 echo "$(PYTHON) cannot make a virtual environment: Talka needs Python 3.11 or newer with the module venv"; \
	 echo "(Debian and Ubuntu: sudo apt install python3-venv; another Python: make demo PYTHON=python3.12)"; exit 1; }

$(RUNTIME): pyproject.toml hatch_build.py | $(BIN)/pip
	@echo "setting up $(VENV) (once)…"
	@TALKA_NO_NATIVE=apart $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[fast]'
	@touch $@

# The native engine is compiled beside the Python sources, and again when its own change. Without a compiler it is left out.
$(NATIVE): native/compile.py $(wildcard native/*.c native/*.h) | $(BIN)/pip
	@$(BIN)/python native/compile.py
	@touch $@

# Then what developers need.
$(READY): $(RUNTIME) | $(NATIVE)
	@echo "installing what tests and checks need (once)…"
	@TALKA_NO_NATIVE=apart $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: ## run a real load test on the bundled server: live view, summary, HTML report
	@$(MAKE) --no-print-directory -j 2 $(RUNTIME) $(NATIVE)
	@mkdir -p build
	@$(BIN)/talka demo --html build/demo.html

# What is marked `long` shows again, with more processes or other histories, what another test shows.
MOST := not long
SERIAL = $(shell grep -rl --include='test_*.py' 'pytest.mark.serial' tests)
COMPUTED := build/computing.log

test: $(READY) ## every rule, every promise with real processes, and the stored histories (4 to 8 minutes on 2 cores)
	@mkdir -p build
	@# What only computes takes what the others leave of the processors.
	@nice -n 19 $(MAKE) --no-print-directory test-computing > $(COMPUTED) 2>&1 & computing=$$!; \
	 $(MAKE) --no-print-directory test-waiting || { kill $$computing 2> /dev/null; exit 1; }; \
	 wait $$computing || { cat $(COMPUTED); exit 1; }; grep -E "^TOTAL|passed" $(COMPUTED)

# Most of these wait for other processes.
test-waiting: $(READY)
	@$(BIN)/python -m pytest -q -m "not serial and ($(MOST))" -n 4 --dist worksteal tests $(PURE:%=--ignore=%) --ignore=tests/sim
	@$(BIN)/python -m pytest -q -m "serial and ($(MOST))" $(SERIAL)

# The simulator, properties, and the examples, which alone cover the pure half. They wait for a processor, for as
# long as others use it: that is no standstill, which the usual five minutes are for.
COMPUTING := -q -n 2 --timeout 900 -p tests.frozen
test-computing: $(READY)
	@$(BIN)/python -m pytest $(COMPUTING) -m "$(MOST)" tests/sim
	@$(BIN)/python -m pytest $(COMPUTING) -m "hypothesis and ($(MOST))" $(PURE)
	@$(BIN)/python -m pytest $(COMPUTING) -m "not hypothesis and ($(MOST))" $(PURE) --cov --cov-report=term --no-cov-on-fail

test-fast: $(READY) ## the pure half only, for the inner loop
	@$(BIN)/python -m pytest -q -n 2 $(PURE)

# Two runs at a time: all tests from the sources (the native engine, uvloop, fresh histories); and from the built wheel those
# of `make test` that do more than compute, with the engine in Python, the loop of asyncio, and processes that are started
# by their name.
test-all: $(READY) nft promtool ## everything, fresh histories, both engines, both event loops, and the built wheel
	@rm -rf build/wheel && mkdir -p build/wheel
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	@$(PYTHON) -m venv build/wheel/venv
	@build/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls build/wheel/*.whl)[dev]"
	@build/wheel/venv/bin/python -m pip uninstall --quiet --yes uvloop
	@TALKA_TEST_BY_NAME=1 TALKA_TEST_ENGINE=python $(MAKE) --no-print-directory test-waiting BIN=build/wheel/venv/bin \
	  > build/wheel/tests.log 2>&1 & wheel=$$!; \
	 $(MAKE) --no-print-directory test MOST="long or not long" || { kill $$wheel 2> /dev/null; exit 1; }; \
	 wait $$wheel || { cat build/wheel/tests.log; exit 1; }; grep "passed" build/wheel/tests.log

check: $(READY) ## format, lint, types, and the map of the package
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy src tests/sim/checkers tests/sim/hostile_node.py tests/sim/sampler.py tests/mutants
	@TALKA_NATIVE_STRICT=1 $(BIN)/python native/compile.py
	@$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_public_names.py

fix: $(READY) ## format, and mend what the linter can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

sim: $(READY) ## replay one simulated history, verbosely: SEED=n, KIND=elections, membership, jobs, dags …
	@$(BIN)/python -m tests.sim replay $(SEED) --kind $(KIND)

sim-long: $(READY) ## new seeds for SECONDS=600, and a thousand members once
	@$(BIN)/python -m tests.sim long --seconds $(SECONDS)

ablation: $(READY) ## take each safeguard of the cluster away and see what breaks; writes docs/ablation.md
	@$(BIN)/python -m tests.sim ablation --write

mutants: MINUTES = 60
mutants: $(READY) ## change the code in small ways: does a test notice? writes docs/mutants.md: SAMPLE=400, MINUTES=60, SEED=n, ROOM=, ONLY=
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.mutants --seed $(SEED) --sample $(SAMPLE) --minutes $(MINUTES) --write \
	 $(if $(ROOM),--room $(ROOM)) $(if $(ONLY),--only '$(ONLY)')

bench-truth: $(READY) ## are the numbers true? exact counts, delays, a stalled server, memory, on both engines (about 6 minutes): ENGINE=native
	@$(BIN)/python benchmarks/truth.py $(ENGINE)

bench-compare: $(READY) ## does talka compare call noise noise? 20 equal pairs, 4 unequal ones (about 5 minutes)
	@$(BIN)/python benchmarks/compare.py

bench-load: $(READY) ## how fast is one core? both engines, wrk and others on nginx (Debian packages, installed when root; 10 minutes)
	@$(BIN)/python benchmarks/load.py

bench-wheels: $(READY) ## does a change cost anything? two wheels in turns on a server in C (30 minutes): OLD=HEAD, NEW=. (wheels or revisions)
	@$(BIN)/python benchmarks/wheels.py $(OLD) $(NEW)

bench-cluster: $(READY) ## does a change cost a cluster anything? bench-jobs and bench-tasks by two revisions in turns (20 minutes): OLD=HEAD, NEW=.
	@$(BIN)/python benchmarks/cluster_wheels.py $(OLD) $(NEW)

bench-idle: $(READY) ## what does a node at rest cost? clusters of two revisions side by side (5 minutes): OLD=HEAD, NEW=.
	@$(BIN)/python benchmarks/idle.py $(OLD) $(NEW)

bench-journey: $(READY) ## one journey beside k6 and Locust: lines of code, counts against the server's, CPU (about 2 minutes)
	@$(BIN)/python benchmarks/journey.py

bench-members: $(READY) ## members as real processes beside Debian's serf: deaths, idle cost, leaders (about 40 minutes)
	@$(BIN)/python benchmarks/members.py

bench-jobs: $(READY) ## what does a cluster cost? CPU beside the cores, a thousand workers' reports, uneven starts (about 10 minutes)
	@$(BIN)/python benchmarks/jobs.py

bench-tasks: $(READY) ## what does a task cost? beside Celery, Dramatiq, Taskiq, Procrastinate and BullMQ (about 15 minutes); a chain also beside AGAINST=PYTHON, of another checkout
	@$(BIN)/python benchmarks/tasks.py $(if $(AGAINST),--against $(AGAINST))

bench-million: $(READY) ## a job of a million tasks: streamed, killed in the middle, started again (about 2 minutes)
	@$(BIN)/python benchmarks/million.py

chaos: $(READY) nft ## kill, stop and cut off processes of a real cluster, job after job: MINUTES=25, SEED=n
	@$(BIN)/python -m tests.e2e.chaos --minutes $(MINUTES) --seed $(SEED)

soak-tasks: MINUTES = 10
soak-tasks: $(READY) ## kill manager, workers and cores while 100,000 tasks run; store and ledger compared: MINUTES=10, SEED=n
	@$(BIN)/python -m tests.e2e.soak --minutes $(MINUTES) --seed $(SEED)

# Silent cuts need Debian's nftables. Whoever cannot have it is told what is left out.
nft:
	@command -v nft > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	 && { apt-get install -y nftables || { apt-get update && apt-get install -y nftables; }; } > /dev/null 2>&1; } \
	 || echo "nft is not here and cannot be installed: cuts of the network are left out"

rules: $(READY) promtool ## are the alerts of deploy/prometheus right? names against a real scrape, each one fired
	@$(BIN)/python -m pytest -q tests/deploy/test_rules.py

# Debian has promtool in its package of Prometheus, which is not to be started here.
promtool:
	@command -v promtool > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	 && { RUNLEVEL=1 apt-get install -y --no-install-recommends prometheus \
	  || { apt-get update && RUNLEVEL=1 apt-get install -y --no-install-recommends prometheus; }; } > /dev/null 2>&1; } \
	 || echo "promtool is not here and cannot be installed: that every alert fires is left out"

fuzz: $(READY) ## a million frames through every decoder, a million answers through both engines: FRAMES=n, ANSWERS=n, SEED=n
	@$(BIN)/python -m tests.wire.fuzz --frames $(FRAMES) --seed $(SEED)
	@$(BIN)/python -m tests.engine.response_fuzz --answers $(ANSWERS) --seed $(SEED)

docs: $(READY) ## write the pages that are made from code: commands, API, Python names, errors, state machines, metrics
	@$(BIN)/python docs/cli_reference.py > docs/cli.md
	@$(BIN)/python docs/python_reference.py > docs/python.md
	@$(BIN)/python docs/errors_reference.py > docs/errors.md
	@$(BIN)/python docs/state_machines_reference.py > docs/state-machines.md
	@$(BIN)/python docs/metrics_reference.py > docs/metrics.md
	@$(BIN)/python -m talka.web.openapi > docs/openapi.json

sizes: $(READY) ## the largest files and classes, folders that are full, and what is written twice
	@$(BIN)/python benchmarks/sizes.py

clean: ## remove the virtual environment, the compiled engine and caches
	@rm -rf $(VENV) src/talka/_native.*.so build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
