#!/usr/bin/env bash
# ESPnet's own data preparation of mini_an4, then one more set: train_seen, a copy of
# train_nodev. asr.sh refuses to decode a set under the name that it trains on.
set -euo pipefail

. ./path.sh
"${MAIN_ROOT}/egs2/mini_an4/asr1/local/data.sh" "$@"
if [ -d data/train_nodev ]; then
    rm -rf data/train_seen
    utils/copy_data_dir.sh data/train_nodev data/train_seen
fi
