"""More cases: operations that the others leave out, small networks that between them use every option of UNet2DModel,
and some options of UNet2DConditionModel and of MONAI's DynUNet that the others leave out.

    python make_more.py OUT_DIR

Needs torch, diffusers, monai and safetensors. The format is that of the other cases; `in.class` are classes.
"""
import json, os, sys
import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel, UNet2DModel
from monai.networks.nets import DynUNet
from safetensors.torch import save_file

OUT = sys.argv[1]
G = torch.Generator().manual_seed(11)


def save(kind, name, attrs, tensors):
    tensors = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
    os.makedirs(os.path.join(OUT, kind), exist_ok=True)
    path = os.path.join(OUT, kind, name + ".safetensors")
    save_file(tensors, path, {"kind": kind, "name": name, "attrs": json.dumps(attrs)})


def rn(*shape):
    return torch.randn(shape, generator=G)


def op(name, attrs, f, **ins):
    ins = {k: v.requires_grad_(v.is_floating_point()) for k, v in ins.items()}
    y = f(**ins)
    g = rn(*y.shape)
    by = [k for k, v in ins.items() if v.requires_grad]
    grads = torch.autograd.grad(y, [ins[k] for k in by], g)
    out = {"in." + k: v for k, v in ins.items()} | {"out.y": y, "gout.y": g}
    save("op", name, attrs, out | {"gin." + k: v for k, v in zip(by, grads)})


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
            p.data.add_(0.1 * rn(*p.shape))
    x = rn(2, 2, *size).requires_grad_(True)
    t = torch.tensor([3, 41])
    y = m(x, t, class_labels=classes).sample
    g = rn(*y.shape)
    y.backward(g)
    out = {"in.x": x, "in.t": t.float(), "out.y": y, "gout.y": g, "gin.x": x.grad}
    if classes is not None:
        out["in.class"] = classes
    for k, p in m.named_parameters():
        out["param." + k] = p
        if p.grad is not None:
            out["gparam." + k] = p.grad
    config = {k: v for k, v in dict(m.config).items() if not k.startswith("_")}
    save("unet2d", name, dict(config=config), out)


def network(name, family, m, config, ins, call):
    """A network by its authors' code; inputs by their names here."""
    for p in m.parameters():
        if p.dim() == 1 and p.requires_grad:
            p.data.add_(0.1 * rn(*p.shape))
    ins["x"].requires_grad_(True)
    y = call(**ins)
    g = rn(*y.shape)
    y.backward(g)
    out = {"in." + k: v.float() for k, v in ins.items()} | {"out.y": y, "gout.y": g, "gin.x": ins["x"].grad}
    for k, p in m.named_parameters():
        out["param." + k] = p
        if p.requires_grad:
            out["gparam." + k] = torch.zeros_like(p) if p.grad is None else p.grad
    save("network", name, dict(family=family, config=json.loads(json.dumps(config))), out)


def condition(name, ins, **options):
    torch.manual_seed(6)
    m = UNet2DConditionModel(in_channels=2, out_channels=1, norm_num_groups=4, **options)
    config = {k: v for k, v in dict(m.config).items() if not k.startswith("_")}

    def call(x, t, context, text_embeds=None, time_ids=None, time_cond=None, **more):
        added = None if text_embeds is None else dict(text_embeds=text_embeds, time_ids=time_ids)
        return m(x, t, context, class_labels=more.get("class"), timestep_cond=time_cond, added_cond_kwargs=added).sample

    network(name, "diffusers.UNet2DConditionModel", m, config, ins, call)


def dynunet(name, x, **config):
    torch.manual_seed(6)
    m = DynUNet(**config)
    network(name, "monai.DynUNet", m, config, dict(x=x), lambda x: m(x))


# Operations.
for name, f, x in [
    ("relu", F.relu, rn(2, 3, 5, 6)), ("exp", torch.exp, rn(40)), ("log", torch.log, rn(40).abs() + 0.1),
    ("sqrt", torch.sqrt, rn(40).abs() + 0.1), ("abs", torch.abs, rn(7, 9)), ("sin", torch.sin, rn(33) * 9), ("cos", torch.cos, rn(33) * 9),
    ("square", torch.square, rn(31)), ("reciprocal", torch.reciprocal, rn(5, 5).abs() + 0.2), ("neg", torch.neg, rn(3)),
]:
    op("more_" + name, dict(op=name), lambda x: f(x), x=x)
op("more_clamp", dict(op="clamp", min=-0.5, max=0.7), lambda x: x.clamp(-0.5, 0.7), x=rn(50))
for name, f in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div), ("maximum", torch.maximum), ("minimum", torch.minimum), ("pow", torch.pow)]:
    op("more_" + name, dict(op=name), lambda a, b: f(a, b), a=rn(3, 4, 5).abs() + 0.3, b=rn(4, 1).abs() + 0.3)
op("more_conv_dilated", dict(op="conv", dims=2, stride=1, padding=2, dilation=2, groups=1), lambda x, weight: F.conv2d(x, weight, None, 1, 2, 2), x=rn(2, 6, 9, 11), weight=rn(4, 6, 3, 3))
op("more_conv_depthwise", dict(op="conv", dims=2, stride=[2, 1], padding=[1, 0], groups=6), lambda x, weight, bias: F.conv2d(x, weight, bias, (2, 1), (1, 0), 1, 6), x=rn(2, 6, 9, 7), weight=rn(12, 1, 3, 3), bias=rn(12))
op("more_convt_groups", dict(op="conv_transpose", dims=2, stride=2, padding=1, output_padding=1, groups=2), lambda x, weight, bias: F.conv_transpose2d(x, weight, bias, 2, 1, 1, 2), x=rn(2, 6, 5, 7), weight=rn(6, 4, 3, 3), bias=rn(8))
op("more_convt3d", dict(op="conv_transpose", dims=3, stride=[1, 2, 2], padding=1, output_padding=[0, 1, 0], dilation=1), lambda x, weight, bias: F.conv_transpose3d(x, weight, bias, (1, 2, 2), 1, (0, 1, 0)), x=rn(1, 4, 3, 4, 5), weight=rn(4, 3, 3, 3, 3), bias=rn(3))
for d, f in ((2, F.max_pool2d), (3, F.max_pool3d)):
    op(f"more_max_pool{d}d", dict(op="max_pool", dims=d, kernel=3, stride=2, padding=1), lambda x: f(x, 3, 2, 1), x=rn(2, 3, *[5, 7, 6][:d]))
op("more_avg_pool_padded", dict(op="avg_pool", dims=2, kernel=[3, 2], stride=[2, 1], padding=[1, 0]), lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0)), x=rn(2, 3, 7, 6))
for mode in ("constant", "reflect", "replicate", "circular"):
    op("more_pad_" + mode, dict(op="pad", pad=[1, 2, 0, 3], mode=mode), lambda x: F.pad(x, (1, 2, 0, 3), mode), x=rn(2, 3, 5, 6))
for d in (2, 3):
    op(f"more_upsample_aligned{d}d", dict(op="upsample_linear", dims=d, scale=2, align_corners=True), lambda x: F.interpolate(x, scale_factor=2, mode=["", "", "bilinear", "trilinear"][d], align_corners=True), x=rn(2, 3, *[4, 5, 3][:d]))
op("more_upsample_size", dict(op="upsample_linear", dims=2, size=[5, 9], align_corners=False), lambda x: F.interpolate(x, size=(5, 9), mode="bilinear", align_corners=False), x=rn(2, 3, 7, 4))
op("more_softmax_axis", dict(op="softmax", dim=1), lambda x: F.softmax(x, 1), x=rn(3, 7, 5))
op("more_attention_scaled", dict(op="attention", layout="b s h d", scale=0.3), lambda q, k, v: F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=0.3).transpose(1, 2), q=rn(2, 9, 3, 5), k=rn(2, 6, 3, 5), v=rn(2, 6, 3, 5))
op("more_concat", dict(op="concat", dim=0), lambda a, b: torch.cat([a, b], 0), a=rn(2, 5), b=rn(3, 5))
op("more_slice", dict(op="slice", dim=1, start=2, length=3), lambda x: x[:, 2:5], x=rn(3, 7, 2))
op("more_permute", dict(op="permute", dims=[2, 0, 1]), lambda x: x.permute(2, 0, 1), x=rn(3, 4, 5))
op("more_sum", dict(op="sum", dim=1), lambda x: x.sum(1), x=rn(3, 4, 5))
op("more_mean", dict(op="mean"), lambda x: x.mean(), x=rn(3, 4, 5))
op("more_embedding", dict(op="embedding"), lambda weight, x: F.embedding(x, weight), weight=rn(9, 4), x=torch.tensor([[1, 8, 1], [0, 3, 8]]))

# Networks.
case("option_fourier", (False, True), time_embedding_type="fourier", attention_head_dim=None, freq_shift=0)
case("option_learned", (False, True), time_embedding_type="learned", num_train_timesteps=50, act_fn="gelu")
case("option_resnet_resampling", (True, True, False), (8, 16, 16), downsample_type="resnet", upsample_type="resnet", resnet_time_scale_shift="scale_shift", attention_head_dim=4)
case("option_padding0", (False, True), downsample_padding=0, center_input_sample=True, mid_block_scale_factor=1.4142135, attention_head_dim=6, flip_sin_to_cos=False)
case("option_no_mid", (False, False), mid_block_type=None, time_embedding_dim=24, act_fn="relu", freq_shift=1)
case("option_no_mid_attention", (True, False), add_attention=False, norm_eps=1e-3)
case("option_mid_norm", (False, False), resnet_time_scale_shift="scale_shift", attn_norm_num_groups=2, attention_head_dim=16)
case("option_class_table", (False, False), num_class_embeds=5, classes=torch.tensor([4, 1]))
case("option_class_timestep", (False, False), class_embed_type="timestep", classes=torch.tensor([7.0, 250.0]))
case("option_class_identity", (False, False), class_embed_type="identity", classes=rn(2, 32))
case("option_one_level", (True,), (12,), (5, 7), attention_head_dim=3)

# Networks that take more than a time, and volumes.
condition(
    "more_condition_vector", {"x": rn(2, 2, 9, 7), "t": torch.tensor([3.0, 411.0]), "context": rn(2, 3, 5), "class": rn(2, 6)},
    block_out_channels=(8, 12), down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    layers_per_block=(1, 2), cross_attention_dim=5, attention_head_dim=(2, 5), transformer_layers_per_block=(1, 2), only_cross_attention=(False, True),
    use_linear_projection=True, class_embed_type="projection", projection_class_embeddings_input_dim=6, class_embeddings_concat=True,
    resnet_time_scale_shift="scale_shift", mid_block_type="UNetMidBlock2D", downsample_padding=0, act_fn="gelu", conv_in_kernel=5, flip_sin_to_cos=False, freq_shift=1,
)
condition(
    "more_condition_added",
    {"x": rn(2, 2, 6, 8), "t": torch.tensor([0.4, 1.7]), "context": rn(2, 1, 9), "text_embeds": rn(2, 5), "time_ids": torch.randint(0, 64, (2, 6), generator=G).float(), "time_cond": rn(2, 7)},
    block_out_channels=(8, 8), down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    layers_per_block=1, cross_attention_dim=4, encoder_hid_dim=9, attention_head_dim=3, addition_embed_type="text_time", addition_time_embed_dim=4,
    projection_class_embeddings_input_dim=29, time_cond_proj_dim=7, time_embedding_type="fourier", timestep_post_act="silu", time_embedding_act_fn="relu",
    mid_block_scale_factor=1.4142135, center_input_sample=True, conv_out_kernel=1,
)
dynunet(
    "more_dynunet_supervised", rn(2, 2, 24, 16), spatial_dims=2, in_channels=2, out_channels=2, kernel_size=[3, [5, 3], 3, 1], strides=[1, [3, 1], 2, [1, 2]],
    upsample_kernel_size=[[3, 1], 2, [1, 2]], filters=[4, 6, 6, 8], norm_name=["GROUP", {"num_groups": 2}], act_name="swish", deep_supervision=True, deep_supr_num=2,
)
dynunet(
    "more_dynunet_flat", rn(2, 2, 4, 12, 12), spatial_dims=3, in_channels=2, out_channels=1, kernel_size=[[1, 3, 3], [1, 3, 3], 3], strides=[1, [1, 2, 2], [1, 2, 2]],
    upsample_kernel_size=[[1, 2, 2], [1, 2, 2]], filters=[4, 8, 8], norm_name=["INSTANCE", {"affine": False}], act_name=["leakyrelu", {"negative_slope": 0.2}],
    res_block=True, trans_bias=True,
)
