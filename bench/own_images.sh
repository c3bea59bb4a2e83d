#!/bin/sh
# One's own images: what `adapt` and `train` on pairs come to on real images, the latter beside PyTorch on the same machine in the same time, and how
# fast the data are; n2v.sh has Noise2Void beside CAREamics. Tables go to standard output, every number to OUT/results.jsonl.
#
#     bench/own_images.sh DATA OUT [PARTS=adapt,supervised,loader,pace]
#
# DATA holds fmd, w2s and gigadb, each with noisy and clean (w2s in train and dev). CLEARSHOT names the program, DEVICE what it runs on (auto), PYTHON an
# interpreter with numpy, tifffile and PyTorch, which is left out where it is missing. SECONDS_ADAPT and SECONDS_PAIRS
# say how long (60 and 80); VARIANTS changes of `adapt` to try, one after another, separated by semicolons;
# S3 the address of a bucket to write to. Nothing else should run.
set -eu
here=$(dirname "$0")
exec "${PYTHON:-python3}" "$here/own_images.py" --data "$1" --out "$2" --parts "${3:-adapt,supervised,loader,pace}" \
    --clearshot "${CLEARSHOT:-$here/../target/release/clearshot}" --device "${DEVICE:-auto}" \
    --adapt-seconds "${SECONDS_ADAPT:-60}" --pairs-seconds "${SECONDS_PAIRS:-80}" \
    --variants "${VARIANTS:-}" --s3 "${S3:-}"
