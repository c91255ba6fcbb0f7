"""Order-embeddings of images and captions (Vendrov et al. 2016): a GRU for captions, a linear map for images.

Shapes: tokens and masks ``(captions, time)``; image features ``(images, features)``; vectors of captions
``(captions, hidden)`` and of images ``(images, hidden)``; penalties ``(captions, images)``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rmsexp.models.recurrent import GRU
from rmsexp.norms import Norm
from rmsexp.norms.base import compute_dtype

# Largest number of elements of a temporary tensor of the order penalty, by type of device. On CPUs the tensor fits a
# cache (2 MiB in float32); GPUs need few, large kernels.
BLOCK = {"cpu": 1 << 19, "cuda": 1 << 24}


class OrderEmbedding(nn.Module):
    """Map captions and images to unit vectors of one space. The norm is applied at 4 sites, all in the GRU.

    Args:
        norm: creates the linear layers and norms of the model.
        words, features, embedding: sizes of the vocabulary, of an image's feature vector and of word embeddings.
        hidden: size of hidden states and of the common space.
        absolute: whether each coordinate of the vectors is replaced by its absolute value, as the order penalty needs.
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
        return self.captions(tokens, mask), self.images(features)

    def captions(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of captions: the hidden states after the last real token, mapped by :meth:`_unit`."""
        return self._unit(self.gru(F.embedding(tokens, self.embedding), mask)[:, -1])

    def images(self, features: Tensor) -> Tensor:
        return self._unit(self.image(features))

    def _unit(self, x: Tensor) -> Tensor:
        """Scale each row to length 1 and, with ``absolute``, replace each coordinate by its absolute value.

        The results of 16-bit layers are widened first, because the loss is computed in float32.
        """
        x = x.to(compute_dtype(x.dtype))
        unit = x / x.norm(dim=-1, keepdim=True)
        return unit.abs() if self.absolute else unit


class _OrderPenalty(torch.autograd.Function):
    """``E = sum_k max(0, s_k - v_k)^2`` for each caption vector s and image vector v, ``(captions, images)``.

    E is 0 if no coordinate of v is smaller than that of s. This stands for an image that shows everything that the
    caption says (Vendrov et al. 2016, Eq. 2).

    E is computed in blocks of captions, and the backward pass computes the blocks again. Autograd would store several
    tensors of shape (captions, images, hidden), which would take half of the time of a small model's training step.
    """

    @staticmethod
    def forward(ctx: Any, captions: Tensor, images: Tensor) -> Tensor:
        ctx.save_for_backward(captions, images)
        return torch.cat([_excess(block, images).square_().sum(-1) for block in _blocks(captions, images)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_penalties: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``sum_v dL/dE * 2 max(0, s - v)`` for each s and ``-sum_s dL/dE * 2 max(0, s - v)`` for each v."""
        captions, images = ctx.saved_tensors
        grad_captions, grad_images = [], torch.zeros_like(images)
        blocks = _blocks(captions, images)
        for block, grad_block in zip(blocks, grad_penalties.split([len(block) for block in blocks]), strict=True):
            gradient = _excess(block, images).mul_(2 * grad_block.unsqueeze(-1))
            grad_captions.append(gradient.sum(1))
            grad_images -= gradient.sum(0)
        return torch.cat(grad_captions), grad_images


def _excess(captions: Tensor, images: Tensor) -> Tensor:
    """Return ``max(0, s - v)`` for each caption s and image v, ``(captions, images, hidden)``."""
    return (captions.unsqueeze(1) - images).clamp_(min=0)


def _blocks(captions: Tensor, images: Tensor) -> Sequence[Tensor]:
    """Split the captions into blocks for which :func:`_excess` has at most ``BLOCK`` elements, or of one caption."""
    return captions.split(max(1, BLOCK[images.device.type] // images.numel()))


def cosine_penalty(captions: Tensor, images: Tensor) -> Tensor:
    """Return minus the cosine of each caption and each image, ``(captions, images)``: the symmetric baseline.

    All vectors must have length 1. Under autocast the product is in the dtype of the vectors, too: rounded to 16 bits,
    many cosines would be equal, and so would be the ranks.
    """
    with torch.autocast(captions.device.type, enabled=False):
        return -(captions @ images.T)


PENALTIES = {"order": _OrderPenalty.apply, "cosine": cosine_penalty}


def ranking_loss(penalties: Tensor, margin: float) -> Tensor:
    """Return ``sum_{i != j} (max(0, margin + E_ii - E_ij) + max(0, margin + E_ii - E_ji))``, a scalar.

    ``penalties[i, j]`` is E_ij, the penalty of caption i with image j of a batch whose matching pairs are on the
    diagonal. Source: Vendrov et al. 2016, Eq. 6.
    """
    matching = penalties.diagonal()
    wrong_images = (margin + matching.unsqueeze(1) - penalties).clamp(min=0)
    wrong_captions = (margin + matching - penalties).clamp(min=0)
    return (wrong_images + wrong_captions).fill_diagonal_(0).sum()
