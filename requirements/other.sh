#!/bin/sh
# An environment with other versions than the tested set. Usage: other.sh UV PYTHON VENV lowest-direct|highest
set -eu
uv=$1 python=$2 venv=$3 resolution=$4
cd "$(dirname "$0")/.."
. requirements/index.sh
pip_index "$(dirname "$uv")/python"
"$uv" venv --quiet --clear --seed --python "$python" "$venv"
rm -rf build ./*.egg-info
"$uv" pip install --quiet --python "$venv/bin/python" --resolution "$resolution" --upgrade --reinstall-package thiefbench --compile-bytecode '.[dev]'
rm -rf build ./*.egg-info
[ "$resolution" = highest ] || "$venv/bin/python" requirements/lower_bounds.py
"$uv" pip list --quiet --python "$venv/bin/python" | grep -E '^(torch|transformers|datasets|numpy|pyarrow|trl|ray|mypy|pytest) '
