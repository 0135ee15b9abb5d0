#!/usr/bin/env bash
# CSJ with a sampled-softmax transducer over characters, through ESPnet's own asr.sh.
#
#   ./run.sh [--corpus PATH] [--subset aps|all] [options of asr.sh]
#
# PATH, or the variable CSJDATATOP, is the corpus, which has to be bought; CSJVER says
# in which shape it is: dvd (the default), usb or merl. Stage 1 needs the program nkf.
# Subset aps, the default, trains on academic presentation speech only; all on all.
set -euo pipefail
corpus_variable=CSJDATATOP
. "$(dirname "${BASH_SOURCE[0]}")/../../corpus_option.sh"
cd "$(dirname "${BASH_SOURCE[0]}")"

subset=aps
if [ "${1:-}" = --subset ]; then
    subset=${2:?--subset aps or all}
    shift 2
fi
case ${subset} in
    aps) train_set=train_nodup_aps lang=jp_aps ;;
    all) train_set=train_nodup lang=jp ;;
    *) echo "run.sh: --subset ${subset}: aps or all" >&2; exit 2 ;;
esac

exec ../../run_asr.sh \
    --ngpu 4 \
    --lang "${lang}" \
    --token_type char \
    --speed_perturb_factors "0.9 1.0 1.1" \
    --use_lm false \
    --asr_config conf/train_asr_transducer_sampled.yaml \
    --inference_config conf/decode_asr_transducer.yaml \
    --inference_asr_model valid.loss.ave.pth \
    --train_set "${train_set}" \
    --valid_set train_dev \
    --test_sets "eval1 eval2 eval3" \
    --lm_train_text "data/${train_set}/text" \
    "$@"
