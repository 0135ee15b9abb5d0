#!/usr/bin/env bash
# The whole CUDA check in under 8 minutes: the device, the tests on it, kernels and
# waits of a step, the benchmark with its report.
#
#   benchmarks/gpu.sh [--dry-run] [FOLDER]
#
# FOLDER gets log.txt, rows.json, report.md, launches.json and plots
# (default: benchmarks/results-gpu).
#
#   --dry-run             the same on the CPU with tiny shapes, to try this script
#   PYTHON                the Python to use                   (python3)
#   LIBRISPEECH_SHAPES    CSV for the workloads that need it  (none: they are skipped)
#   WORKLOADS             what to measure                     (a selection)
#
# Ends with 0 where the tests passed and something was measured. Each part has a time
# limit and the next one runs in any case, so that a short loan of a device gives as
# much as it can.
set -uo pipefail

dry_run=false
if [ "${1:-}" = --dry-run ]; then
    dry_run=true
    shift
fi
cd "$(dirname "$0")/.." || exit 1
folder=${1:-benchmarks/results-gpu}
python=${PYTHON:-python3}
mkdir -p "$folder" || exit 1

if $dry_run; then
    device=cpu
    workloads=(tiny)
    repeats=2
    launches=(--workload tiny)
else
    device=cuda
    # The figures that matter first: the deadline cuts from the end.
    read -r -a workloads <<<"${WORKLOADS:-method librispeech lattice large aishell \
v-sweep b-sweep s-sweep multilingual sampling csj}"
    repeats=5
    launches=(--workload method)
fi
shapes=()
if [ -n "${LIBRISPEECH_SHAPES:-}" ]; then
    shapes=(--librispeech-shapes "$LIBRISPEECH_SHAPES")
fi

# Test files that cannot be imported without ESPnet are left out where it is not
# installed; the tests of the loss need none.
test_files() {
    if "$python" -c 'import espnet2' 2>/dev/null; then
        ls tests/test_*.py
    else
        grep -LE '^(from|import) (espnet2|espnet_sampled_rnnt\.(model|decoder|scoring)|.*asr_models)' \
            tests/test_*.py
    fi
}

# pytest's exit code 5 says that no test was chosen: on a device that is a failure, for
# then nothing was checked.
run_tests() {
    timeout -k 10 "$1" "$python" -m pytest -q --maxfail=20 -p no:cacheprovider "${@:2}"
    local code=$?
    [ $code -eq 5 ] && echo "no such test" && $dry_run && return 0
    return $code
}

main() {
    local began=$SECONDS failed=0 files
    echo "== device"
    $dry_run || nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
    "$python" - "$device" <<'PYTHON' || return 1
import platform
import sys

import torch

print("python", platform.python_version(), "torch", torch.__version__)
if sys.argv[1] == "cuda":
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device")
    print(torch.cuda.get_device_name(), "CUDA", torch.version.cuda)
PYTHON

    mapfile -t files < <(test_files)
    echo "== tests marked cuda"
    local collect=()
    $dry_run && collect=(--collect-only)
    run_tests 100 "${collect[@]}" -m cuda "${files[@]}" || failed=1
    echo "== tests parametrised by device"
    run_tests 60 "${collect[@]}" -m 'not cuda' -k cuda "${files[@]}" || failed=1
    echo "== $((SECONDS - began)) s"

    echo "== kernels and waits of a step"
    timeout -k 10 60 "$python" -m benchmarks.launches --device "$device" \
        "${launches[@]}" --output "$folder/launches.json" || failed=1
    echo "== $((SECONDS - began)) s"

    echo "== benchmark"
    local left=$((450 - SECONDS + began))
    timeout -k 10 "$left" "$python" -m benchmarks.loss --device "$device" \
        --workloads "${workloads[@]}" --repeats "$repeats" "${shapes[@]}" \
        --deadline $((left - 60)) --output "$folder/rows.json"
    # Out of time is no fault: the rows of before are there.
    [ -s "$folder/rows.json" ] || return 1
    "$python" -m benchmarks.report "$folder/rows.json" >"$folder/report.md" || failed=1
    echo "== $((SECONDS - began)) s; report in $folder/report.md"
    return $failed
}

rm -f "$folder/rows.json"
main 2>&1 | tee "$folder/log.txt"
exit "${PIPESTATUS[0]}"
