# make test    check style and run the tests in .venv, which is made on the first call
# make stress  every way into the library against 2,550 odd arguments, and other generated cases at full count
# make demo    a few minutes of training: the first experiment of the convolutional paper, small
# make lint    style only
# make clean   remove what the other targets made
PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
STAMP := $(VENV)/installed
UV := $(shell command -v uv 2>/dev/null)

.PHONY: test stress lint demo clean

test: lint
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal

stress: $(STAMP)
	GPZOO_STRESS=1 $(VENV)/bin/python -m pytest -s tests/robustness
	GPZOO_STRESS=1 $(VENV)/bin/python -m pytest -s -m stress

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

demo: $(STAMP)
	$(VENV)/bin/gpzoo reproduce convolutional rectangles --variant weighted --preset quick --output runs/demo
	@echo "Figures:" && ls runs/demo/*.png

clean:
	rm -rf $(VENV) .compiled build *.egg-info .pytest_cache .ruff_cache .hypothesis runs/demo

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "gpzoo needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>&1)." \
	    "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
ifneq ($(UV),)
	test -x $(VENV)/bin/pip || uv venv --clear --seed --python "$$(command -v $(PYTHON))" $(VENV)
	uv pip install --python $(VENV)/bin/python -e '.[dev]'
else
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -e '.[dev]'
endif
	touch $@
