#!/usr/bin/env bash
# ESPnet's own data preparation of CSJ, then one more set: train_nodup_aps, what of
# train_nodup is academic presentation speech: the recordings whose name begins with A.
set -euo pipefail

. ./path.sh
"${MAIN_ROOT}/egs2/csj/asr1/local/data.sh" "$@"
if [ -d data/train_nodup ]; then
    mkdir -p data/local
    awk '$1 ~ /^A/ { print $1 }' data/train_nodup/utt2spk >data/local/train_nodup_aps
    utils/subset_data_dir.sh --utt-list data/local/train_nodup_aps data/train_nodup data/train_nodup_aps
fi
