#!/usr/bin/env bash
# Mandarin spoken by espeak-ng, with a sampled-softmax transducer, through ESPnet's own
# asr.sh.
#
#   ./run.sh [--size study|large|tiny] [options of asr.sh]
#
# study: 400 characters (the default); large: 2,000. Options of asr.sh win.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

size=study
if [ "${1:-}" = --size ]; then
    size=${2:?--size study, large or tiny}
    shift 2
fi

exec ../../run_asr.sh \
    --nj 2 \
    --inference_nj 2 \
    --ngpu 0 \
    --lang "zh_${size}" \
    --audio_format wav \
    --token_type char \
    --use_lm false \
    --asr_config conf/train_asr_transducer_sampled.yaml \
    --inference_config conf/decode_asr_transducer.yaml \
    --inference_asr_model valid.cer_transducer.ave.pth \
    --local_data_opts "--size ${size}" \
    --train_set "train_${size}" \
    --valid_set "dev_${size}" \
    --test_sets "test_${size}" \
    "$@"
