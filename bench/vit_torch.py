"""One training iteration of a masked autoencoder in PyTorch, on the network of experiment=mae: encoder of 4 blocks of 128 numbers on the 16 visible of 64 patches of
8 x 8 pixels, decoder of 2 blocks of 64, batches of 16 images of 64 x 64 pixels, AdamW. Prints milliseconds of processor time and of the clock for each iteration.

    python vit_torch.py [ITERATIONS]

Beside it: `clearshot profile train experiment=mae`, whose phases forward, backward and optimiser are the same work."""
import sys, time
import torch
from torch import nn
from timm.models.vision_transformer import Block

N, T, V, D, DD, P = 16, 64, 16, 128, 64, 64
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200


class Mae(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(P, D)
        self.encoder = nn.Sequential(*[Block(D, 4, qkv_bias=True) for _ in range(4)], nn.LayerNorm(D))
        self.embed, self.token = nn.Linear(D, DD), nn.Parameter(torch.zeros(1, 1, DD))
        self.decoder = nn.Sequential(*[Block(DD, 4, qkv_bias=True) for _ in range(2)], nn.LayerNorm(DD), nn.Linear(DD, P))
        self.register_buffer("at", torch.randn(1, T, D))
        self.register_buffer("at2", torch.randn(1, T, DD))

    def forward(self, x, seen, hidden):
        pick = lambda t, i: torch.gather(t, 1, i[..., None].expand(-1, -1, t.shape[2]))
        patches = x.unfold(2, 8, 8).unfold(3, 8, 8).reshape(N, T, P)
        h = self.proj(pick(patches, seen)) + pick(self.at.expand(N, -1, -1), seen)
        h = self.embed(self.encoder(h)) + pick(self.at2.expand(N, -1, -1), seen)
        asked = self.token + pick(self.at2.expand(N, -1, -1), hidden)
        made = self.decoder(torch.cat([h, asked], 1))[:, V:]
        return ((made - pick(patches, hidden)) ** 2).mean()


model = Mae()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05, fused=True)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
x = torch.randn(N, 1, 64, 64)


def step():
    order = torch.stack([torch.randperm(T) for _ in range(N)])
    loss = model(x, order[:, :V], order[:, V:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    average.update_parameters(model)


for _ in range(10):
    step()
clock, processor = time.perf_counter(), time.process_time()
for _ in range(steps):
    step()
clock, processor = time.perf_counter() - clock, time.process_time() - processor
print(f"{1000 * processor / steps:.2f} ms of processor time, {1000 * clock / steps:.2f} ms an iteration, {torch.get_num_threads()} threads")
