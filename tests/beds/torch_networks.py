# mypy: ignore-errors
# torch is not in the environment that mypy sees.
"""Run by torch's Python: networks built from torch.nn with random weights, saved, and loaded again from an export."""

import json
import sys
from pathlib import Path

import numpy
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """ResNet-18 with torchvision's names, a quarter as wide."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = (16, 16, 32, 64, 128)
        for index in range(1, 5):
            first = Block(widths[index - 1], widths[index], 1 if index == 1 else 2)
            setattr(self, f"layer{index}", nn.Sequential(first, Block(widths[index], widths[index], 1)))
        self.fc = nn.Linear(128, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


def child(**modules):
    holder = nn.Module()
    for name, module in modules.items():
        holder.add_module(name, module)
    return holder


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))


def llama(bias=False):
    """A Llama of 4 layers with grouped queries, by Hugging Face's names; with biases, a Qwen."""
    size, keys, hidden = 64, 16, 160
    layers = [
        child(
            self_attn=child(
                q_proj=nn.Linear(size, size, bias=bias),
                k_proj=nn.Linear(size, keys, bias=bias),
                v_proj=nn.Linear(size, keys, bias=bias),
                o_proj=nn.Linear(size, size, bias=False),
            ),
            mlp=child(
                gate_proj=nn.Linear(size, hidden, bias=False),
                up_proj=nn.Linear(size, hidden, bias=False),
                down_proj=nn.Linear(hidden, size, bias=False),
            ),
            input_layernorm=Norm(size),
            post_attention_layernorm=Norm(size),
        )
        for _ in range(4)
    ]
    model = child(embed_tokens=nn.Embedding(100, size), layers=nn.ModuleList(layers), norm=Norm(size))
    return child(model=model, lm_head=nn.Linear(size, 100, bias=False)).to(torch.bfloat16)


def bert():
    """A BERT of 4 layers by Hugging Face's names."""
    size = 48

    def output(inputs):
        return child(dense=nn.Linear(inputs, size), LayerNorm=nn.LayerNorm(size))

    def layer():
        own = child(query=nn.Linear(size, size), key=nn.Linear(size, size), value=nn.Linear(size, size))
        attention = child(self=own, output=output(size))
        return child(attention=attention, intermediate=child(dense=nn.Linear(size, 96)), output=output(96))

    embeddings = child(
        word_embeddings=nn.Embedding(100, size),
        position_embeddings=nn.Embedding(32, size),
        token_type_embeddings=nn.Embedding(2, size),
        LayerNorm=nn.LayerNorm(size),
    )
    encoder = child(layer=nn.ModuleList([layer() for _ in range(4)]))
    return child(bert=child(embeddings=embeddings, encoder=encoder, pooler=child(dense=nn.Linear(size, size))))


class Conv1D(nn.Module):
    """A linear layer whose matrix is transposed, as that of Hugging Face."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))


def gpt2():
    """A GPT-2 of 4 layers by Hugging Face's names."""
    size = 48

    def block():
        attention = child(c_attn=Conv1D(3 * size, size), c_proj=Conv1D(size, size))
        hidden = child(c_fc=Conv1D(4 * size, size), c_proj=Conv1D(size, 4 * size))
        return child(ln_1=nn.LayerNorm(size), attn=attention, ln_2=nn.LayerNorm(size), mlp=hidden)

    blocks = nn.ModuleList([block() for _ in range(4)])
    tables = {"wte": nn.Embedding(100, size), "wpe": nn.Embedding(32, size)}
    transformer = child(**tables, h=blocks, ln_f=nn.LayerNorm(size))
    return child(transformer=transformer, lm_head=nn.Linear(size, 100, bias=False))


def randomized(network):
    """Also what starts as zeros or ones is random, so that an exchange shows."""
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point():
            tensor.data = torch.rand(tensor.shape).to(tensor.dtype) + 0.1
    return network


NETWORKS = {"resnet": ResNet, "llama": llama, "qwen": lambda: llama(bias=True), "bert": bert, "gpt2": gpt2}
TYPES = {"F32": (numpy.float32, torch.float32), "BF16": (numpy.uint16, torch.bfloat16)}


def load_safetensors(path):
    data = Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    state = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        bits, kind = TYPES[entry["dtype"]]
        values = numpy.frombuffer(data[8 + length + begin : 8 + length + end], bits).reshape(entry["shape"])
        state[name] = torch.tensor(values.view(numpy.int16) if bits is numpy.uint16 else values)
        state[name] = state[name].view(kind)
    return state


def main(action, name, path):
    torch.manual_seed(0)
    network = randomized(NETWORKS[name]()).eval()
    if action == "save":
        torch.save(network.state_dict(), path)
        return
    back = load_safetensors(path)
    for key, value in network.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            assert torch.equal(back.pop(key), value), key
    assert not back, list(back)
    if name == "resnet":
        loaded = ResNet().eval()
        loaded.load_state_dict(load_safetensors(path))
        image = torch.rand(2, 3, 64, 64)
        assert torch.equal(loaded(image), network(image))


if __name__ == "__main__":
    main(*sys.argv[1:])
