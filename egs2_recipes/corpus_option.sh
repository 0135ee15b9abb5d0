# Sourced by a run.sh, before it changes its folder: takes `--corpus PATH` out of the
# options and hands PATH on under the name that ESPnet's db.sh has for it, which
# run.sh has put into corpus_variable. All other options stay as they are.

_others=()
while [ $# -gt 0 ]; do
    if [ "$1" = --corpus ]; then
        [ -d "${2:-}" ] || { echo "run.sh: --corpus '${2:-}' is no folder" >&2; exit 2; }
        export "${corpus_variable}=$(cd "$2" && pwd)"
        shift 2
    else
        _others+=("$1")
        shift
    fi
done
set -- ${_others[@]+"${_others[@]}"}
unset _others
