#!/bin/sh
# The tables of docs/medical.md: conditional diffusion on generated CT and MR in three ways of giving the measurement, by DDPM with 1000 steps, DDIM with 200 and few steps,
# beside non-local means, BM3D and a U-Net; and real projections of a tooth from all angles and from a quarter of them.
#
#     bench/medical.sh CLEARSHOT FOLDER [ITERATIONS] [CT]
#
# CT is a folder with tooth_projections.tif, tooth_flats.tif, tooth_darks.tif and tooth_angles_degrees.txt (tomopy's tooth); without it the real part is left out.
# What is there already is not made again. Raw scores are FOLDER/scores-*/records.csv; `python bench/medical.py FOLDER` prints the tables and draws the pictures.
set -e
clearshot=$1 at=$2 iterations=${3:-1000} ct=$4
cpu="trainer.device=cpu performance.threads=1 performance.workers=1"
mkdir -p "$at"
cd "$at"
scanner() {
    case $1 in
    ct) echo --scanner ct --photons 3000 --views 90 ;;
    rician) echo --scanner mr --mr-noise 0.1 ;;
    kspace) echo --scanner mr --mr-noise 0.02 --acceleration 3 ;;
    sparse) echo --scanner ct --photons 100000 --views 45 ;;
    esac
}
domains="ct rician kspace"
for domain in $domains; do
    [ -d "train/$domain" ] || "$clearshot" synth --scene phantom --size 64 --count 300 --seed 1 $(scanner $domain) --out "train/$domain" > /dev/null
    [ -d "test/$domain" ] || "$clearshot" synth --scene phantom --size 64 --count 6 --seed 2 $(scanner $domain) --out "test/$domain" > /dev/null
done
[ -e train.csv ] || "$clearshot" manifest train/ct/noisy train/rician/noisy train/kspace/noisy --targets train/ct/truth train/rician/truth train/kspace/truth \
    --domains ct rician kspace --out train.csv > /dev/null
train() {
    name=$1
    shift
    [ -e "$name/best.clearshot" ] && return
    rm -rf "${name:?}"
    command time -f '{"user": %U, "system": %S, "elapsed": %e}' -o "time-$name.json" "$clearshot" train "$@" $cpu --out "$name" > "$name.txt" 2>&1
}
pairs="data.fit=false task.prediction=sample task.at_most=0.25 data=pairs data.manifest=train.csv data.balance=domains trainer.iterations=$iterations validation.every=250 validation.images=12 validation.crop=64 calibration.images=12"
for way in concat crossattn adm; do
    train $way experiment=medical $pairs model.network.conditioning_key=$way
done
train unet experiment=supervised "~trainer.seconds" $(echo $pairs | sed "s,task[^ ]* ,,g") trainer.crop=64 "model.network.channels=[16,32,48]"
# Electrons are so many here that their own noise is nothing: all noise is that of the standard deviation, which is told to the methods that ask for it.
score() {
    name=$1 domain=$2 methods=$3
    shift 3
    [ -e "scores-$name-$domain/summary.json" ] && return
    sigma=$(python3 - "$domain" <<'P'
import sys, glob, subprocess, json
print(json.load(open("noise.json"))[sys.argv[1]])
P
)
    command time -f '{"user": %U, "system": %S, "elapsed": %e}' -o "time-$name-$domain.json" \
        "$clearshot" eval $methods --truth "test/$domain/truth" --noisy "test/$domain/noisy" --gain 1e6 --offset 0 --read-noise "$sigma" --range 1 --group all \
        --device cpu --threads 1 --seed 3 "$@" --out "scores-$name-$domain" --quiet
}
[ -e noise.json ] || python3 "$OLDPWD/bench/medical.py" --noise . > noise.json
for domain in $domains; do
    score plain $domain "raw nlm bm3d unet/best.clearshot"
    for way in concat crossattn adm; do
        score few-$way $domain $way/best.clearshot --samples 4 --sampler dpmpp-2m --steps 25
    done
    score ddim-concat $domain concat/best.clearshot --samples 4 --sampler ddim --steps 200
done
for domain in $domains; do
    score ddpm-concat $domain concat/best.clearshot --samples 2 --sampler ddpm --steps 1000
done
