# Linked into each recipe and sourced by ESPnet's scripts there, in place of the
# tree's own path.sh: that one finds ESPnet three folders up, where a recipe kept
# outside the tree has none. Nothing in the tree is written.

if [ ! -e asr.sh ]; then
    echo "path.sh: run ./run.sh in the recipe's folder first: it links ESPnet's scripts" >&2
    return 1
fi
_linked=$(readlink -f asr.sh)
MAIN_ROOT=$(cd -P "${_linked%/*}/../../.." && pwd)
RECIPES_ROOT=$(cd -P "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
export MAIN_ROOT RECIPES_ROOT
unset _linked

. "${MAIN_ROOT}/tools/extra_path.sh"
. "${RECIPES_ROOT}/python.sh"
export PATH=${PWD}/utils:${PATH}
# Last, so that the real sclite and sph2pipe win wherever they are.
export PATH=${PATH}:/usr/lib/sctk/bin:${RECIPES_ROOT}/tools

export LC_ALL=C
export PYTHONIOENCODING=UTF-8
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export NCCL_SOCKET_IFNAME="^lo,docker,virbr,vmnet,vboxnet"

if [ -f local/path.sh ]; then . local/path.sh; fi
