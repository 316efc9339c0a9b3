#!/usr/bin/env bash
# Install the built files as users do, and run README's program, away from the source:
#   packaging/check.sh DIST PYTHON...    such as packaging/check.sh dist python3.11 python3.13
# The wheel in an empty environment of each Python, by pip and, where it is installed, by uv; the sdist in the first. With
# EXAMPLES=1 then the wheel with extras, of which PyTorch is some GB: a reproduction, and the code of the adapters' pages.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
dist="$(cd "$1" && pwd)"
shift
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"

# What the cells of a page and its blocks of Python say, as one program.
code() {
  awk '/^```(\{code-cell\}|python)$/ {on = 1; next} /^```$/ {on = 0} on && /^---$/ {head = !head; next}
    on && !head && !/^%/' "$root/$1"
}

# The environment's Python, after an installation into it.
check() {
  "$1" program.py
  "$1" -c 'import gpzoo; from importlib.metadata import version; assert gpzoo.__version__ == version("gpzoo")'
  rm -rf env
}

code README.md | sed 's/svi, 1500,/svi, 100,/' > program.py
code docs/how_to/scikit_learn.md > sklearn_page.py
code docs/how_to/bayesian_optimisation.md > botorch_page.py
for python in "$@"; do
  "$python" --version
  "$python" -m venv env && env/bin/python -m pip install -q "$dist"/gpzoo-*.whl
  env/bin/python -m pip check
  check env/bin/python
  if command -v uv > /dev/null; then
    uv venv -q --python "$(command -v "$python")" env && uv pip install -q --python env/bin/python "$dist"/gpzoo-*.whl
    check env/bin/python
  fi
  if [[ -n "${EXAMPLES:-}" ]]; then
    "$python" -m venv env && env/bin/python -m pip install -q "$(echo "$dist"/gpzoo-*.whl)[reproductions,sklearn,botorch]"
    env/bin/gpzoo reproduce convolutional rectangles --preset quick --output runs
    env/bin/gpzoo inspect runs
    env/bin/python sklearn_page.py
    MPLBACKEND=agg env/bin/python botorch_page.py
    check env/bin/python
  fi
done
"$1" -m venv env && env/bin/python -m pip install -q "$dist"/gpzoo-*.tar.gz
check env/bin/python
