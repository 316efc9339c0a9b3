#!/usr/bin/env bash
# The files of a release, and what is new in it:
#   packaging/build.sh TAG DIST NOTES    such as packaging/build.sh v0.3.0 dist notes.md
# From what is committed, so that no other file gets in. Links lead to the repository at that tag, since an index of packages
# shows README alone.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
git -C "$root" archive HEAD | tar -x -C "$work"
home="$(sed -n 's/^Homepage = "\(.*\)"$/\1/p' "$work/pyproject.toml")"
if [[ -z "$home" ]]; then
  echo "pyproject.toml has no Homepage yet: python packaging/publish.py REPOSITORY SITE, and commit." >&2
  exit 1
fi
version="$(sed -n 's/^version = "\(.*\)"$/\1/p' "$work/pyproject.toml")"
if [[ "$1" != "v$version" ]]; then
  echo "The tag is $1, and pyproject.toml has version $version." >&2
  exit 1
fi
sed -i -E "s#(!\[[^]]*\]\()([^):]+\))#\1$home/raw/$1/\2#g; s#(\]\()([^):]+\))#\1$home/blob/$1/\2#g" "$work"/{README,CHANGELOG}.md
sed -n "/^## ${version//./\\.}/,/^## /p" "$work/CHANGELOG.md" | sed '/^## /d' > "$3"
python -m build --outdir "$2" "$work"
python -m twine check --strict "$2"/*
