"""More cases of kind unet2d: small networks that between them use every option of UNet2DModel.

    python make_options.py OUT_DIR

Needs torch, diffusers and safetensors. The format is that of the other cases; `in.class` are classes.
"""
import json, os, sys
import torch
from diffusers import UNet2DModel
from safetensors.torch import save_file

OUT = sys.argv[1]
G = torch.Generator().manual_seed(11)


def names(kind, attention):
    return tuple(("Attn" if a else "") + kind + "Block2D" for a in attention)


def case(name, attention, channels=(8, 16), size=(8, 12), classes=None, **options):
    torch.manual_seed(5)
    m = UNet2DModel(
        in_channels=2, out_channels=1, block_out_channels=channels, norm_num_groups=4, layers_per_block=1,
        down_block_types=names("Down", attention), up_block_types=names("Up", attention[::-1]), **options,
    ).eval()
    for p in m.parameters():
        if p.dim() == 1 and p.requires_grad:
            p.data.add_(0.1 * torch.randn(p.shape, generator=G))
    x = torch.randn(2, 2, *size, generator=G).requires_grad_(True)
    t = torch.tensor([3, 41])
    y = m(x, t, class_labels=classes).sample
    g = torch.randn(y.shape, generator=G)
    y.backward(g)
    out = {"in.x": x, "in.t": t.float(), "out.y": y, "gout.y": g, "gin.x": x.grad}
    if classes is not None:
        out["in.class"] = classes
    for k, p in m.named_parameters():
        out["param." + k] = p
        if p.grad is not None:
            out["gparam." + k] = p.grad
    config = {k: v for k, v in dict(m.config).items() if not k.startswith("_")}
    out = {k: v.detach().contiguous().clone() for k, v in out.items()}
    meta = {"kind": "unet2d", "name": name, "attrs": json.dumps(dict(config=config))}
    os.makedirs(os.path.join(OUT, "unet2d"), exist_ok=True)
    save_file(out, os.path.join(OUT, "unet2d", name + ".safetensors"), meta)


case("option_fourier", (False, True), time_embedding_type="fourier", attention_head_dim=None, freq_shift=0)
case("option_learned", (False, True), time_embedding_type="learned", num_train_timesteps=50, act_fn="gelu")
case("option_resnet_resampling", (True, True, False), (8, 16, 16), downsample_type="resnet", upsample_type="resnet", resnet_time_scale_shift="scale_shift", attention_head_dim=4)
case("option_padding0", (False, True), downsample_padding=0, center_input_sample=True, mid_block_scale_factor=1.4142135, attention_head_dim=6, flip_sin_to_cos=False)
case("option_no_mid", (False, False), mid_block_type=None, time_embedding_dim=24, act_fn="relu", freq_shift=1)
case("option_no_mid_attention", (True, False), add_attention=False, norm_eps=1e-3)
case("option_mid_norm", (False, False), resnet_time_scale_shift="scale_shift", attn_norm_num_groups=2, attention_head_dim=16)
case("option_class_table", (False, False), num_class_embeds=5, classes=torch.tensor([4, 1]))
case("option_class_timestep", (False, False), class_embed_type="timestep", classes=torch.tensor([7.0, 250.0]))
case("option_class_identity", (False, False), class_embed_type="identity", classes=torch.randn(2, 32, generator=G))
case("option_one_level", (True,), (12,), (5, 7), attention_head_dim=3)
