"""A language model in plain PyTorch with torch's own layers: the baseline of trainer_overhead.py task=language_model.

Its sizes, batches, optimiser, schedule and clipping are those of the config (RMSNorm, pre placement, SwiGLU, tied
output); it has no records, checkpoints, clock or evaluation. Its parameters are in the order of our model's.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, size: Any) -> None:
        super().__init__()
        self.heads, head_width = [size.heads, size.kv_heads, size.kv_heads], size.width // size.heads
        self.joint = nn.Linear(size.width, sum(self.heads) * head_width, bias=False)
        self.output = nn.Linear(size.width, size.width, bias=False)
        self.up = nn.Linear(size.width, 2 * size.inner, bias=False)
        self.down = nn.Linear(size.inner, size.width, bias=False)
        self.attention_norm, self.feed_forward_norm = (nn.RMSNorm(size.width, eps=1e-5) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.joint(self.attention_norm(x)).view(batch, time, sum(self.heads), -1).split(self.heads, 2)
        query, key = (rotated(part, cos, sin).transpose(1, 2) for part in parts[:2])
        value, grouped = parts[2].transpose(1, 2), self.heads[0] != self.heads[1]
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        x = x + self.output(y.transpose(1, 2).reshape(batch, time, width))
        gate, up = self.up(self.feed_forward_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Model(nn.Module):
    def __init__(self, size: Any, vocabulary: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.width)
        nn.init.normal_(self.embedding.weight, std=size.width**-0.5)  # as ours: logits near 1, not near the width
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        half = size.width // size.heads // 2
        angles = torch.arange(context).view(-1, 1, 1) / 10_000 ** (torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embedding.weight)


def train(model: nn.Module, cfg: Any, batch: Callable[[int], Tensor], steps: int, warmup: int) -> float:
    """Train and return the seconds of ``steps`` steps, which follow ``warmup`` steps with the batch of step 0."""
    optim, schedule, start = cfg.optim, cfg.schedule, 0.0
    decay = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": optim.weight_decay}]
    rest = [{"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(decay + rest, optim.lr, (optim.beta1, optim.beta2), optim.eps, fused=True)
    for step in range(-warmup, steps):
        if step == 0:
            start = time.perf_counter()
        done = (step - schedule.warmup + 1) / (schedule.steps - schedule.warmup)
        cosine = schedule.floor + (1 - schedule.floor) * (1 + math.cos(math.pi * done)) / 2
        for group in optimizer.param_groups:
            group["lr"] = optim.lr * (cosine if step >= schedule.warmup else (max(step, 0) + 1) / schedule.warmup)
        tokens = batch(max(step, 0))
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - start
