#!/usr/bin/env bash
# Install the built files as users do, and run README's program, away from the source:
#   packaging/check.sh DIST PYTHON...    such as packaging/check.sh dist python3.11 python3.13
# The wheel in an empty environment of each Python, by pip and, where it is installed, by uv; the sdist in the first.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
dist="$(cd "$1" && pwd)"
shift
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
sed -n '/^```python$/,/^```$/p' "$root/README.md" | sed '/^```/d; s/svi, 1500,/svi, 100,/' > "$work/program.py"
cd "$work"

# The environment's Python, after an installation into it.
check() {
  "$1" program.py
  "$1" -c 'import gpzoo; from importlib.metadata import version; assert gpzoo.__version__ == version("gpzoo")'
  rm -rf env
}

for python in "$@"; do
  "$python" --version
  "$python" -m venv env && env/bin/python -m pip install -q "$dist"/gpzoo-*.whl
  env/bin/python -m pip check
  check env/bin/python
  if command -v uv > /dev/null; then
    uv venv -q --python "$(command -v "$python")" env && uv pip install -q --python env/bin/python "$dist"/gpzoo-*.whl
    check env/bin/python
  fi
done
"$1" -m venv env && env/bin/python -m pip install -q "$dist"/gpzoo-*.tar.gz
check env/bin/python
