#!/usr/bin/env bash
# mini_an4 (eight utterances) with a sampled-softmax transducer, through ESPnet's own
# asr.sh. Every option of asr.sh may follow and wins: ./run.sh --stage 11 --ngpu 1
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../run_asr.sh \
    --nj 2 \
    --inference_nj 2 \
    --ngpu 0 \
    --lang en \
    --audio_format wav \
    --use_lm false \
    --asr_config conf/train_asr_transducer_sampled.yaml \
    --inference_config conf/decode_asr_transducer.yaml \
    --inference_asr_model train.loss.ave.pth \
    --train_set train_nodev \
    --valid_set train_dev \
    --test_sets "train_seen test" \
    "$@"
