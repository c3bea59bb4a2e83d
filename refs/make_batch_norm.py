"""What torch.nn.BatchNorm2d does in training and after it: refs/train/batch_norm.json.

    python refs/make_batch_norm.py

Two batches one after the other; of the last, gradients. Values are channels last.
"""

import json
import pathlib

import torch

torch.manual_seed(3)
N, C, Y, X = 3, 4, 5, 6
norm = torch.nn.BatchNorm2d(C)
with torch.no_grad():
    norm.weight.copy_(1 + 0.3 * torch.randn(C))
    norm.bias.copy_(0.2 * torch.randn(C))
scale, shift = torch.tensor([1.0, 0.1, 5.0, 2.0]).view(1, C, 1, 1), torch.tensor([0.0, 3.0, -20.0, 1.0]).view(1, C, 1, 1)
first, last = (scale * torch.randn(N, C, Y, X) + shift for _ in range(2))
norm(first)
last.requires_grad_(True)
y = norm(last)
upstream = torch.randn_like(y)
y.backward(upstream)
after = [norm.running_mean.clone(), norm.running_var.clone()]
norm.eval()
still = norm(last.detach())


def flat(t):
    t = t.detach()
    return (t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1).tolist()


record = {
    "shape": [N, Y, X, C], "weight": flat(norm.weight), "bias": flat(norm.bias), "batches": [flat(first), flat(last)], "upstream": flat(upstream),
    "y": flat(y), "gradients": {"x": flat(last.grad), "weight": flat(norm.weight.grad), "bias": flat(norm.bias.grad)},
    "running_mean": flat(after[0]), "running_var": flat(after[1]), "y_after": flat(still),
}
out = pathlib.Path(__file__).parent / "train" / "batch_norm.json"
out.write_text(json.dumps(record, separators=(",", ":")))
