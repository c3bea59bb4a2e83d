"""Reads a run's event files with TensorBoard's own reader and holds them against its JSON lines.

    python events.py RUN_FOLDER

Needs the tensorboard package. Says what it found, or fails.
"""
import json, pathlib, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = pathlib.Path(sys.argv[1])
events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
events.Reload()
records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
checked = 0
for tag in events.Tags()["scalars"]:
    kind, name = tag.split("/", 1)
    want = [(r["iteration"], r[name]) for r in records if r["kind"] == kind and r.get(name) is not None]
    got = [(e.step, e.value) for e in events.Scalars(tag)]
    assert [s for s, _ in got] == [s for s, _ in want], (tag, got, want)
    assert all(abs(a - b) <= 1e-6 * max(1.0, abs(b)) for (_, a), (_, b) in zip(got, want)), (tag, got, want)
    checked += len(got)
pictures = [e for tag in events.Tags()["images"] for e in events.Images(tag)]
assert checked and all(p.encoded_image_string.startswith(b"\x89PNG") for p in pictures)
print(f"{checked} numbers and {len(pictures)} pictures agree")
