#!/usr/bin/env bash
# Resolves pyproject.toml into deploy/locks/: cpu.txt and gpu.txt have everything that `make setup` installs.
# The images hold parts of it, which are marked behind each line: `base` (gateway and reward service: no torch,
# no vLLM) and `train` (rollout worker and learner).
#
# `uv` is the resolver because it resolves for a platform it does not run on; it is installed into a
# temporary environment, or taken from UV. Where pip finds the CPU build of torch through
# PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL, uv is told the same, but not for gpu: there a CPU build
# would win, as the later version.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
uv=${UV:-}
if [ -z "$uv" ]; then
    "${PYTHON:-python3}" -m venv "$scratch/uv"
    "$scratch/uv/bin/pip" install --quiet uv
    uv=$scratch/uv/bin/uv
fi

places=()
[ -n "${PIP_FIND_LINKS:-}" ] && places+=(--find-links "$PIP_FIND_LINKS")
[ -n "${PIP_EXTRA_INDEX_URL:-}" ] &&
    places+=(--extra-index-url "$PIP_EXTRA_INDEX_URL" --index-strategy unsafe-best-match)

# compile NAME FLAG...: resolves into $scratch/NAME.txt, for the Python of Debian 12: some packages ask for 3.11.5
compile() {
    local name=$1
    shift
    "$uv" pip compile pyproject.toml --no-emit-package headrace --quiet --python-version 3.11.2 \
        --python-platform x86_64-manylinux_2_28 --no-annotate --no-header "$@" \
        --output-file "$scratch/$name.txt" >/dev/null
}

# mark WORD NAME: prints standard input, with WORD behind each line that is in $scratch/NAME.txt too
mark() {
    awk -v word="$1" 'NR == FNR { part[$1]; next }
        $1 in part { $0 = $0 (/ # / ? " " : "  # ") word } { print }' "$scratch/$2.txt" -
}

# publish NAME HEADING: standard input becomes deploy/locks/NAME.txt
publish() {
    { echo "# $2 Made by \`make lock\`; install with --no-deps."; cat; } >"deploy/locks/$1.txt"
    echo "deploy/locks/$1.txt: $(grep -c == "deploy/locks/$1.txt") packages"
}

without=(--no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec)
compile cpu "${places[@]}" --extra cpu --extra track --extra dev "${without[@]}"
# A part has the versions of the whole, which the tests run against.
compile base "${places[@]}" --constraint "$scratch/cpu.txt"
compile train-cpu "${places[@]}" --extra cpu --constraint "$scratch/cpu.txt" "${without[@]}"
compile gpu --extra gpu --extra track --extra dev
compile train-gpu --extra gpu --constraint "$scratch/gpu.txt"

mark base base <"$scratch/cpu.txt" | mark train train-cpu |
    publish cpu "Everything \`make setup\` installs on a machine without a GPU."
mark train train-gpu <"$scratch/gpu.txt" |
    publish gpu "Everything \`make setup\` installs on a machine with an NVIDIA GPU."
