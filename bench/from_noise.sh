#!/bin/sh
# Learning from noise beside learning from the truth: the same small network, scenes, cameras and iterations for every task, scored against the
# truth of 32 other scenes of 128 x 128 pixels. Prints one row of a table for each kind of scene.
#
#     bench/from_noise.sh OUT [ITERATIONS=1000] [TASKS="supervised noise2noise splitting noise2void"]
#
# CLEARSHOT names the program.
set -eu
out=$1 iterations=${2:-1000} tasks=${3:-supervised noise2noise splitting noise2void}
clearshot=${CLEARSHOT:-$(dirname "$0")/../target/release/clearshot}
number() { printf %.2f "$(echo "$2" | sed "s/.*\"$1\":\([0-9.]*\).*/\1/")"; }
echo "| scene | measured | $(echo "$tasks" | sed 's/ / | /g') |"
for scene in nuclei filaments; do
    row="| $scene |"
    for task in $tasks; do
        run=$out/$scene-$task
        mkdir -p "$out"
        [ -f "$run/best.clearshot" ] || "$clearshot" train experiment=supervised task="$task" data="$scene" data.pool=220 data.camera.peak='[20,20]' \
            trainer.device=cpu trainer.iterations="$iterations" --out "$run" --quiet > "$run.log"
        # The last validation, and what was measured, of the run's own records.
        last=$(grep '"measured_psnr"' "$run/records.jsonl" | tail -1)
        [ "$task" = "${tasks%% *}" ] && row="$row $(number measured_psnr "$last") |"
        row="$row $(number psnr "$last") |"
    done
    echo "$row"
done
