#!/usr/bin/env bash
# Makes .venv with everything Headrace needs, from the lock file of a profile, once.
#
#   deploy/setup.sh [cpu|gpu]      without an argument: gpu if `nvidia-smi` works, else cpu
#
# PYTHON chooses the interpreter (3.11 or later). pip's own variables (PIP_EXTRA_INDEX_URL,
# PIP_FIND_LINKS, …) are passed on. Needs no root. Done again only if the lock, pyproject.toml, the
# profile, the interpreter or the folder of the checkout has changed.
set -euo pipefail
cd -P "$(dirname "$0")/.."

venv=.venv
log=$venv/setup.log

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

profile=${1:-}
if [ -z "$profile" ]; then
    if nvidia-smi >/dev/null 2>&1; then profile=gpu; else profile=cpu; fi
fi
lock=deploy/locks/$profile.txt
[ -f "$lock" ] || fail "there is no profile '$profile': use cpu or gpu (PROFILE=cpu make setup)"

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

python=${PYTHON:-}
if [ -n "$python" ]; then
    new_enough "$python" || fail "PYTHON=$python is not Python 3.11 or later"
else
    for candidate in python3 python3.11 python3.12 python3.13; do
        if new_enough "$candidate"; then python=$candidate; break; fi
    done
    [ -n "$python" ] || fail \
        "Python 3.11 or later is needed; found: $(python3 --version 2>&1 || echo none)." \
        "Debian 12, Ubuntu 24.04: apt install python3 python3-venv. Another one: PYTHON=/path/to/python3.11"
fi

# What was set up is known by everything it was made from.
wanted=$({
    echo "$profile"
    "$python" -c 'import sys; print(sys.version, sys.base_prefix)'
    cat "$lock" pyproject.toml headrace/pyproject.toml deploy/setup.sh
} | sha256sum | cut -d' ' -f1)
stamp=$venv/setup.stamp
# The commands in an environment name its folder: in a copied or moved checkout they would run the
# code of the old one. (pip quotes a path that is long or has blanks, in the second line.)
in_this_folder() {
    head -n 2 "$venv/bin/headrace" 2>/dev/null |
        grep -qF -e "#!$PWD/$venv/bin/" -e "\"$PWD/$venv/bin/"
}
is_done() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && in_this_folder &&
        "$venv/bin/python" -c '' 2>/dev/null
}
if is_done; then exit 0; fi

# One set-up at a time: two would break each other's environment. The lock is on a file that is
# there anyway, opened for writing because NFS locks no other.
exec 9>>pyproject.toml
command -v flock >/dev/null && { flock -n 9 || { echo "setup: another one runs, waiting for it"; flock 9; }; }
if is_done; then exit 0; fi
trap 'echo; echo "setup: interrupted; \`make setup\` goes on with what is there" >&2; exit 130' INT

echo "setup: profile $profile, $("$python" --version), into $venv (3 minutes and 4 GB the first time)"
began=$SECONDS

# An environment of another folder or interpreter, or a broken one, is made again; a sound one is
# updated.
if [ -e "$venv/bin/headrace" ] && ! in_this_folder; then
    echo "setup: $venv was made for another folder, so it is made again"
    rm -rf "$venv"
fi
same='import sys; sys.exit(sys.argv[1] != sys.version + sys.base_prefix)'
if ! "$venv/bin/python" -c "$same" "$("$python" -c 'import sys; print(sys.version + sys.base_prefix)')" 2>/dev/null; then
    [ ! -d "$venv" ] || [ -f "$venv/pyvenv.cfg" ] || fail "$venv is in the way: it is no virtual environment"
    rm -rf "$venv"
fi
pip=("$venv/bin/python" -m pip)
if ! "${pip[@]}" --version >/dev/null 2>&1; then
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        made=$("$python" -m venv "$venv" 2>&1) || fail "$python -m venv $venv:" "$made"
    elif "$python" -m virtualenv --version >/dev/null 2>&1; then
        made=$("$python" -m virtualenv --quiet "$venv" 2>&1) || fail "virtualenv $venv:" "$made"
    elif "$python" -c 'import venv, pip' 2>/dev/null && "$python" -m venv --without-pip "$venv"; then
        # Debian without python3-venv but with python3-pip: that pip can fill the new environment.
        pip=("$python" -m pip --python "$venv/bin/python")
    else
        rm -rf "$venv"
        fail "$python cannot make virtual environments: its venv or ensurepip module is missing." \
            "Debian, Ubuntu: apt install python3-venv. Without root: pip install --user virtualenv"
    fi
fi
rm -f "$stamp"

# --no-deps: the lock is complete, and what it leaves out (torchvision, torchaudio, torchcodec: CUDA
# builds that break a CPU torch) must not come back in as somebody's dependency.
install() { "${pip[@]}" install --no-deps --progress-bar off "$@" >>"$log" 2>&1; }
: >"$log"
packages=$(grep -c == "$lock" || true)
# What pip does, from its log: the packages so far, and the file that it fetches now with its size.
progress() {
    if grep -q '^Installing collected packages' "$log"; then
        installed=$(find "$venv"/lib/python*/site-packages -maxdepth 1 -name '*.dist-info' | wc -l)
        echo "$installed of $packages packages are installed"
        return
    fi
    found=$(grep -cE '^(Collecting|Processing|Requirement already)' "$log" || true)
    file=$(grep -E '^ *(Downloading|Using cached|Processing|Building) ' "$log" | tail -n 1 | sed 's/^ *//; s/ (from .*//')
    name=$(basename "$(echo "$file" | cut -d' ' -f2)")
    # pip writes a file here while it arrives.
    bytes=$(cat /dev/null "${TMPDIR:-/tmp}"/pip-unpack-*/"$name" 2>/dev/null | wc -c)
    echo "$found of $packages packages are found; ${file:-waiting for the package index}, $((bytes / 1000000)) MB here"
}
# pip takes minutes, and says what it does in the log alone.
# (A sleep outlives its loop, and must keep neither the lock nor a pipe.)
while sleep 20 >/dev/null 2>&1 9>&-; do
    echo "setup: $((SECONDS - began)) s: $(progress)"
done 9>&- &
saying=$!
trap 'kill $saying 2>/dev/null || true' EXIT
if ! install -r "$lock"; then
    if grep -q 'No matching distribution found for torch==.*+cpu' "$log"; then
        # The package index has the CUDA build of the same version, which runs on a CPU, too, with
        # the CUDA libraries that it asks for. What else it brings is then replaced by the lock's.
        torch=$(sed -n 's/^\(torch==[0-9.]*\)+cpu.*/\1/p' "$lock")
        rest=$venv/without-torch.txt
        grep -v '^torch==' "$lock" >"$rest"
        echo "setup: pip finds no CPU build of $torch; taking the CUDA build (3 GB more). To avoid that, set" \
            "PIP_EXTRA_INDEX_URL to the address that pytorch.org shows under \"CPU\""
        "${pip[@]}" install --progress-bar off "$torch" >>"$log" 2>&1 && install -r "$rest" || {
            tail -n 20 "$log" >&2
            fail "pip could not install $lock; its last lines are above, all of them in $log"
        }
    else
        tail -n 20 "$log" >&2
        fail "pip could not install $lock; its last lines are above, all of them in $log"
    fi
fi
# The build uses the pinned setuptools, so it fetches nothing. The client comes last: it has the
# command, which an earlier version of the server had, and takes away with it.
for part in . ./headrace; do
    install --no-build-isolation -e "$part" && continue
    tail -n 20 "$log" >&2
    fail "pip could not install Headrace itself; its last lines are above, all of them in $log"
done

echo "$wanted" >"$stamp"
echo "setup: done in $((SECONDS - began)) s"
