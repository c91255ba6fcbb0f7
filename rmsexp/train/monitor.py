"""What each norm of a model sees during training (``monitor=true``), for the file ``layers.csv`` of a run."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rmsexp.norms import Normaliser
from rmsexp.norms.batch import kept_buffers

FILE = "layers.csv"
QUANTITIES = ("rms", "mean_over_spread", "cosine", "saturated", "gradient", "gain_spread")
PERIOD = 200  # steps, in which there is at most one observation, so that they take little time
# the function values above which its slope is less than a tenth of its largest
SATURATED = {"tanh": math.sqrt(0.9), "erf": math.erf(math.sqrt(math.log(10)))}


@dataclass
class Seen:
    """What a norm layer got in one pass: its input vectors, and sums of squares of the gradients at them.

    ``slopes``: how many values tanh and erf had in the layer and between it and the next norm, and how many of them
    were saturated.
    """

    vectors: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    slopes: tuple[int, int] = (0, 0)

    def values(self, gain: Tensor | None) -> dict[str, float | None]:
        """Return by name the ``QUANTITIES`` (see ``docs/extending.md``); None for one that the layer does not have."""
        x, (values, saturated) = torch.cat([each.flatten(0, -2) for each in self.vectors]).float(), self.slopes
        variance, mean = torch.var_mean(x, -1, correction=0)
        squares = variance + mean.square()
        cosines = mean.abs() / squares.sqrt().clamp_min(torch.finfo(x.dtype).tiny)  # |mean| / rms
        kinds = torch.stack([squares, mean.square(), variance, cosines])
        of_x, of_mean, spread, cosine = kinds.mean(1, dtype=torch.float64).tolist()
        return {
            "rms": math.sqrt(of_x),
            "mean_over_spread": math.sqrt(of_mean / spread) if spread > 0 else None,
            "cosine": cosine,
            "saturated": saturated / values if values else None,
            "gradient": math.sqrt(float(sum(self.gradients))) if self.gradients else None,
            "gain_spread": None if gain is None else float(gain.detach().double().std(correction=0)),
        }


class Watch(TorchFunctionMode):
    """Context that counts saturated values of tanh and erf, for the layer whose norm was called last."""

    layer: Seen | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        limit = SATURATED.get(getattr(func, "__name__", ""))
        if limit is not None and self.layer is not None:
            values, saturated = self.layer.slopes
            self.layer.slopes = values + result.numel(), saturated + int((result.detach().abs() > limit).sum())
        return result


class Monitor:
    """Collects what the norms of a model see: a row per layer, at the first evaluation in each ``PERIOD`` of steps.

    The quantities are those of the next step's first micro-batch. A forward and a backward pass without fused kernels
    compute them, and the buffers of the model, such as running statistics, are then as they were. Vectors at padding
    are left out. Of feature maps a vector is a channel of an image.

    ``path``: the folder of the run, whose rows up to step ``evaluated`` are kept.
    """

    def __init__(self, model: nn.Module, path: Path, evaluated: int) -> None:
        self.model, self._lines = model, [",".join(("step", "layer", *QUANTITIES))]
        if evaluated >= 0 and (path / FILE).is_file():
            lines = (path / FILE).read_text().splitlines()[1:]
            of_steps = ((line.partition(",")[0], line) for line in lines)
            self._lines += [line for step, line in of_steps if step.isdecimal() and int(step) <= evaluated]

    def text(self, step: int, objective: Callable[[], Tensor]) -> str:
        """Return the content of the file, with rows of ``step`` if they are due. ``objective`` computes the loss."""
        last = self._lines[-1].partition(",")[0]
        is_due = not last.isdecimal() or step // PERIOD > int(last) // PERIOD
        for name, values in self.observe(objective).items() if is_due else ():
            numbers = ("" if value is None else f"{value:.6g}" for value in values.values())
            self._lines.append(",".join((str(step), name, *numbers)))
        return "\n".join(self._lines) + "\n"

    def observe(self, objective: Callable[[], Tensor]) -> dict[str, dict[str, float | None]]:
        """Return by name the ``QUANTITIES`` of each norm layer that ``objective()`` calls, in order of the calls."""
        found, watch = dict[Normaliser, Seen](), Watch()

        def look(layer: Normaliser, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = dict(zip(("x", "mask"), arguments, strict=False)) | options  # by position or by name
            x, mask = given["x"], given.get("mask")
            watch.layer = found.setdefault(layer, Seen())
            if x.requires_grad:
                x.register_hook(lambda of_x, to=watch.layer.gradients: to.append(of_x.float().square().sum()))
            vectors = x.detach()
            watch.layer.vectors.append(vectors.flatten(2) if layer.maps else vectors if mask is None else vectors[mask])

        names = {m: name for name, m in self.model.named_modules() if isinstance(m, Normaliser) and m.is_site}
        with ExitStack() as stack:
            stack.enter_context(kept_buffers(self.model))
            for layer in names:
                stack.callback(layer.register_forward_pre_hook(look, with_kwargs=True).remove)
            fused: list[Any] = [module for module in self.model.modules() if getattr(module, "fused", False)]
            for module in fused:
                stack.callback(setattr, module, "fused", True)
                module.fused = False  # hooks see each call of a norm, also in recurrences
            if self.model._compiled_call_impl is not None:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            with watch:
                loss = objective()
            parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            torch.autograd.grad(loss, parameters, allow_unused=True)
        return {names[layer]: seen.values(layer.effective_gain) for layer, seen in found.items()}
