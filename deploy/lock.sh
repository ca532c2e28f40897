#!/usr/bin/env bash
# Resolves pyproject.toml into deploy/locks/: cpu and gpu (everything, for `make setup`), and what the
# images hold: base (gateway and reward service: no torch, no vLLM), train-cpu and train-gpu (rollout
# worker and learner).
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

# compile NAME HEADING FLAG...: writes deploy/locks/NAME.txt
compile() {
    local name=$1 heading=$2
    shift 2
    "$uv" pip compile pyproject.toml --quiet --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --no-annotate --no-header "$@" \
        --output-file "$scratch/$name.txt" >/dev/null
    { echo "# $heading Made by \`make lock\`; install with --no-deps."; cat "$scratch/$name.txt"; } \
        >"deploy/locks/$name.txt"
    echo "deploy/locks/$name.txt: $(grep -c == "deploy/locks/$name.txt") packages"
}

compile cpu "Everything \`make setup\` installs on a machine without a GPU." \
    "${places[@]}" --extra cpu --extra track --extra dev \
    --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec
compile gpu "Everything \`make setup\` installs on a machine with an NVIDIA GPU." \
    --extra gpu --extra track --extra dev
# The same versions as above, which the tests run against.
compile base "The gateway and the reward service: no torch, no vLLM." \
    "${places[@]}" --constraint deploy/locks/cpu.txt
compile train-cpu "The image of rollout worker and learner on a machine without a GPU." \
    "${places[@]}" --extra cpu --constraint deploy/locks/cpu.txt \
    --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec
compile train-gpu "The image of rollout worker and learner on a machine with NVIDIA GPUs." \
    --extra gpu --constraint deploy/locks/gpu.txt
