"""CAREamics' Noise2Void or N2V2 on noisy images of W2S, scored on the same images against their truth after some minutes of one run: one JSON line for each.

    taskset -c 1 env OMP_NUM_THREADS=1 python n2v_careamics.py --data DATA/w2s --minutes 1,2,5,10 [--n2v2]

A minute is one of processor time, so that other programs on the machine do not count (--wall counts the clock, for a GPU), from the first iteration on: neither the start nor the reading of files
counts. Interrupted, it scores the times that it came to. The
defaults of CAREamics 0.3 but for patches of 64 x 64 pixels; samples are made in the same process.
"""
import argparse, copy, json, pathlib, time

import numpy as np
import tifffile
import torch
from careamics import CAREamist
from careamics.config import create_n2v_config
from lightning.pytorch.callbacks import Callback

P = argparse.ArgumentParser()
P.add_argument("--data", type=pathlib.Path, required=True)
P.add_argument("--part", default="dev")
P.add_argument("--minutes", default="1,2,5,10")
P.add_argument("--batch", type=int, default=16)
P.add_argument("--n2v2", action="store_true")
P.add_argument("--wall", action="store_true")
P.add_argument("--work", type=pathlib.Path, default=pathlib.Path("careamics_work"))
A = P.parse_args()
MARKS = [60 * float(m) for m in A.minutes.split(",")]


def images(kind):
    return np.stack([tifffile.imread(f).astype(np.float32) for f in sorted((A.data / A.part / kind).glob("*.tif"))])


class Marks(Callback):
    """Keeps the weights at each time, and stops at the last."""

    kept = []

    def on_train_start(self, trainer, module):
        self.begin, self.clock = self.now(), time.monotonic()

    def now(self):
        return time.perf_counter() if A.wall else time.process_time()

    def on_train_batch_end(self, trainer, module, *_):
        if self.now() - self.begin >= MARKS[len(self.kept)]:
            self.kept.append((self.now() - self.begin, time.monotonic() - self.clock, trainer.global_step, copy.deepcopy(module.state_dict())))
            trainer.should_stop = len(self.kept) == len(MARKS)
            if trainer.should_stop:
                raise KeyboardInterrupt


def psnr(made, clean):
    ones = np.stack([made.ravel(), np.ones(made.size)], 1)
    fitted = (ones @ np.linalg.lstsq(ones, clean.ravel(), rcond=None)[0]).reshape(clean.shape)
    return 10 * np.log10(255.0**2 / np.mean((fitted - clean) ** 2))


config = create_n2v_config("w2s", data_type="array", axes="SYX", patch_size=[64, 64], batch_size=A.batch, num_epochs=100_000, use_n2v2=A.n2v2)
for name in ("train_dataloader_params", "val_dataloader_params"):
    getattr(config.data_config, name).update(num_workers=0, persistent_workers=False)
marks = Marks()
training = CAREamist(config, work_dir=A.work, enable_progress_bar=False, callbacks=[marks])
try:
    training.train(train_data=images("noisy"))
except (KeyboardInterrupt, SystemExit):
    pass
clean = images("clean").astype(float)
for checkpoint in A.work.rglob("*.ckpt"):
    checkpoint.unlink()  # Predictions would be by the last one, whatever weights are loaded.
for seconds, wall, iterations, weights in marks.kept:
    training.model.load_state_dict(weights)
    made, _ = training.predict(images("noisy"))
    made = np.concatenate([np.asarray(m).reshape(-1, *np.asarray(m).shape[-2:]) for m in made])
    found = float(np.mean([psnr(m.astype(float), c) for m, c in zip(made, clean)]))
    print(json.dumps(dict(engine="careamics", network="N2V2" if A.n2v2 else "N2V", minutes=round(seconds / 60, 2), wall=round(wall / 60, 2), iterations=iterations, psnr=found, batch=A.batch)), flush=True)
