#!/usr/bin/env bash
# AISHELL-1 with a sampled-softmax transducer over characters, through ESPnet's own
# asr.sh.
#
#   ./run.sh [--corpus PATH] [options of asr.sh]
#
# PATH, or the variable AISHELL, is the folder that holds data_aishell/ and
# resource_aishell/, each with a file .complete (touch it: ESPnet's own mark of a finished
# download); without them stage 1 downloads 15 GB into it ("downloads" here).
set -euo pipefail
corpus_variable=AISHELL
. "$(dirname "${BASH_SOURCE[0]}")/../../corpus_option.sh"
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../run_asr.sh \
    --ngpu 4 \
    --lang zh \
    --audio_format flac.ark \
    --token_type char \
    --speed_perturb_factors "0.9 1.0 1.1" \
    --use_lm false \
    --asr_config conf/train_asr_transducer_sampled.yaml \
    --inference_config conf/decode_asr_transducer.yaml \
    --inference_asr_model valid.loss.ave.pth \
    --train_set train \
    --valid_set dev \
    --test_sets "dev test" \
    --lm_train_text data/train/text \
    "$@"
