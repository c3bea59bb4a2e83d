#!/bin/sh
# Supervised training on the CPU beside PyTorch: iterations a second of both, in turns on one machine, so that what else it does
# falls on both. The same network, batch, crops and threads; clearshot makes its samples meanwhile, PyTorch has them ready.
#
#     bench/train.sh [SECONDS=60] [TURNS=2] [THREADS=all]
#
# CLEARSHOT names the program (target/release/clearshot), PYTHON an interpreter with PyTorch, MODES what PyTorch is tried in
# (eager,channels_last; compile too, if it can). Nothing else should run.
set -eu
seconds=${1:-60} turns=${2:-2} threads=${3:-$(nproc)}
here=$(dirname "$0")
program=${CLEARSHOT:-$here/../target/release/clearshot}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
turn=1
while [ "$turn" -le "$turns" ]; do
    # Validation and checkpoints come when the clock has stopped: rates are those of the records of iterations.
    "$program" train experiment=supervised trainer.device=cpu trainer.seconds="$seconds" performance.threads="$threads" \
        validation.every=0 validation.images=1 checkpoint.every=0 records.every=20 records.pictures=0 \
        --out "$work/$turn" --json > "$work/$turn.jsonl"
    "$python" - "$work/$turn.jsonl" "$threads" <<'END'
import json, sys
records = [json.loads(line) for line in open(sys.argv[1])]
training = [r for r in records if r.get("kind") == "train"]
# The first record has the compiling of kernels and the first scenes in it; the others weigh by their time.
rates = [r["images_per_second"] / 8 for r in training[1:]] or [r["images_per_second"] / 8 for r in training]
rate = len(rates) / sum(1 / r for r in rates)
print(json.dumps(dict(engine="clearshot", threads=int(sys.argv[2]), iterations=training[-1]["iteration"],
                      iterations_per_second=round(rate, 3))), flush=True)
END
    "$python" "$here/train_torch.py" --seconds "$seconds" --threads "$threads" --modes "${MODES:-eager,channels_last}"
    turn=$((turn + 1))
done
