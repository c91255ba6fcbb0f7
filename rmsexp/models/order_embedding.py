"""Order-embeddings of images and captions (Vendrov et al. 2016): a GRU, a linear map, and the penalty between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.models.recurrent import GRU
from rmsexp.norms import Norm


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
    return (captions.unsqueeze(1) - images).clamp(min=0).square().sum(-1)


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
