#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: volumes. Times of convolution, norm and attention on a patch of 64 x 64 x 64
# voxels with their distance from the CPU, then a whole network on such a patch. Needs no Rust there: BINARIES
# holds `clearshot` and `volumes`, built by
#
#   cargo build --release --bin clearshot && cargo build --release -p clearshot-suite --example volumes
#
#   bench/volumes.sh BINARIES
set -euo pipefail
binaries=${1:?the folder of clearshot and volumes}
"$binaries/volumes"
for train in "" --train; do
  "$binaries/clearshot" bench --net dynunet3d --size 64 --device cuda --precision bf16 $train
done
