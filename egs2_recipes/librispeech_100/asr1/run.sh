#!/usr/bin/env bash
# LibriSpeech's train-clean-100 with a sampled-softmax transducer, through ESPnet's own
# asr.sh.
#
#   ./run.sh [--corpus PATH] [options of asr.sh]
#
# PATH, or the variable LIBRISPEECH, is the folder that holds LibriSpeech/; without it,
# or where it is not there, stage 1 downloads 8 GB into it ("downloads" here).
# The text for language models is neither fetched nor used: see README.md.
set -euo pipefail
corpus_variable=LIBRISPEECH
. "$(dirname "${BASH_SOURCE[0]}")/../../corpus_option.sh"
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../run_asr.sh \
    --ngpu 1 \
    --nj 16 \
    --gpu_inference true \
    --inference_nj 2 \
    --audio_format flac.ark \
    --lang en \
    --token_type bpe \
    --nbpe 5000 \
    --max_wav_duration 30 \
    --speed_perturb_factors "0.9 1.0 1.1" \
    --use_lm false \
    --asr_config conf/train_asr_transducer_sampled.yaml \
    --inference_config conf/decode_asr_transducer.yaml \
    --inference_asr_model valid.loss.ave.pth \
    --local_data_opts "--stop_stage 3" \
    --train_set train_clean_100 \
    --valid_set dev \
    --test_sets "test_clean test_other dev_clean dev_other" \
    --lm_train_text data/train_clean_100/text \
    --bpe_train_text data/train_clean_100/text \
    "$@"
