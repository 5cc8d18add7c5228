#!/bin/sh
# Makes the environment of `make demo` and `make test`. Usage: install.sh PYTHON VENV [TORCH]
#
# Without TORCH it installs exactly requirements/tested.txt, hashes checked. With TORCH (a requirement or a wheel, as pip
# takes it) torch comes first and the rest of the tested set after it, without requirements/torch.txt, which are torch
# and what only torch needs: no longer the tested set.
#
# Bytecode is compiled here, once, as pip does: where Python is told not to write any (PYTHONDONTWRITEBYTECODE, usual in
# containers), every process of a test would otherwise compile torch and transformers again, for ten seconds.
set -eu
python=$1 venv=$2 torch=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
log=$(mktemp)
rest=$(mktemp)
trap 'rm -f "$log" "$rest"' EXIT

fail() {
  rm -f "$venv/.dependencies"
  echo "thiefbench: $1" >&2
  exit 2
}

# A step whose output is shown only where it fails, above the one sentence that says what to do.
step() {
  if "$@" > "$log" 2>&1; then return; fi
  tail -n 15 "$log" >&2
  if grep -qi 'no space left' "$log"; then
    fail "The disk is full. Free some space (about 10 GB; 2 GB with TORCH=\"torch==VERSION\" of a CPU build) and run the same command again."
  fi
  if grep -qiE 'connection|connect error|name resolution|dns|timed? ?out|unreachable|proxy|certificate|error sending request|failed to fetch|no matching distribution' "$log"; then
    fail "The package index did not answer as expected. Check the network (behind a mirror or proxy: PIP_INDEX_URL, HTTPS_PROXY) and run the same command again."
  fi
  fail "The step '$*' failed; its last lines stand above."
}

[ -n "$python" ] || fail "Python 3.11 or newer is needed and none was found. Install one, or name it: make PYTHON=/path/to/python3 ..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || fail "'$python' is not Python 3.11 or newer. Name one that is: make PYTHON=/path/to/python3 ..."
"$python" -c 'import ensurepip, venv' 2> /dev/null || fail "'$python' cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv. Then run the same command again."

needed=10
[ -z "$torch" ] || needed=2
mkdir -p "$venv" || fail "The folder '$venv' cannot be made here. Choose another place: make VENV=/path/to/folder ..."
free=$(df -Pk "$venv" | awk 'NR == 2 {print int($4 / 1048576)}')
[ "$free" -ge "$needed" ] || fail "$free GB are free in '$venv', and about $needed GB are needed. Free some space, or choose another place: make VENV=/path/to/folder ..."

echo "Installing into $venv (once; a few minutes)"
step "$python" -m venv --clear "$venv"
bin=$venv/bin
step "$bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$here/uv.txt"
. "$here/index.sh"
pip_index "$bin/python"
if [ -n "$torch" ]; then
  step "$bin/python" -m pip install --quiet --disable-pip-version-check "$torch"
  # A requirement begins with its name; its hashes are on the lines below.
  awk 'NR == FNR {left_out[$1]; next} /^[a-z0-9]/ {split($1, name, "=="); skip = name[1] in left_out} !skip' \
    "$here/torch.txt" "$here/tested.txt" > "$rest"
  step "$bin/uv" pip install --quiet --compile-bytecode --python "$bin/python" --no-deps --require-hashes -r "$rest"
else
  step "$bin/uv" pip install --quiet --compile-bytecode --python "$bin/python" --require-hashes -r "$here/tested.txt"
fi
echo "$torch" > "$venv/.torch"
