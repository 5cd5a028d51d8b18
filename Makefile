# Everything a user or a contributor runs. Each target makes the environment first if it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow foreign soak coverage lowest lint format bench claims check-claims docs cards notebooks lock licences wheel wheel-native dist clean

# the demo needs the package alone; everything else also the tools of development
INSTALL := $(BIN)/python -m pip install -qq --constraint constraints.txt --editable

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(VENV)/dev: $(VENV)/ready
	$(INSTALL) '.[dev]'
	touch $@

demo: $(VENV)/ready
	$(BIN)/recombine reproduce demo --jobs 2 --out runs/demo --report report.html

# one process a core, each with one thread
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto

test: lint
	$(PYTEST)

test-slow: $(VENV)/dev
	$(PYTEST) -m slow

# other people's tests of attention and language models; pip fetches the packages that hold them into build/foreign
foreign: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/foreign.py --page docs/compatibility.md

# faults, abuse and load, about 20 minutes of CPU time: kills, full disks, damaged files; its numbers go into docs/reliability.md
SOAK := $(CURDIR)/build/soak
soak: $(VENV)/dev
	rm -rf $(SOAK) && mkdir -p $(SOAK)
	failed=0; \
	RECOMBINE_RECOVERY_LOG=$(SOAK)/recovery.jsonl $(PYTEST) -m 'slow or not slow' --junitxml $(SOAK)/tests.xml tests/faults || failed=1; \
	$(BIN)/python docs/write_reliability.py $(SOAK) || failed=1; \
	exit $$failed

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev
	mkdir -p build && $(BIN)/recombine bench --json > build/bench.json && mv build/bench.json benchmarks/results.json
	$(BIN)/python benchmarks/growth.py --out benchmarks/results.json
	$(BIN)/python benchmarks/generators.py --out benchmarks/results.json
	$(BIN)/python benchmarks/charts.py benchmarks/results.json docs/images

# the card of claims, and every table and figure of the documentation that comes from results/; adds the finished runs of RUNS
RUNS ?= runs
CLAIM_PAGES = --page docs/claims.md $$(grep -lE '<!-- (claims: begin|results: )' README.md docs/*.md)
claims: $(VENV)/ready
	$(BIN)/recombine reproduce claims --out $(RUNS) --figures docs/images --quiet \
	  $(CLAIM_PAGES) > /dev/null

# recomputes every number of these pages from results/, which has the sums of every seed and composition; writes nothing
check-claims: $(VENV)/ready
	$(BIN)/recombine reproduce claims --check $(CLAIM_PAGES)

# the documentation site, in build/site
docs: $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# the cards of the tasks in docs/tasks, with their pictures and numbers
cards: $(VENV)/ready
	$(BIN)/python docs/make_task_cards.py

# the tutorials as notebooks, in build/notebooks
notebooks: $(VENV)/dev
	mkdir -p build/notebooks
	for file in docs/tutorials/*.py; do $(BIN)/jupytext --quiet --to ipynb --output build/notebooks/$$(basename $$file .py).ipynb $$file; done

coverage: $(VENV)/dev
	$(PYTEST) --cov=recombine --cov-report=term

# the tests with the lowest version of every dependency that pyproject.toml allows
lowest: $(VENV)/ready
	$(BIN)/python packaging/lowest_versions.py

# the hashes of the pinned versions; `packaging/lock_hashes.py --check` only compares
lock: $(VENV)/ready
	$(BIN)/python packaging/lock_hashes.py

# the licences of everything in the environment
licences: $(VENV)/ready
	$(BIN)/python docs/list_licences.py > docs/licences.md

wheel: $(VENV)/dev
	$(BIN)/python -m build --wheel

# besides the pure wheel: one with kernels for x86-64-v3 and v4, for machines without a compiler
wheel-native: $(VENV)/dev
	$(BIN)/python packaging/build_native_wheel.py

dist: $(VENV)/dev
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz

clean:
	rm -rf $(VENV) build dist runs report.html .pytest_cache .ruff_cache
