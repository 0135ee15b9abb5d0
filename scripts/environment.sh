#!/usr/bin/env bash
# Make a virtual environment with this package (editable) and its test extras.
#
#   scripts/environment.sh VENV_DIR [PYTHON]
#
# PYTHON: a version (3.12) or an executable; by default the newest ESPnet's 3.12 or
# 3.13, else an older one with a word on what it cannot do. A second call returns
# at once unless setup.cfg, pyproject.toml or this script changed. NEED_RECIPES=1:
# refuse a Python whose ESPnet comes without recipes (make demo sets it).
set -euo pipefail

venv=${1:?usage: scripts/environment.sh VENV_DIR [PYTHON]}
wanted=${2:-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "${root}"
stamp=${venv}/.installed

say() { echo "environment: $*"; }
fail() { echo "environment: $*" >&2; exit 1; }

# The version "3.12" that an executable runs as; nothing where it cannot serve.
# pyenv puts a python3.12 on PATH that only says "command not found", and Debian's
# own python3 comes without ensurepip: so each candidate is run, not looked up.
version_of() {
    "$1" -c 'import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2])' \
        2>/dev/null || true
}

candidates_for() {
    echo "python$1"
    echo python3
    if command -v pyenv >/dev/null 2>&1; then
        # newest patch release first
        find "$(pyenv root)/versions" -path "*/versions/$1*/bin/python3" 2>/dev/null | sort -rV
    fi
}

find_python() {
    local version candidate
    for version in "$@"; do
        for candidate in $(candidates_for "${version}"); do
            if [ "$(version_of "${candidate}")" = "${version}" ]; then
                echo "${candidate}"
                return
            fi
        done
    done
}

fingerprint() {
    { cat setup.cfg pyproject.toml scripts/environment.sh; echo "${root} $(version_of "$1")"; } | cksum
}

# Says what an older Python cannot do; ends here if recipes are what is wanted.
check_release() {
    case ${have} in
        3.12 | 3.13) return ;;
        3.10 | 3.11) ;;
        *) fail "Python ${have}: 3.10 to 3.13 are supported" ;;
    esac
    [ -z "${ESPNET_ROOT:-}" ] || return 0
    say "Python ${have} gets ESPnet 202511, whose recipe tree (egs2) is not on PyPI: recipes and 'make demo' need Python 3.12 or 3.13 (PYTHON=/path/to/python3.12), or ESPNET_ROOT=<git checkout of ESPnet v.202511>; the tests run"
    [ "${NEED_RECIPES:-0}" = 0 ] || exit 1
}

python=${venv}/bin/python
have=$(version_of "${python}")
if [ -n "${have}" ]; then
    case ${wanted} in
        '') ;;
        [0-9].*) asked=${wanted} ;;
        *) asked=$(version_of "${wanted}") ;;
    esac
    [ -z "${wanted}" ] || [ "${asked}" = "${have}" ] \
        || fail "${venv} runs Python ${have}, asked for ${wanted}: give another VENV, or remove it"
    check_release
    if [ "$(cat "${stamp}" 2>/dev/null)" = "$(fingerprint "${python}")" ]; then
        exit 0
    fi
else
    case ${wanted} in
        '')
            base=$(find_python 3.12 3.13 3.11 3.10)
            [ -n "${base}" ] || fail "no Python 3.10 to 3.13 found that has venv and ensurepip (Debian: apt-get install python3-venv; or give PYTHON=/path/to/python3.12)" ;;
        [0-9].*)
            base=$(find_python "${wanted}")
            [ -n "${base}" ] || fail "no Python ${wanted} found that has venv and ensurepip; give PYTHON=/path/to/python${wanted}" ;;
        *)
            base=${wanted}
            [ -n "$(version_of "${base}")" ] || fail "${base} does not run, or lacks venv and ensurepip" ;;
    esac
    have=$(version_of "${base}")
    check_release
    say "Python ${have} from ${base} -> ${venv}"
    rm -f "${stamp}"
    "${base}" -m venv --clear "${venv}"
fi

# ESPnet 202511 depends on ci_sdr, whose metadata names a git URL for an unused extra.
# pip refuses that from 26.3 on ("Distributions from PyPI cannot declare direct URL
# dependencies"); 26.2.1 and every older one tried, down to 23.2.1, takes it. So the
# pip that came with the environment stays, unless it is one of those.
if [ "${have}" = 3.10 ] || [ "${have}" = 3.11 ]; then
    "${python}" -m pip install --quiet --disable-pip-version-check 'pip<26.3'
fi

say "installing (5 to 6 GB with torch's CUDA build; 3 to 8 minutes the first time)"
log=${venv}/install.log
if ! "${python}" -m pip install --disable-pip-version-check --progress-bar off \
    --editable '.[test]' 2>&1 | tee "${log}" \
    | { grep --line-buffered -E '^(Collecting|Installing) |^ERROR' || true; } | sed -u 's, (from .*,,'; then
    tail -n 20 "${log}" >&2
    fail "pip failed; all of its output is in ${log}"
fi
"${python}" - 2>/dev/null <<'EOF' || fail "the packages do not import together: run ${python} -c 'import torchaudio, espnet2.tasks.asr'"
from importlib.metadata import version

import espnet2.tasks.asr
import torchaudio

names = ("espnet", "torch", "torchaudio", "numpy")
print("environment: ready:", ", ".join(f"{name} {version(name)}" for name in names))
EOF
fingerprint "${python}" >"${stamp}"
