#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: what `clearshot` does when something is wrong there. Needs no Rust.
#
#   bench/faults.sh CLEARSHOT [FOLDER]
#
# CLEARSHOT is the program, FOLDER where to work (a new one in the system's temporary folder unless told). Says
# PASS or FAIL for each fault and what was seen, and ends with 1 if any failed.
set -uo pipefail
clearshot=$(realpath "${1:?the program}")
work=${2:-$(mktemp -d)}
mkdir -p "$work"
failed=0

# verdict NAME CONDITION SEEN
verdict() {
  local word=PASS
  [ "$2" = 0 ] || { word=FAIL; failed=1; }
  echo "$word  $1: $3"
}

# Samples of a restored scene: the same bits wherever the same kernels run.
restore() { # CACHE OUT
  CLEARSHOT_CACHE=$1 "$clearshot" restore "$work/scenes/noisy" --samples 2 --steps 4 --seed 3 --quiet \
    --device cuda --precision bf16 --float --force --output "$2" > "$2.log" 2>&1
}
pixels() { # FOLDER
  cat "$1"/*.npy | cksum
}
entries() { find "$1" -type f | wc -l; }

"$clearshot" synth --scene nuclei --size 96x96 --seed 5 --to npy --out "$work/scenes" --force > /dev/null || exit 1

# The truth: an empty cache of its own.
restore "$work/cache" "$work/first"
verdict "empty cache" $? "$(entries "$work/cache") entries, $(tail -n1 "$work/first.log")"
first=$(pixels "$work/first")

# A second run takes everything from the cache.
restore "$work/cache" "$work/again"; code=$?
same=$([ "$(pixels "$work/again")" = "$first" ] && echo equal || echo differ)
[ $code = 0 ] && [ $same = equal ]
verdict "kept cache" $? "ended with $code, pixels $same"

# Garbage, nothing, and half of an entry in the place of every entry.
n=0
for entry in "$work"/cache/*; do
  case $((n++ % 3)) in
    0) head -c 3000 /dev/urandom > "$entry" ;;
    1) : > "$entry" ;;
    2) head -c $(($(stat -c %s "$entry") / 2)) "$entry" > "$entry.cut" && mv "$entry.cut" "$entry" ;;
  esac
done
damaged=$(cat "$work"/cache/* | cksum)
restore "$work/cache" "$work/damaged"; code=$?
rebuilt=$([ "$(cat "$work"/cache/* | cksum)" != "$damaged" ] && echo "made again" || echo "left as they were")
# Choices are measured anew and may fall on another way of computing, so pixels may differ in the last bits.
[ $code = 0 ] && [ "$rebuilt" = "made again" ] && [ -s "$(ls "$work"/damaged/* | head -n1)" ]
verdict "damaged cache" $? "ended with $code, $n entries $rebuilt"

# Two processes that begin with one empty folder.
restore "$work/shared" "$work/one" & one=$!
restore "$work/shared" "$work/two" & two=$!
wait $one; a=$?
wait $two; b=$?
restore "$work/shared" "$work/three"; c=$?
left=$(find "$work/shared" -name '.*' -type f | wc -l)
same=$([ "$(pixels "$work/one")" = "$(pixels "$work/two")" ] && echo equal || echo differ)
[ $a = 0 ] && [ $b = 0 ] && [ $c = 0 ] && [ $same = equal ] && [ "$left" = 0 ]
verdict "two processes, one empty cache" $? "ended with $a and $b, pixels $same, a third with $c, $left files left over"

# Folders that nothing can be written to.
mkdir -p "$work/locked" && chmod a-w "$work/locked"
for folder in "$work/locked" /proc/clearshot; do
  restore "$folder" "$work/locked-out"; code=$?
  verdict "cache in $folder" $code "ended with $code"
done

# A library that is there and cannot be loaded hides the others of its name.
mkdir -p "$work/broken"
for name in libcudnn.so libcudnn.so.{1..20}; do echo broken > "$work/broken/$name"; done
said=$(LD_LIBRARY_PATH="$work/broken:${LD_LIBRARY_PATH:-}" "$clearshot" bench --net tiny --size 32 --device cuda 2>&1); code=$?
[ $code != 0 ] && [[ $said == *cudnn* && $said == *"could not be loaded"* && $said != *panicked* ]]
verdict "no cuDNN" $? "ended with $code: $(echo "$said" | tail -n1)"

# A card that is not there.
said=$("$clearshot" bench --net tiny --size 32 --device cuda:99 2>&1); code=$?
[ $code != 0 ] && [[ $said == *99* && $said != *panicked* ]]
verdict "no such GPU" $? "ended with $code: $(echo "$said" | tail -n1)"

# More than the card has.
said=$(CLEARSHOT_CACHE=$work/cache "$clearshot" bench --net base --size 256 --batch "${TOO_MANY:-4096}" --train --device cuda 2>&1); code=$?
[ $code != 0 ] && [[ $said == *"are free"* && $said == *"a batch of about"* && $said != *panicked* ]]
verdict "no room" $? "ended with $code: $(echo "$said" | tr '\n' ' ')"

# A budget that nothing fits in.
said=$(CLEARSHOT_CACHE=$work/cache "$clearshot" bench --net tiny --size 64 --train --budget 1MiB --device cuda 2>&1); code=$?
[ $code != 0 ] && [[ $said == *"cannot be met"* && $said != *panicked* ]]
verdict "no budget" $? "ended with $code: $(echo "$said" | tr '\n' ' ')"

exit $failed
