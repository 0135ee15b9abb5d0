#!/usr/bin/env bash
# `make demo`: mini_an4 through asr.sh, trained by sampled softmax and, to compare, by
# the full softmax; then a report. What an earlier call finished is not done again;
# training that was stopped goes on from its last epoch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ../../python.sh

exp=exp/demo

# Another configuration must not go on from this one's checkpoints.
inputs=$(cat run.sh local/data.sh conf/*.yaml ../../*.sh | cksum)
if [ -d "${exp}" ] && [ "$(cat "${exp}/inputs" 2>/dev/null)" != "${inputs}" ]; then
    echo "demo: the recipe changed since ${exp} was made: starting over"
    rm -rf "${exp}"
fi
mkdir -p "${exp}"
echo "${inputs}" >"${exp}/inputs"

# asr.sh's whole output goes to a file; the screen gets the stages and the epochs.
run() {
    local log=${exp}/$1.log status=0
    shift
    ./run.sh --expdir "${exp}" "$@" 2>&1 | tee "${log}" \
        | { grep --line-buffered -E '^  epoch|\) Stage [0-9]+:|^espnet_tree:' || true; } \
        | sed -u -E 's/^[^ ]+ \([^)]*\) //' || status=$?
    if [ ${status} -ne 0 ]; then
        tail -n 30 "${log}" >&2
        echo "demo: asr.sh failed; all of its output is in ${PWD}/${log}" >&2
        exit 1
    fi
}

if [ -e "${exp}/data.done" ] && [ -e dump/raw/train_seen/wav.scp ]; then
    echo "demo: reusing the data in ${PWD}/dump"
else
    echo "demo: preparing eight recordings of AN4"
    run data --stage 1 --stop_stage 10
    touch "${exp}/data.done"
fi

# train KIND LAST_STAGE: the full softmax is there for its loss only, so decoding it,
# the slowest stage, is left out.
train() {
    local kind=$1 last=$2 folder=${exp}/asr_train_asr_transducer_$1_raw_en_bpe30
    if [ -e "${folder}/demo.done" ]; then
        echo "demo: reusing the ${kind}-softmax transducer in ${PWD}/${folder}"
        return
    fi
    [ ! -e "${folder}/checkpoint.pth" ] || echo "demo: resuming"
    echo "demo: training with the ${kind} softmax"
    run "${kind}" --stage 11 --stop_stage "${last}" \
        --asr_config "conf/train_asr_transducer_${kind}.yaml"
    touch "${folder}/demo.done"
}
train sampled 13
train full 11

python3 -m espnet_sampled_rnnt report --output report --max_train_cer 5 \
    --expdir "${exp}/asr_train_asr_transducer_sampled_raw_en_bpe30" \
    --compare "${exp}/asr_train_asr_transducer_full_raw_en_bpe30"
