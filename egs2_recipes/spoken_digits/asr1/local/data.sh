#!/usr/bin/env bash
# Spoken digits: data/train_digitsN, data/dev_digitsN, data/test_digitsN. Options
# (through asr.sh's --local_data_opts): --fsdd PATH, --digits 2|3, --seed N.
set -euo pipefail

fsdd=
digits=2
seed=1
. utils/parse_options.sh
. ./path.sh

PYTHONPATH=${RECIPES_ROOT}/tools:${PYTHONPATH:-} python3 local/make_corpus.py \
    --fsdd "${fsdd}" --digits "${digits}" --seed "${seed}" \
    --output "downloads/digits${digits}" --data data
