#!/bin/sh
# Segmentation by few labels: the same network with an encoder that was trained without labels (experiment=mae, on other images) and from scratch, after equal
# iterations on the same labelled images, scored by Dice on images that neither has seen.
#
#     bench/few_labels.sh CLEARSHOT FOLDER [LABELS] [ITERATIONS] [SEEDS] [PRETRAINING] [ELECTRONS]
#
# Prints one line for each seed and way.
set -e
clearshot=$1 out=$2 labels=${3:-4} iterations=${4:-60} seeds=${5:-3} pretraining=${6:-1000}
light="--peak ${7:-20} --bits 16"
mkdir -p "$out"
cd "$out"
[ -d some ] || $clearshot synth --scene nuclei --size 96x96 --count "$labels" $light --seed 1 --labels --out some > /dev/null
[ -d test ] || $clearshot synth --scene nuclei --size 128x128 --count 8 $light --seed 2 --labels --out test > /dev/null
[ -f mae/best.clearshot ] || $clearshot train experiment=mae data.camera.peak=[10,60] model.network.mask_ratio=0.6 performance.threads=1 trainer.iterations="$pretraining" --out mae > mae.log 2>&1
network="model=vit_segmentation data=pairs data.inputs=some/noisy data.targets=some/labels data.validation=0 validation.every=0 validation.images=4 validation.crop=64"
for seed in $(seq 1 "$seeds"); do
    for way in scratch encoder; do
        begin=""
        [ $way = scratch ] || begin="model.encoder=mae/best.clearshot"
        run=$way-$seed
        [ -f "$run/best.clearshot" ] || $clearshot train experiment=segmentation $network $begin seed="$seed" performance.threads=1 schedule.warm_up=10 ~trainer.seconds trainer.iterations="$iterations" --out "$run" > "$run.log" 2>&1
        $clearshot predict test/noisy -o "$run/labels" --model "$run/best.clearshot" --segments classes --force > /dev/null 2>&1
        $clearshot measure --truth test/labels --image "$run/labels" --labels --metric dice --json 2> /dev/null |
            python3 -c "
import json, sys
dice = [row['dice'] for row in map(json.loads, sys.stdin) if isinstance(row.get('dice'), float)]
print('$way seed $seed: Dice %.4f, least %.4f, %d images' % (sum(dice) / len(dice), min(dice), len(dice)))"
    done
done
