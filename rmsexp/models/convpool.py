"""ConvPool-CNN-C for CIFAR-10 (Salimans & Kingma 2016, Table 2).

Images and feature maps have shape ``(batch, channels, side, side)``.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.norms import Linear, Norm
from rmsexp.task import Noise

SLOPE = 0.1  # slope of the leaky ReLUs for negative input


class ConvPool(nn.Module):
    """Map images ``(batch, 3, 32, 32)`` to logits ``(batch, classes)``. The norm is applied at all 10 layers.

    ``width``: factor on the paper's numbers of channels, 96 and 192. ``noise``: standard deviation of the Gaussian
    noise on the input in training. ``dropout``: rate after each max pooling in training. ``data_init``: whether
    :func:`rmsexp.models.init.initialise_from_data`, if it is called, sets gains and biases.
    """

    def __init__(
        self,
        norm: Norm,
        *,
        classes: int = 10,
        width: float = 1.0,
        noise: float = 0.15,
        dropout: float = 0.5,
        data_init: bool = False,
    ) -> None:
        super().__init__()
        self.noise, self.dropout = noise, dropout
        narrow, wide = round(96 * width), round(192 * width)

        def conv(name: str, n_in: int, n_out: int, kernel_size: int = 3, padding: int = 0) -> Linear:
            return norm.at(role="convolution").linear(
                name, n_in, n_out, kernel_size=kernel_size, padding=padding, bias=False, shift=True, data_init=data_init
            )

        self.conv1 = conv("conv1", 3, narrow, padding=1)
        self.conv2 = conv("conv2", narrow, narrow, padding=1)
        self.conv3 = conv("conv3", narrow, narrow, padding=1)
        self.conv4 = conv("conv4", narrow, wide, padding=1)
        self.conv5 = conv("conv5", wide, wide, padding=1)
        self.conv6 = conv("conv6", wide, wide, padding=1)
        self.conv7 = conv("conv7", wide, wide)
        self.conv8 = conv("conv8", wide, wide, kernel_size=1)
        self.conv9 = conv("conv9", wide, wide, kernel_size=1)
        self.dense = norm.at(role="output").linear("dense", wide, classes, bias=False, shift=True, data_init=data_init)

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        """Return logits ``(batch, classes)``; ``noise=None``, as in evaluation, applies neither noise nor dropout."""
        if noise is not None:
            x = noise.gaussian(x, self.noise)
        for first, second, third in ((self.conv1, self.conv2, self.conv3), (self.conv4, self.conv5, self.conv6)):
            x = second.leaky_relu(first.leaky_relu(x, SLOPE), SLOPE)
            # Max pooling comes before the leaky ReLU, which then has a quarter of the values to compute. The result is
            # the same as in the other order, because leaky ReLU is increasing.
            x = F.leaky_relu(F.max_pool2d(third(x), 2), SLOPE)
            if noise is not None:
                x = noise.dropout(x, self.dropout)
        for conv in (self.conv7, self.conv8, self.conv9):
            x = conv.leaky_relu(x, SLOPE)
        return self.dense(x.mean((2, 3)))
