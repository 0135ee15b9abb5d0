#!/usr/bin/env bash
# Run ESPnet's own, unmodified asr.sh in the current folder.
#
#   cd egs2_recipes/<corpus>/<task> && ../../run_asr.sh <options of asr.sh>
#
# What the recipe does not hold itself is linked from the recipe of the same name in
# the ESPnet tree (from TEMPLATE where there is none): asr.sh, utils, local/*, ...
# The links are ignored by git. See espnet_tree.sh and python.sh for the environment
# variables ESPNET_ROOT, NO_APT and PYTHON.
set -euo pipefail

recipes=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
task=$(basename "${PWD}")
corpus=$(basename "$(dirname "${PWD}")")
[ "${PWD}" = "${recipes}/${corpus}/${task}" ] \
    || { echo "run_asr.sh: ${PWD} is not a recipe folder under ${recipes}" >&2; exit 2; }

. "${recipes}/python.sh"
tree=$("${recipes}/espnet_tree.sh")
source=${tree}/egs2/${corpus}/${task}
template=${tree}/egs2/TEMPLATE/${task}
[ -d "${source}" ] || source=${template}

# A link of ours is renewed (the tree may be another one today); a file is kept, and
# so is a link that is right: another run in this folder may be reading it just now.
link() {
    if [ "$(readlink "$2")" = "$1" ]; then
        return
    fi
    if [ -L "$2" ] || [ ! -e "$2" ]; then
        ln -sfn "$1" "$2"
    fi
}
for name in asr.sh pyscripts scripts steps utils; do
    link "${template}/${name}" "${name}"
done
for path in "${source}"/*; do
    name=${path##*/}
    case ${name} in
        asr.sh | pyscripts | scripts | steps | utils) ;;  # linked above
        path.sh | db.sh | run*.sh | *.md) ;;              # the recipe has its own
        data | dump | exp* | downloads) ;;                # a user's runs in that tree
        conf | local)
            mkdir -p "${name}"
            for inner in "${path}"/*; do
                [ -e "${inner}" ] || continue
                # of conf only what the job schedulers and feature extractors read
                [ "${name}" = local ] || [ "${inner##*.}" = conf ] || continue
                link "${inner}" "${name}/${inner##*/}"
            done ;;
        *) link "${path}" "${name}" ;;
    esac
done
link ../../path.sh path.sh
link ../../db.sh db.sh
[ -e local/path.sh ] || : >local/path.sh

./asr.sh "$@" 2>&1 | python3 "${recipes}/tools/follow_training.py"
