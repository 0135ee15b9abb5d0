#!/usr/bin/env bash
# Real recordings of digits, with a sampled-softmax transducer over numbers of two or
# three digits, through ESPnet's own asr.sh.
#
#   ./run.sh [--fsdd PATH] [--digits 2|3] [options of asr.sh]
#
# PATH, or the variable FSDD, is the Free Spoken Digit Dataset: a checkout of
# github.com/Jakobovski/free-spoken-digit-dataset (commit 26eb9aaf; CC BY-SA 4.0, by its
# contributors), or a tar.gz that holds its folder "recordings". Only stage 1 reads it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

fsdd=${FSDD:-}
digits=2
while [ "${1:-}" = --fsdd ] || [ "${1:-}" = --digits ]; do
    case $1 in
        --fsdd) fsdd=${2:?--fsdd PATH} ;;
        --digits) digits=${2:?--digits 2 or 3} ;;
    esac
    shift 2
done

exec ../../run_asr.sh \
    --nj 2 \
    --inference_nj 2 \
    --ngpu 0 \
    --lang "digits${digits}" \
    --fs 8k \
    --audio_format wav \
    --token_type word \
    --use_lm false \
    --asr_config conf/train_asr_transducer_sampled.yaml \
    --inference_config conf/decode_asr_transducer.yaml \
    --inference_asr_model valid.cer_transducer.ave.pth \
    --local_data_opts "--digits ${digits} --fsdd ${fsdd:-none-given}" \
    --train_set "train_digits${digits}" \
    --valid_set "dev_digits${digits}" \
    --test_sets "test_digits${digits}" \
    "$@"
