"""Order-embeddings of images and captions (Vendrov et al. 2016): a GRU, a linear map, and the penalty between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rmsexp.models.recurrent import GRU
from rmsexp.norms import Norm

# Elements of the order penalty's largest temporary: 2 MB stay in a CPU's cache, a GPU wants few and large kernels.
BLOCK = {"cpu": 1 << 19, "cuda": 1 << 24}


class OrderEmbedding(nn.Module):
    """Maps captions and images to unit vectors of one space. 4 sites are normalised, all in the GRU.

    Args:
        words: size of the vocabulary. ``features``: of an image.
        embedding: size of word embeddings. ``hidden``: of states, and of the space.
        absolute: whether vectors are made non-negative, as an order needs (not for cosines).
    """

    def __init__(
        self, norm: Norm, words: int, features: int, *, embedding: int, hidden: int, absolute: bool = True
    ) -> None:
        super().__init__()
        self.absolute = absolute
        self.embedding = nn.Parameter(torch.full((words, embedding), float("nan")))
        self.gru = GRU(norm, "caption", embedding, hidden)
        self.image = norm.plain("image", features, hidden)

    def forward(self, tokens: Tensor, mask: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of the captions and of the images of a batch."""
        return self.captions(tokens, mask), self.images(features)

    def captions(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Vectors ``(captions, hidden)`` of tokens ``(captions, time)``: the last state, at the end of the caption."""
        return self._unit(self.gru(F.embedding(tokens, self.embedding), mask)[:, -1])

    def images(self, features: Tensor) -> Tensor:
        """Vectors ``(images, hidden)``."""
        return self._unit(self.image(features))

    def _unit(self, x: Tensor) -> Tensor:
        unit = x / x.norm(dim=-1, keepdim=True)
        return unit.abs() if self.absolute else unit


def order_penalty(captions: Tensor, images: Tensor) -> Tensor:
    """``E = sum_k max(0, s_k - v_k)^2`` of each caption s with each image v, ``(captions, images)``.

    It is 0 where the image lies above the caption's vector in all directions: what the caption says, the image shows.
    """
    return _OrderPenalty.apply(captions, images)


class _OrderPenalty(torch.autograd.Function):
    """Written out since autograd would keep several arrays of (captions, images, hidden), half of a small model's step.

    One exists at a time, of a block of captions, and is computed again in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, captions: Tensor, images: Tensor) -> Tensor:
        ctx.save_for_backward(captions, images)
        return torch.cat([_excess(block, images).square_().sum(-1) for block in _blocks(captions, images)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_penalties: Tensor) -> tuple[Tensor, Tensor]:
        """``dE/ds = -dE/dv = 2 max(0, s - v)``, summed over images for a caption and the other way round."""
        captions, images = ctx.saved_tensors
        of_captions, of_images = [], torch.zeros_like(images)
        blocks = _blocks(captions, images)
        for block, of_block in zip(blocks, of_penalties.split([len(block) for block in blocks]), strict=True):
            gradient = _excess(block, images).mul_(2 * of_block.unsqueeze(-1))
            of_captions.append(gradient.sum(1))
            of_images -= gradient.sum(0)
        return torch.cat(of_captions), of_images


def _excess(captions: Tensor, images: Tensor) -> Tensor:
    """``max(0, s - v)``, ``(captions, images, hidden)``."""
    return (captions.unsqueeze(1) - images).clamp_(min=0)


def _blocks(captions: Tensor, images: Tensor) -> Sequence[Tensor]:
    return captions.split(max(1, BLOCK[images.device.type] // images.numel()))


def cosine_penalty(captions: Tensor, images: Tensor) -> Tensor:
    """The negative cosine of unit vectors, the symmetric baseline."""
    return -(captions @ images.T)


PENALTIES = {"order": order_penalty, "cosine": cosine_penalty}


def ranking_loss(penalties: Tensor, margin: float) -> Tensor:
    """The sum of hinges over all wrong pairs of a batch; ``penalties[i, j]`` is that of caption i with image j.

    Each right pair is to beat, by the margin, its caption with every other image and its image with every other
    caption (Vendrov et al. 2016, Eq. 6).
    """
    right = penalties.diagonal()
    wrong_images = (margin + right.unsqueeze(1) - penalties).clamp(min=0)
    wrong_captions = (margin + right - penalties).clamp(min=0)
    return (wrong_images + wrong_captions).fill_diagonal_(0).sum()
