# The two commands a reader needs: `make demo` and `make test`. Each sets itself up first, in a .venv of
# its own, on any machine with make and Python 3.11 or newer.

# The first of these that is new enough makes the .venv; `make PYTHON=/path/to/python setup` names another.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Most tests wait for other processes, so that two cores are busy with five of them at once.
JOBS ?= 5
# Tests start hundreds of processes; without what Python keeps compiled each would compile the product anew.
COMPILED := env -u PYTHONDONTWRITEBYTECODE
# What `make test` hands on to pytest, for example `make test ARGS='-k breaker'`.
ARGS ?=

.PHONY: setup demo test sim lint format types fleet bench docs site pictures constraints clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv and install the product with everything its tests need

# `--group` needs pip 25.1, and a fresh venv may come with an older one, so pip is brought up to date first.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make setup: needs Python 3.11 or newer (PYTHON=/path/to/python names one)" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[server,otel]'
	@touch $@

demo: $(READY)  ## see a fleet learn one lesson: real processes on this machine, about 20 seconds
	$(BIN)/sickbay demo

test: $(READY)  ## every test, most of them against real nats-servers; under 5 minutes on two cores
	$(COMPILED) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

# Without SEED it goes on from seed 1 for SECONDS; SEED=7 is one history, SEED=1:500 so many.
SECONDS ?= 60
SEED ?=
sim: $(READY)  ## simulated fleets and all that can go wrong with them: SECONDS=600, or SEED=7 to run one again
	cd tests/support && ../../$(BIN)/python -m sim.run $(if $(SEED),$(SEED),--seconds $(SECONDS)) --jobs $(JOBS)

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)  ## bring the code into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## mypy --strict and basedpyright
	$(BIN)/mypy
	$(BIN)/basedpyright

FLEET_SEEDS ?= 3
FLEET_JOBS ?= 2
fleet: $(READY)  ## what a fleet gains together, against each router for itself and what others do; writes the tables
	cd tests/support && ../../$(BIN)/python -m fleet.run --seeds $(FLEET_SEEDS) --jobs $(FLEET_JOBS)

bench: $(READY)  ## the budget table with measured values (ARGS=--quick for a short one)
	$(BIN)/python bench/run.py $(ARGS)

docs: $(READY)  ## make the tables of docs/ anew that come from the code
	$(BIN)/python docs/tables.py

site: $(READY)  ## the documentation as web pages in build/site; the same files read well without
	$(BIN)/zensical build --clean --strict

pictures: $(READY)  ## make the pictures of docs/ anew from the running product; needs chromium
	$(BIN)/python docs/pictures.py

constraints: $(READY)  ## write down the versions that are installed now
	@{ echo '# Versions that were installed and tested together, everything transitive included. Made by `make constraints`.'; \
	   $(BIN)/python -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9_.-]+==' | sort -f; } > constraints.txt.new
	@mv constraints.txt.new constraints.txt && touch $(READY)

clean:  ## remove what the targets made, the .venv included
	rm -rf $(VENV) .venv-newest .tools .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache build dist
