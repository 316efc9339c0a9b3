# make test    check style, and run the quick tests in .venv, which is made on the first call: some minutes
# make test-all  that, types, and then the tests that are marked slow
# make slow    the tests that are marked slow, or a share of them: make slow SHARE=0/4 is a quarter
# make part    a fifth of the tests, for another Python: make part PYTHON=python3.12 VENV=.venv-3.12
# make lowest  the same fifth on the oldest NumPyro, JAX and ArviZ that pyproject.toml allows
# make stress  every way into the library against 2,850 odd arguments, and other generated cases at full count
# make planted  plant forty defects, one after the other, each of which the quick tests must find: five minutes
# make demo    a few minutes of training: the first experiment of the convolutional paper, small
# make browser  reports and the site in Chromium, which it looks at for errors, requests, contrast and width, with screenshots
# make bench   ours beside GPflow, GPyTorch, GPJax and others; each is in an environment of its own, or not run:
#              make bench GPFLOW_PYTHON=... GPYTORCH_PYTHON=... GPJAX_PYTHON=... PYMC_PYTHON=... [BENCH="--pairs 3"]
# make docs    the site, whose pages are run: build/docs/index.html; GPZOO_DOCS=quick make docs trains a tenth as long
# make lint    style and types only
# make size    files, lines of code, tests and their seconds, by folder
# make clean   remove what the other targets made
PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
STAMP := $(VENV)/installed
UV := $(shell command -v uv 2>/dev/null)

# Files that meet ArviZ, NumPyro and JAX where their versions differ.
PART := tests/test_golden.py $(addprefix tests/, gpzoo/test_platform.py models/test_zoo_exports.py) \
	$(addprefix tests/inference/test_, arviz.py guides_in_numpyro.py saved.py) \
	$(addprefix tests/inference/, fitted/test_functions.py fitted/test_prediction.py) \
	$(addprefix tests/inference/training/test_, checkpoints.py training.py)

.PHONY: test test-all slow part lowest stress planted lint types size demo browser docs bench clean

test: lint
	GPZOO_SHAPES=off $(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" --junitxml build/tests.xml

test-all: test types slow

slow: $(STAMP)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(if $(SHARE),--share $(SHARE))

part: $(STAMP)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(PART)

LOWEST := .venv-lowest

lowest: $(LOWEST)/installed
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(PART)

$(LOWEST)/installed: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	sed -nE 's/^ *"(numpyro|jax|jaxlib|arviz)>=([0-9.]+)".*/\1==\2/p' pyproject.toml > $(LOWEST)/versions
	$(LOWEST)/bin/python -m pip install -q -e '.[dev]' -c $(LOWEST)/versions
	touch $@

stress: $(STAMP)
	GPZOO_STRESS=1 $(VENV)/bin/python -m pytest --timeout 0 -s tests/robustness
	GPZOO_STRESS=1 $(VENV)/bin/python -m pytest --timeout 0 -s -m stress

planted: $(STAMP)
	$(VENV)/bin/python tests/robustness/planted.py

TYPING := build/typing/gpzoo

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# pyright, and an editor that reads its settings, find four of the package's folders through the links. It would ask
# PyPI at every run whether it is the newest.
types: $(STAMP)
	mkdir -p $(TYPING)
	for folder in inference models reproductions gpzoo/adapters; do ln -sfn ../../../$$folder $(TYPING)/$${folder##*/}; done
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

size: $(STAMP)
	@$(VENV)/bin/python packaging/size.py

demo: $(STAMP)
	$(VENV)/bin/gpzoo reproduce convolutional rectangles --variant weighted --preset quick --output runs/demo
	@echo "Figures:" && ls runs/demo/*.png
	@$(VENV)/bin/gpzoo inspect runs/demo

# Other reports too: make browser REPORTS="runs/demo/report.html"
browser: $(STAMP)
	GPZOO_BROWSER=build/browser GPZOO_REPORTS="$(REPORTS)" $(VENV)/bin/python -m pytest -s tests/inference/diagnosis/test_report.py \
	  tests/test_site.py
	@echo "Screenshots:" && ls build/browser/*.png

bench: $(STAMP)
	$(VENV)/bin/python benchmarks/all.py --output benchmarks/results/all.json $(BENCH)

docs: $(STAMP) $(VENV)/docs
	$(VENV)/bin/sphinx-build -j $(WORKERS) -W --keep-going -q -b html docs build/docs
	$(VENV)/bin/python docs/_ext/links.py build/docs
	@echo "The site: build/docs/index.html"

$(VENV)/docs: pyproject.toml
	$(if $(UV),$(UV) pip install --python $(VENV)/bin/python,$(VENV)/bin/python -m pip install -q) -e '.[docs]'
	touch $@

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
