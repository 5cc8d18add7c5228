# Sourced by the scripts beside it: uv reads no pip configuration, so a mirror that pip was told of is passed on.
# Usage: pip_index PYTHON
pip_index() {
  index=${UV_DEFAULT_INDEX:-$("$1" -m pip config get global.index-url 2> /dev/null || echo "${PIP_INDEX_URL:-}")}
  [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
}
