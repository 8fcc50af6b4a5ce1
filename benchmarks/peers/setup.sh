#!/usr/bin/env bash
# Make the environment of one version of trl, benchmarks/out/.venv-trl-VERSION, unless it exists with the same
# pins. Print the path of its Python. Wheels are also searched in the places of PIP_FIND_LINKS, as pip does: a
# place with PyTorch's CPU build makes the environment several GB smaller.
set -euo pipefail

version=${1:?"setup.sh VERSION: expected a version of trl, 1.12.0 (PPO) or 1.16.0 (GRPO, RLOO)"}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../.." && pwd)
pins="$here/requirements-trl.txt"
venv="$project/benchmarks/out/.venv-trl-$version"

uv="$project/.venv/bin/uv"
[[ -x $uv ]] || uv=$(command -v uv) || {
  echo "setup.sh: no uv in .venv/bin nor on the PATH; install the project first, or: pip install uv" >&2
  exit 2
}

if ! cmp --silent "$pins" "$venv/installed.txt"; then
  links=()
  for place in ${PIP_FIND_LINKS:-}; do links+=(--find-links "$place"); done
  "$uv" venv --quiet --clear --python 3.11 "$venv"
  "$uv" pip install --quiet --python "$venv/bin/python" "${links[@]}" --requirements "$pins" "trl==$version"
  cp "$pins" "$venv/installed.txt" # last, so that an interrupted installation is repeated
fi
echo "$venv/bin/python"
