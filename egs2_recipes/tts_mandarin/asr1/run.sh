#!/usr/bin/env bash
# Mandarin spoken by espeak-ng, with a sampled-softmax transducer, through ESPnet's own
# asr.sh. Every option of asr.sh may follow and wins:
#
#   ./run.sh                                        400 characters
#   ./run.sh --local_data_opts "--size large" --expdir exp_large    2,000 of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../run_asr.sh \
    --nj 2 \
    --inference_nj 1 \
    --ngpu 0 \
    --lang zh \
    --audio_format wav \
    --token_type char \
    --use_lm false \
    --asr_config conf/train_asr_transducer_sampled.yaml \
    --inference_config conf/decode_asr_transducer.yaml \
    --inference_asr_model valid.cer_transducer.ave.pth \
    --train_set train \
    --valid_set dev \
    --test_sets test \
    "$@"
