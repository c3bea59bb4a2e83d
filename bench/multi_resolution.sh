#!/bin/sh
# The table of docs/multi-resolution.md: one training from 32 to 128 pixels by `progressive` and `growing`, one at several scales at once and one on crops of 128 pixels
# alone, with as many iterations each and networks of a few hundred thousand weights; then scores by size of the image. Usage: bench/multi_resolution.sh CLEARSHOT FOLDER [ITERATIONS]
# Every run keeps its records (FOLDER/NAME/records.jsonl), every evaluation its raw scores (FOLDER/scores-NAME/records.csv); bench/multi_resolution.py makes the tables of them.
set -e
clearshot=$1 at=$2 iterations=${3:-1200}
mkdir -p "$at"
train() {
    name=$1
    shift
    [ -e "$at/$name/best.clearshot" ] && return
    rm -rf "${at:?}/$name"
    command time -f '{"user": %U, "system": %S, "elapsed": %e}' -o "$at/time-$name.json" \
        "$clearshot" train "$@" trainer.device=cpu performance.threads=1 performance.workers=1 trainer.batch=2 trainer.iterations="$iterations" \
        'data.scenes={nuclei: 1}' 'data.sizes=[128]' data.pool=60 validation.images=8 validation.crop=128 validation.every=100 calibration.images=0 \
        --out "$at/$name" > "$at/$name.txt" 2>&1
}
small='model.network.channels=[16,32,48] model.network.blocks=1'
train progressive experiment=progressive $small
train large experiment=progressive $small trainer.growth.stages=[] trainer.crop=128
train growing experiment=growing model.network.channels=16 model.network.attention_head_dim=16 trainer.growth.adaptive=false
train multiscale experiment=progressive trainer.growth.stages=[] trainer.crop=128 \
    'model.network={_class_name: MultiScale, in_channels: 0, out_channels: 1, scales: 4, channels: 16, blocks: 2}'
for name in progressive large growing multiscale; do
    [ -e "$at/scores-$name/summary.json" ] || "$clearshot" eval "$at/$name/best.clearshot" --scenes nuclei --peaks 20 --count 4 --size 32,64,96,128 --seed 5 \
        --device cpu --threads 1 --out "$at/scores-$name" > "$at/scores-$name.txt"
done
