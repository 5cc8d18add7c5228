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
export_set tested-without-torch.txt --prune torch
{ echo "$header" && echo uv | "$uv" pip compile --quiet --universal --generate-hashes --no-header --no-annotate -; } > uv.txt
mv tested.txt tested-without-torch.txt uv.txt "$here/"
