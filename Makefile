# Two commands for a newcomer: `make demo` and `make test`. Each sets everything up; a second call re-uses it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready

# Real data sets for tests and experiments, where they lie beside the checkout.
ifneq ($(wildcard ../shared/data),)
export LEXFED_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo pictures test test-slow test-docs test-deployment test-browser federation bench docs papers results format clean

demo: $(READY)
	$(BIN)/lexfed demo

test: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: $(VENV)/ready-dev
	$(BIN)/pytest -m slow

# real SuperLinks and SuperNodes on loopback, with TLS and node keys; one of these is in `test`
test-deployment: $(VENV)/ready-dev
	$(BIN)/pytest -m deployment tests/deployment

# a real browser opens the pages; installs chromium where Debian's packages can be had
test-browser: $(VENV)/ready-browser
	LEXFED_BROWSER=$$(command -v chromium) $(BIN)/pytest tests/browser

# the pictures in README and docs, as a browser shows the demo
pictures: $(VENV)/ready-browser
	LEXFED_BROWSER=$$(command -v chromium) $(BIN)/python tools/pictures.py

# beside the peers, interleaved, on identical work; they get environments of their own in .bench/
# what was interrupted goes on; BENCH="--only classifier --repeats 1", BENCH=--fresh
bench: $(VENV)/ready-dev
	$(BIN)/python benchmarks/speed --envs .bench $(BENCH)

# three organisations on this machine: trains, kills one, brings it back
federation: $(VENV)/ready-dev
	$(BIN)/python tools/federation.py

# what is made from the code and from result files, then the site, in site/
docs: $(VENV)/ready-docs
	$(BIN)/python -m lexfed.experiment.reference > docs/.configuration.md
	mv docs/.configuration.md docs/configuration.md
	$(BIN)/python tools/house.py graph docs/rooms.svg
	$(BIN)/python -m tools.paper_tables
	$(BIN)/python -m tools.results_page
	$(BIN)/python tools/notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# the papers' tables and figures, the cheapest first; what is done is skipped, what was killed goes on
# SCALE=quick | machine | paper, PAPERS="--only ID", "--price", "--check", "--ray ADDRESS", "--workers 2"
SCALE ?= machine
papers: $(VENV)/ready-dev
	$(BIN)/python -m experiments.papers --scale $(SCALE) $(PAPERS)

# RESULTS.md and the tables of docs/papers, from result files
results: $(VENV)/ready-dev
	$(BIN)/python -m tools.paper_tables
	$(BIN)/python -m tools.results_page

# every command and every block of code of README and docs, every notebook, every link
test-docs: $(VENV)/ready-docs
	$(BIN)/pytest -n 2 --dist worksteal -m docs tests/docs

format: $(VENV)/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/ready-dev: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,flower,hub,minilm,ray,tensorboard,wordsim]'
	touch $@ $(READY)

$(VENV)/ready-docs: $(VENV)/ready-dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

$(VENV)/ready-browser: $(VENV)/ready-dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	command -v chromium || (apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core)
	touch $@

clean:
	rm -rf $(VENV) runs site .notebooks .mypy_cache .ruff_cache .pytest_cache .hypothesis
