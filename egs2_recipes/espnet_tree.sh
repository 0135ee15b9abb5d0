#!/usr/bin/env bash
# Print the root of an ESPnet tree (egs2/, tools/, utils/) for the recipes here.
#
#   egs2_recipes/espnet_tree.sh        -> the path on stdout, all messages on stderr
#
# ESPNET_ROOT=<checkout>  use that one; it is checked and only read.
# NO_APT=1                do not try to install sclite from the Debian package.
#
# Without ESPNET_ROOT, pip downloads the source distribution of the very ESPnet that
# python3 imports (egs2_recipes/python.sh says which python3), and it is unpacked
# under egs2_recipes/.espnet/. That happens once; later calls need no network. The
# tree appears by a single rename, so an interrupted call leaves nothing half done.
set -euo pipefail

here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
store=${here}/.espnet
say() { echo "espnet_tree: $*" >&2; }
fail() { say "$*"; exit 1; }

. "${here}/python.sh"

installed=$(python3 -c 'from importlib.metadata import version; print(version("espnet"))' 2>/dev/null) \
    || fail "$(command -v python3) has no espnet: make the environment first ('make environment'), or activate the one that has it"

# Fails, with a reason, unless $1 is an ESPnet tree of the installed release: the
# recipe scripts of another release call modules that moved since.
check_tree() {
    local tree=$1 found
    [ -f "${tree}/egs2/TEMPLATE/asr1/asr.sh" ] \
        || fail "${tree} has no egs2/TEMPLATE/asr1/asr.sh: not an ESPnet tree with recipes"
    # at the root in the archive, in the package in a git checkout
    found=$({ cat "${tree}/version.txt" || cat "${tree}/espnet/version.txt"; } 2>/dev/null | head -n 1) || true
    [ "${found}" = "${installed}" ] \
        || fail "${tree} is ESPnet '${found}', but $(command -v python3) imports ESPnet ${installed}: take the tree of the same release"
}

# pip's archive drops the links to directories that every recipe needs.
restore_links() {
    local recipe name
    for recipe in "$1"/egs2/*/*/; do
        [ -e "${recipe}asr.sh" ] && [[ ${recipe} != */TEMPLATE/* ]] || continue
        for name in pyscripts scripts steps utils; do
            [ -e "${recipe}${name}" ] || ln -s "../../TEMPLATE/asr1/${name}" "${recipe}${name}"
        done
    done
}

download_tree() {
    local work archive unpacked
    case ${installed} in
        202511*) fail "the source distribution of ESPnet ${installed} on PyPI holds no recipes: use Python 3.12 or 3.13 with ESPnet 202611, or set ESPNET_ROOT to a git checkout of ESPnet v.${installed}" ;;
    esac
    mkdir -p "${store}"
    # one download at a time: the second caller waits, then finds the tree
    if command -v flock >/dev/null 2>&1; then
        exec 9>"${store}/lock"
        flock 9
        [ ! -d "${tree}" ] || return 0
        rm -rf "${store}"/unpack.*
    fi
    work=$(mktemp -d "${store}/unpack.XXXXXX")
    trap 'rm -rf "${work:-}"' EXIT
    say "downloading the source distribution of ESPnet ${installed} (once)"
    python3 -m pip --disable-pip-version-check download --quiet --no-deps --no-binary espnet \
        --no-build-isolation --dest "${work}" "espnet==${installed}" >&2 \
        || fail "pip could not download the source distribution of ESPnet ${installed}; with a checkout at hand set ESPNET_ROOT"
    archive=$(echo "${work}"/espnet-*.tar.gz)
    tar -xzf "${archive}" --no-same-owner -C "${work}"
    unpacked=${archive%.tar.gz}
    check_tree "${unpacked}"
    restore_links "${unpacked}"
    mv "${unpacked}" "${tree}"
    rm -rf "${work}"
    trap - EXIT
}

# sclite scores in stage 13. path.sh looks for it in the tree's tools/sctk, on PATH
# and where Debian's package puts it; last comes the stand-in of egs2_recipes/tools.
equip_sclite() {
    if [ -x "$1/tools/sctk/bin/sclite" ] || [ -x /usr/lib/sctk/bin/sclite ] \
        || command -v sclite >/dev/null 2>&1; then
        return
    fi
    if [ "${NO_APT:-0}" = 1 ]; then
        reason="NO_APT=1"
    elif ! command -v apt-get >/dev/null 2>&1; then
        reason="no apt-get here"
    elif [ "$(id -u)" != 0 ]; then
        reason="not root"
    else
        say "installing the Debian package sctk (sclite)"
        export DEBIAN_FRONTEND=noninteractive
        if apt-get install -y -q sctk >"${store}/apt.log" 2>&1 \
            || { apt-get update -q && apt-get install -y -q sctk; } >>"${store}/apt.log" 2>&1; then
            return
        fi
        reason="apt-get failed, see ${store}/apt.log"
    fi
    say "sclite is missing (${reason}); 'sudo apt-get install sctk', or 'make -C $1/tools sctk', brings it. Until then jiwer scores."
}

if [ -n "${ESPNET_ROOT:-}" ]; then
    tree=$(cd -P "${ESPNET_ROOT}" 2>/dev/null && pwd) || fail "ESPNET_ROOT=${ESPNET_ROOT} is no folder"
else
    tree=${store}/espnet-${installed}
    [ -d "${tree}" ] || download_tree
fi
check_tree "${tree}"
mkdir -p "${store}"
equip_sclite "${tree}"
echo "${tree}"
