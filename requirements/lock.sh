#!/bin/sh
# Writes the tested set anew from pyproject.toml: the newest versions that its ranges admit, each with its hashes.
# `make lock` calls it with the uv of the environment; nothing in these files is written by hand.
set -eu
uv=$1
here=$(cd "$(dirname "$0")" && pwd)
. "$here/index.sh"
pip_index "$(dirname "$uv")/python"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# GenRL is left out: hydra, which it needs, holds antlr at 4.9 for everything else in the same set.
sed '/^genrl = /d' "$here/../pyproject.toml" > "$work/pyproject.toml"
cd "$work"
"$uv" lock --quiet --upgrade
header='# Made by `make lock`: the versions that `make demo` and `make test` install. Do not edit.'
export_set() {
  file=$1
  shift
  { echo "$header" && "$uv" export --quiet --frozen --no-emit-project --all-extras --no-header --no-annotate "$@"; } > "$work/$file"
}
export_set tested.txt
"$(dirname "$uv")/python" "$here/hashes.py" uv.lock tested.txt
export_set rest.txt --prune torch
# Torch and what only torch needs: install.sh leaves these out where another torch than the tested one is chosen.
names() { sed -n 's/^\([a-z0-9][^=]*\)==.*/\1/p' "$1" | sort -u; }
names tested.txt > names.txt
names rest.txt > rest-names.txt
{ echo '# Made by `make lock`: torch and what only torch needs. Do not edit.' && comm -23 names.txt rest-names.txt; } > torch.txt
{ echo "$header" && echo uv | "$uv" pip compile --quiet --universal --generate-hashes --no-header --no-annotate -; } > uv.txt
mv tested.txt torch.txt uv.txt "$here/"
