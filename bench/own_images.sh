#!/bin/sh
# One's own images: what `adapt`, `train` on pairs and `train` on noisy images come to on real images, beside PyTorch and CAREamics on the
# same machine in the same time, and how fast the data are. Tables go to standard output, every number to OUT/results.jsonl.
#
#     bench/own_images.sh DATA OUT [PARTS=adapt,supervised,n2v,loader,pace]
#
# DATA holds fmd, w2s and gigadb, each with noisy and clean (w2s in train and dev). CLEARSHOT names the program, DEVICE what it runs on (auto), PYTHON an
# interpreter with numpy, tifffile and PyTorch, CAREAMICS one with CAREamics; what has no interpreter is left out. SECONDS_ADAPT, SECONDS_PAIRS and
# SECONDS_N2V say how long (60, 80 and 20,60,180); VARIANTS changes of `adapt` to try, one after another, separated by semicolons;
# S3 the address of a bucket to write to. Nothing else should run.
set -eu
here=$(dirname "$0")
exec "${PYTHON:-python3}" "$here/own_images.py" --data "$1" --out "$2" --parts "${3:-adapt,supervised,n2v,loader,pace}" \
    --clearshot "${CLEARSHOT:-$here/../target/release/clearshot}" --device "${DEVICE:-auto}" --careamics "${CAREAMICS:-}" \
    --adapt-seconds "${SECONDS_ADAPT:-60}" --pairs-seconds "${SECONDS_PAIRS:-80}" --n2v-seconds "${SECONDS_N2V:-20,60,180}" \
    --variants "${VARIANTS:-}" --s3 "${S3:-}"
