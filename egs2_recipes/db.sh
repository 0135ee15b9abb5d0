# Linked into each recipe and sourced by local/data.sh there: ESPnet's own db.sh, which
# says where each corpus is, and over it what the environment says. So a corpus is found
# without writing to the ESPnet tree: `LIBRISPEECH=/corpora ./run.sh`, or run.sh's
# option --corpus. A recipe folder with a db.sh of its own (a file, no link) keeps it.

_given=()
for _name in LIBRISPEECH AISHELL CSJDATATOP CSJVER; do
    if [ -n "${!_name:-}" ]; then _given+=("${_name}=${!_name}"); fi
done
_linked=$(readlink -f asr.sh)
. "${_linked%/*}/db.sh"
for _pair in ${_given[@]+"${_given[@]}"}; do
    export "${_pair?}"
done
unset _given _name _linked _pair
