#!/usr/bin/env bash
# Mandarin of espeak-ng: data/train_SIZE, data/dev_SIZE, data/test_SIZE. Options
# (through asr.sh's --local_data_opts): --size study|large|tiny, --seed N.
set -euo pipefail

size=study
seed=1
. utils/parse_options.sh
. ./path.sh

PYTHONPATH=${RECIPES_ROOT}/tools:${PYTHONPATH:-} python3 local/make_corpus.py --size "${size}" --seed "${seed}" \
    --output "downloads/${size}" --data data
