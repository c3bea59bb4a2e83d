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
bench=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$at"
cd "$at"
scanner() {
    case $1 in
    ct) echo --scanner ct --photons 3000 --views 90 ;;
    rician) echo --scanner mr --mr-noise 0.1 ;;
    kspace) echo --scanner mr --mr-noise 0.02 --acceleration 3 ;;
    sparse) echo --scanner ct --photons 100000 --views 46 ;;
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
pairs="data.fit=false task.prediction=sample task.at_most=0.25 data=pairs data.manifest=train.csv data.balance=domains trainer.iterations=$iterations validation.every=250 validation.images=12 validation.crop=64 calibration.images=4"
for way in concat crossattn adm; do
    train $way experiment=medical $pairs model.network.conditioning_key=$way
done
train unet experiment=supervised "~trainer.seconds" $(echo $pairs | sed "s,task[^ ]* ,,g") trainer.crop=64 "model.network.channels=[16,32,48]"
# Electrons are so many here that their own noise is nothing: all noise is that of the standard deviation, which is told to the methods that ask for it.
noise() {
    python3 -c "import json; print(json.load(open('noise.json'))['$1'])"
}
score() {
    name=$1 domain=$2 methods=$3
    shift 3
    [ -e "scores-$name-$domain/summary.json" ] && return
    sigma=$(noise $domain)
    command time -f '{"user": %U, "system": %S, "elapsed": %e}' -o "time-$name-$domain.json" \
        "$clearshot" eval $methods --truth "test/$domain/truth" --noisy "test/$domain/noisy" --gain 1e6 --offset 0 --read-noise "$sigma" --range 1 --group all \
        --device cpu --threads 1 --seed 3 "$@" --out "scores-$name-$domain" --quiet
}
[ -e noise.json ] || python3 "$bench/medical.py" --noise . > noise.json
for domain in $domains; do
    score plain $domain "raw nlm unet/best.clearshot"
    score few-concat $domain concat/best.clearshot --samples 4
done
# Means of posterior samples with their standard deviations.
sampled() {
    name=$1 domain=$2 model=$3
    shift 3
    at=sampled-$name-$domain
    [ -e "$at/scores.jsonl" ] && return
    command time -f '{"user": %U, "system": %S, "elapsed": %e}' -o "time-$name-$domain.json" \
        "$clearshot" restore "test/$domain/noisy" -o "$at" --model $model/best.clearshot --method model --gain 1e6 --offset 0 --read-noise "$(noise $domain)" --estimate samples --std \
        --device cpu --threads 1 --seed 3 --float --force --quiet "$@"
    "$clearshot" measure --truth "test/$domain/truth" --image "$at/phantom_????.tif" --range 1 --metric psnr,ssim --json > "$at/scores.jsonl"
}
for domain in $domains; do
    for way in concat crossattn adm; do
        sampled few-$way $domain $way --samples 4 --steps 25
    done
    sampled ddim-concat $domain concat --samples 4 --sampler ddim --steps 200
done
# One section of each kind for the picture.
for domain in $domains; do
    [ -e "shown/$domain/std.tif" ] && continue
    mkdir -p "shown/$domain"
    sigma=$(noise $domain)
    section=test/$domain/noisy/phantom_0001.tif
    known="--method model --gain 1e6 --offset 0 --read-noise $sigma --device cpu --threads 1 --float --force --quiet"
    "$clearshot" denoise $section shown/$domain/bm3d.tif --method bm3d --noise "$(python3 -c "print($sigma / 1e6)")" --float --force > /dev/null
    "$clearshot" restore $section -o shown/$domain/unet.tif --model unet/best.clearshot $known
    "$clearshot" restore $section -o shown/$domain/concat.tif --model concat/best.clearshot --samples 4 --estimate samples --std $known
    mv shown/$domain/concat*std*.tif shown/$domain/std.tif
done
if [ -n "$ct" ]; then
# Real projections, four places of the detector together: slices of 160 x 160 pixels from 181 angles, and from 46 of them; models that have seen generated sections from 46 angles alone.
[ -d train/sparse ] || "$clearshot" synth --scene phantom --size 160 --count 80 --seed 4 $(scanner sparse) --out train/sparse > /dev/null
sparse="data.fit=false data=pairs data.inputs=train/sparse/noisy data.targets=train/sparse/truth trainer.iterations=$iterations trainer.crop=96 trainer.batch=4 validation.every=250 validation.images=4 validation.crop=160 calibration.images=0"
train sparse-unet experiment=supervised "~trainer.seconds" $sparse 'model.network.channels=[16,32,48]'
train sparse-concat experiment=medical task.prediction=sample task.at_most=0.25 $sparse
projections="tooth_projections.tif --flats $ct/tooth_flats.tif --darks $ct/tooth_darks.tif --angles $ct/tooth_angles_degrees.txt"
"$clearshot" reconstruct "$ct"/$projections --bin 4 -o full.tif --force
"$clearshot" reconstruct "$ct"/$projections --bin 4 --every 4 -o quarter.tif --force
mkdir -p real/truth real/noisy
peak=$(python3 "$bench/medical.py" --fit full.tif real/truth/tooth.tif)
python3 "$bench/medical.py" --fit quarter.tif real/noisy/tooth.tif "$peak"
sigma=$(python3 "$bench/medical.py" --apart real)
known="--gain 1e6 --offset 0 --read-noise $sigma --range 1 --group all --device cpu --threads 1"
[ -e scores-real/summary.json ] || "$clearshot" eval raw nlm sparse-unet/best.clearshot sparse-concat/best.clearshot --truth real/truth --noisy real/noisy $known --samples 4 --seed 3 --out scores-real --quiet
for model in sparse-unet sparse-concat; do
    "$clearshot" restore real/noisy/tooth.tif -o real/$model.tif --model $model/best.clearshot --method model --gain 1e6 --offset 0 --read-noise $sigma --device cpu --threads 1 --axes ZYX --float --force --quiet
done
"$clearshot" denoise real/noisy/tooth.tif real/bm3d.tif --method bm3d --noise "$(python3 -c "print($sigma / 1e6)")" --axes ZYX --float --force > /dev/null
fi
# The longest last.
for domain in $domains; do
    sampled ddpm-concat $domain concat --samples 2 --sampler ddpm --steps 1000
done
