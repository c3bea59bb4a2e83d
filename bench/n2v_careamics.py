"""CAREamics' Noise2Void on the noisy images of W2S train for so many seconds, scored on W2S dev: one JSON line.

    python n2v_careamics.py --data DATA/w2s --seconds 60

The defaults of CAREamics 0.3 but for patches of 64 x 64 pixels in batches of 128, as its examples have them; Lightning's timer ends it.
"""
import argparse, json, pathlib, time
from datetime import timedelta

import numpy as np
import tifffile
from careamics import CAREamist
from careamics.config import create_n2v_config
from lightning.pytorch.callbacks import Timer

P = argparse.ArgumentParser()
P.add_argument("--data", type=pathlib.Path, required=True)
P.add_argument("--seconds", type=float, default=60)
P.add_argument("--work", type=pathlib.Path, default=pathlib.Path("careamics_work"))
A = P.parse_args()


def images(part, kind):
    return np.stack([tifffile.imread(f).astype(np.float32) for f in sorted((A.data / part / kind).glob("*.tif"))])


config = create_n2v_config("w2s", data_type="array", axes="SYX", patch_size=[64, 64], batch_size=128, num_epochs=100_000)
training = CAREamist(config, work_dir=A.work, enable_progress_bar=False, callbacks=[Timer(duration=timedelta(seconds=A.seconds))])
begin = time.perf_counter()
training.train(train_data=images("train", "noisy"), val_data=images("dev", "noisy")[:4])
seconds = time.perf_counter() - begin
made, _ = training.predict(images("dev", "noisy"))
found = []
for m, clean in zip(np.concatenate([np.asarray(m).reshape(-1, *np.asarray(m).shape[-2:]) for m in made]), images("dev", "clean").astype(float)):
    ones = np.stack([m.ravel(), np.ones(m.size)], 1)
    fitted = (ones @ np.linalg.lstsq(ones, clean.ravel(), rcond=None)[0]).reshape(clean.shape)
    found.append(10 * np.log10(255.0**2 / np.mean((fitted - clean) ** 2)))
print(json.dumps(dict(engine="careamics", seconds=round(seconds, 1), psnr=float(np.mean(found)))))
