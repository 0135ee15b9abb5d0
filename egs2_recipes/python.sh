# Sourced: puts the Python environment that holds ESPnet first on PATH.
#
# PYTHON=<environment>/bin/python, else the active environment, else the checkout's
# own (.venv/main, made by `make environment`), else whatever python3 there is.

_recipes=$(cd -P "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
if [ -n "${PYTHON:-}" ]; then
    _python=$(command -v "${PYTHON}") || { echo "PYTHON=${PYTHON} does not exist" >&2; return 1; }
elif [ -n "${VIRTUAL_ENV:-}" ]; then
    _python=${VIRTUAL_ENV}/bin/python
elif [ -n "${CONDA_PREFIX:-}" ]; then
    _python=${CONDA_PREFIX}/bin/python
elif [ -x "${_recipes}/../.venv/main/bin/python" ]; then
    _python=${_recipes}/../.venv/main/bin/python
else
    _python=$(command -v python3) || { echo "no python3 found" >&2; return 1; }
fi
_bin=$(cd "$(dirname "${_python}")" && pwd)
case ":${PATH}:" in
    ":${_bin}:"*) ;;
    *) export PATH=${_bin}:${PATH} ;;
esac
unset _recipes _python _bin
