# Everything a user or a contributor runs. Each target makes the environment first if it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow lint format bench wheel clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/ready
	$(BIN)/recombine reproduce fuzzy-logic --scale tiny --out runs/demo --report report.html

test: lint
	$(BIN)/python -m pytest

test-slow: $(VENV)/ready
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/ready
	$(BIN)/recombine bench

wheel: $(VENV)/ready
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist runs report.html .pytest_cache .ruff_cache
