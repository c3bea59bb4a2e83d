#!/bin/sh
# The table of docs/multi-resolution.md: one training from 32 to 128 pixels by `progressive` and `growing`, one at several scales at once and one on crops of 128 pixels
# alone, with as many iterations each and networks of a few hundred thousand weights; then scores by size of the image. Usage: bench/multi_resolution.sh CLEARSHOT FOLDER [ITERATIONS]
# Every run keeps its records (FOLDER/NAME/records.jsonl), every evaluation its raw scores (FOLDER/scores-NAME/records.csv); bench/multi_resolution.py makes the tables of them.
set -e
clearshot=$1 at=$2 iterations=${3:-600}
mkdir -p "$at"
train() {
    name=$1
    shift
    [ -e "$at/$name/best.clearshot" ] && return
    rm -rf "${at:?}/$name"
    command time -f '{"user": %U, "system": %S, "elapsed": %e}' -o "$at/time-$name.json" \
        "$clearshot" train "$@" trainer.device=cpu performance.threads=1 performance.workers=1 trainer.batch=2 trainer.iterations="$iterations" \
        'data.sizes=[128]' data.pool=60 validation.images=8 validation.crop=128 validation.every=100 calibration.images=0 task.at_most=0.25 records.every=10 \
        --out "$at/$name" > "$at/$name.txt" 2>&1
}
small='model.network.channels=[16,32,48] model.network.blocks=1'
nuclei='data.scenes={"nuclei":1}'
train progressive experiment=progressive $small $nuclei
train large experiment=progressive $small $nuclei trainer.growth.stages=[] trainer.crop=128
train growing experiment=growing $nuclei model.network.channels=16 model.network.attention_head_dim=16 trainer.growth.adaptive=false
train multiscale experiment=multiscale $nuclei
# Domains with a camera each: told which domain and camera an image is of, and not told.
domains="experiment=progressive $small data.scenes={\"nuclei\":1,\"filaments\":1} data.cameras.nuclei.peak=[20,20] data.cameras.filaments.peak=[100,100] data.cameras.filaments.read_noise=[8,8] data.balance=domains"
train told $domains 'task.vector=[domain,camera]'
train untold $domains
for domain in nuclei filaments; do
    peak=20 read=1.5
    [ $domain = nuclei ] || peak=100 read=8
    [ -d "$at/test-$domain" ] || "$clearshot" synth --scene $domain --count 4 --size 128 --peak $peak --read-noise $read --seed 7 --out "$at/test-$domain" > /dev/null
    for name in told untold; do
        class=
        [ $name = untold ] || class="--class $domain"
        [ -e "$at/scores-$name-$domain/summary.json" ] || "$clearshot" eval "$at/$name/best.clearshot" $class --truth "$at/test-$domain/truth" --noisy "$at/test-$domain/noisy" --gain 1 --offset 0 \
            --read-noise $read --group all --device cpu --threads 1 --out "$at/scores-$name-$domain" > "$at/scores-$name-$domain.txt"
    done
done
for name in progressive large growing multiscale; do
    [ -e "$at/scores-$name/summary.json" ] || "$clearshot" eval "$at/$name/best.clearshot" --scenes nuclei --peaks 20 --count 4 --size 32,64,96,128 --seed 5 \
        --device cpu --threads 1 --out "$at/scores-$name" > "$at/scores-$name.txt"
done
# One sample of the posterior, drawn at once and from coarse to fine.
[ -d "$at/test" ] || "$clearshot" synth --scene nuclei --count 4 --size 128 --peak 20 --seed 6 --out "$at/test" > /dev/null
for stages in 1 2 3; do
    [ -d "$at/cascade-$stages" ] || command time -f '{"user": %U, "system": %S, "elapsed": %e}' -o "$at/time-cascade-$stages.json" \
        "$clearshot" restore "$at/test/noisy" -o "$at/cascade-$stages" --model "$at/progressive/best.clearshot" --method model --gain 1 --offset 0 --read-noise 1.5 --samples 1 --steps 12 --cascade $stages \
        --estimate samples --device cpu --threads 1 --float --quiet
    "$clearshot" measure --truth "$at/test/truth" --image "$at/cascade-$stages" --range 20 --metric psnr,ssim --json > "$at/cascade-$stages.jsonl"
done
