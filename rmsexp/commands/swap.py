"""``python -m rmsexp.swap MODULE:MODEL --batch MODULE:BATCH``: what another norm would change in your own model.

MODEL() returns a new model each time, and BATCH(step) the batch of a training step, from 0 on: a dict for
model(**batch), a tuple for model(*batch), or a tensor. The loss is the model's output, its ``loss``, or what
--loss MODULE:LOSS returns for (output, batch). MODULE can be imported, such as a file in this folder.

All normalisation layers are replaced, as by rmsexp.convert. Then training steps are timed, interleaved in fresh
processes: of the model as it is, with the new norm (eager, fused, compiled), and with torch's own layers. Then the
model is trained as it is and with the new norm, with AdamW, for a few seeds, each on the same batches. The page
swap.html shows what was found, beside the report's curves of the runs. Earlier runs of these two, and those of other
norms by swaps with another rate or number of steps, are moved aside, to ``seed<seed>.old<number>``.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmsexp.config import classes, expanded
from rmsexp.records import record
from rmsexp.system import atomic, checks
from rmsexp.system.command_line import ConfigError, Parser, command, entry_point, inform, number

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rmsexp.commands.compare_steps import StepTimes
    from rmsexp.norms.convert import Conversion
    from rmsexp.train.recorder import Recorder

AS_IS = "as is"
TORCHS = {"nn.LayerNorm": "torch.nn.LayerNorm", "nn.RMSNorm": "torch.nn.RMSNorm"}
SCORED = 5  # the loss of a run is the mean over its last 1 / SCORED steps
POINTS = 100  # rows in the record of a run, each with the mean loss since the row before
NOT_SEEN = "not distinguishable from 0"
ROUNDING = 1e-6  # relative differences of the loss below this are called rounding
PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Should I swap?</title>
<style>body {font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em}
table {border-collapse: collapse} td, th {padding: .2em .8em; border-bottom: 1px solid #ccc; text-align: left}
img {max-width: 100%} pre {overflow-x: auto}</style>
<h1>{{ found.title }}</h1>
<p><strong>{{ found.says }}</strong></p>
<p>{{ found.cannot_say }}</p>
{{ found.times.table.to_html(index=False, border=0)|safe }}
{% for line in found.times.notes %}<p>{{ line }}</p>{% endfor %}
<p>Parameters: {{ "{:,}".format(found.parameters[0]) }} before, {{ "{:,}".format(found.parameters[1]) }} after.</p>
<pre>{{ found.conversion }}</pre>
{% if drawn %}<img src="comparison/curves.svg" alt="training loss against steps and time">{% endif %}
<p>All records: <code>{{ command }}</code></p>
</html>
"""


@dataclass(frozen=True)
class UserModel:
    """A user's model and data, as :func:`swap` describes them. The processes that time steps get it pickled."""

    model: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Tensor] | None
    where: str
    config_dir: str | None
    lr: float
    device: str

    def build(self, norm: str, impl: str) -> tuple[nn.Module, Conversion | None]:
        """Return a new model and its conversion (AS_IS: None). ``norm``: AS_IS, a key of TORCHS, or a norm's name."""
        from rmsexp.norms import composed, convert

        model = self.model().to(self.device).train()
        if norm == AS_IS:
            return model, None
        if norm not in TORCHS:
            return model, convert.convert(model, norm, impl=impl, where=self.where, config_dir=self.config_dir)
        done = convert.convert(model, "module", where=self.where, module=TORCHS[norm])
        for parent in list(model.modules()):  # torch's layers themselves, without checks of their input
            for name, child in list(parent.named_children()):
                if isinstance(child, composed.Wrapped) and not child.maps:
                    parent.add_module(name, child.inner)
        return model, done

    def can_be(self, norm: str, impl: str) -> bool:
        """Return whether ``norm`` in ``impl`` can replace any layer."""
        try:
            done = self.build(norm, impl)[1]
        except ValueError:  # also ConfigError
            return False
        return done is not None and len(done.replaced) > 0

    def on_device(self, step: int) -> Any:
        """Return the batch of a step, on the device."""
        return _moved(self.batch(step), self.device)

    def trainer(self, norm: str, impl: str) -> Callable[[Any], Tensor]:
        """Return a function that takes a training step of a new model on a batch, and returns its loss."""
        import torch

        model, _ = self.build(norm, impl)
        optimiser = torch.optim.AdamW(model.parameters(), lr=self.lr)

        def step(batch: Any) -> Tensor:
            keywords, several = isinstance(batch, Mapping), isinstance(batch, tuple | list)
            loss = self._loss(model(**batch) if keywords else model(*batch) if several else model(batch), batch)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            return loss.detach()

        return step

    def timed(self, norm: str, impl: str) -> Callable[[], object]:
        """Return a training step for :func:`rmsexp.compare_steps`, always on the batch of step 0."""
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # compile here, not in further processes
        return partial(self.trainer(norm, impl), self.on_device(0))

    def _loss(self, output: Any, batch: Any) -> Tensor:
        import torch

        found: Any = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
        if self.loss is not None:
            found = self.loss(output, batch)
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            own = "give --loss MODULE:LOSS, a function of (output, batch)"
            advice = own if self.loss is None else "return a scalar"
            raise ConfigError(f"the model's output ({type(output).__name__}) gives no loss: {advice}")
        return found


def _moved(batch: Any, device: str) -> Any:
    if hasattr(batch, "to"):  # a tensor, or such as a BatchEncoding of transformers
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [_moved(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else moved  # a NamedTuple keeps its names
    return batch


@dataclass(frozen=True)
class Swap:
    """What :func:`swap` found.

    Attributes:
        impl: the form of the new norm in the training.
        conversion: the layers that were replaced, and those that were not, each with the reason.
        parameters: the number of parameters before and after.
        losses: by model, the training losses, ``(seed, step)``; after a loss that is not finite, NaN.
    """

    norm: str
    impl: str
    conversion: Conversion
    parameters: tuple[int, int]
    times: StepTimes
    losses: dict[str, np.ndarray[Any, np.dtype[np.float64]]]
    page: Path

    @property
    def difference(self) -> tuple[float, float, float, int] | None:
        """The loss at the end with the new norm minus that of the original model.

        Mean over the seeds that finished with both models, low and high end of its 95 % interval, and the number of
        these seeds; None if there are fewer than two.
        """
        from rmsexp.rules.significance import interval

        scored = {name: loss[:, -_scored(loss.shape[1]) :].mean(axis=1) for name, loss in self.losses.items()}
        pairs = scored[self.norm] - scored[AS_IS]
        ended = pairs[np.isfinite(pairs)]
        return (float(ended.mean()), *interval(ended, 0.025), len(ended)) if len(ended) > 1 else None

    @property
    def title(self) -> str:
        """What was changed."""
        return f"{self.norm} in place of {len(self.conversion.replaced)} normalisation layers"

    @property
    def says(self) -> str:
        """What the measurements say, in one sentence."""
        rows = {str(row["series"]): row for row in self.times.rows.to_dict("records")}
        row = rows[f"{self.norm} {self.impl}"]
        change, low, high = (100 * (float(row[key]) - 1) for key in ("ratio", "low", "high"))
        time = f"changes the time of a training step by {change:+.1f} % ({low:+.1f} to {high:+.1f} %, {self.impl})"
        time += "" if low > 0 or high < 0 else f", {NOT_SEEN}"
        diverged = [name for name, values in self.losses.items() if not np.isfinite(values).all()]
        steps, found = self.losses[AS_IS].shape[1], self.difference
        if diverged:
            loss = f"; training diverged ({' and '.join(diverged)})"
        elif found is None:
            loss = "; one seed says nothing about the loss"
        else:
            mean, low, high, seeds = found
            largest, loss_size = max(abs(low), abs(high)), float(np.abs(self.losses[AS_IS]).max())
            sees = "" if low > 0 or high < 0 else f", {NOT_SEEN}"
            sees = ", as much as by rounding" if largest < ROUNDING * loss_size else sees
            numbers = f"{mean:+.3g} ({low:+.3g} to {high:+.3g}, seeds: {seeds})"
            last = f"the last {_scored(steps)} of {steps} steps"
            loss = f", and the training loss, averaged over {last}, by {numbers}{sees}"
        return f"{self.title} {time}{loss}."

    @property
    def cannot_say(self) -> str:
        """What the measurements cannot say, in one sentence."""
        smaller = ""
        if found := self.difference:
            _, low, high, _ = found
            smaller = f"whether the loss changes by less than {(high - low) / 2:.2g}, "
        return (
            f"This cannot say {smaller}what it is after longer training, at another learning rate or on other data, "
            "nor how much time is saved on another machine or with other sizes of batches."
        )

    def __str__(self) -> str:
        before, after = self.parameters
        return f"{self.times}\nparameters {before:,} before, {after:,} after\n{self.says}\n{self.cannot_say}"


def swap(
    model: Callable[[], nn.Module],
    batch: Callable[[int], Any],
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    norm: str = "rms",
    where: str = "*",
    name: str = "my_model",
    steps: int = 200,
    seeds: int = 3,
    lr: float = 3e-4,
    processes: int = 6,
    budget: float = 300.0,
    results: str | Path = "results",
    device: str | None = None,
    config_dir: str | None = None,
    report: Callable[[str], None] = inform,
) -> Swap:
    """Measure what another norm changes in a model, write a page on it, and return what was found.

    Args:
        model: Returns a new model each time.
        batch: Returns the batch of a training step, from 0 on, which is the model's input: a dict, a tuple or a tensor.
            Each seed has steps of its own.
        loss: Returns the loss of (output, batch); by default it is the output, or its attribute ``loss``.
        norm: The new norm with its options, as in ``prms+p=0.5``.
        where, config_dir: Which layers are replaced, and a folder of your own norms, as for :func:`rmsexp.convert`.
        name: The name of the model. All is written to ``<results>/<name>/own``. Earlier runs there of these two models,
            and those of other norms by swaps with another lr or number of steps, are moved aside.
        steps, seeds, lr: Steps and number of seeds of the training with AdamW, and its learning rate.
        processes, budget: Number of the processes that time steps, and seconds for all of them.
        device: By default the GPU if there is one.

    Raises: ConfigError or ValueError for a mistake, and if no layer can be replaced; ProcessError if a process that
    times steps fails.
    """
    import torch
    from jinja2 import Environment

    from rmsexp.commands.compare_steps import compare_steps
    from rmsexp.norms import kernels
    from rmsexp.records.frames.load import options
    from rmsexp.report import draw
    from rmsexp.report.setting_report import NoMetricsError
    from rmsexp.train.device import available
    from rmsexp.train.recorder import Recorder

    for key, value, least in (("steps", steps, SCORED), ("seeds", seeds, 1)):
        checks.at_least(key, value, least)
    checks.positive("lr", lr)
    used = str(available(device))
    first, second = (model, model) if isinstance(model, torch.nn.Module) else (model(), model())
    if not isinstance(first, torch.nn.Module) or not set(first.parameters()).isdisjoint(second.parameters()):
        raise ConfigError("model must be a function without arguments that returns a new nn.Module each time")
    parameters = _parameters(first)
    del first, second  # large ones would take memory from the processes that time steps
    try:
        inspect.signature(batch).bind(0)
    except TypeError as error:
        raise ConfigError(f"batch must be a function of the step: {error}") from None
    except ValueError:  # a function written in C tells no signature
        pass
    own, results = UserModel(model, batch, loss, where, config_dir, lr, used), expanded(results)
    converted, done = own.build(norm, "eager")
    if done is None or not done.replaced:
        raise ValueError(f"no layer can be replaced; {done}")
    sizes = parameters, _parameters(converted)
    own.trainer(norm, "eager")(own.on_device(0))  # shows mistakes in batch and loss at once
    report(str(done))
    impl = "fused" if own.can_be(norm, "fused") and kernels.load() else "eager"
    makers = {AS_IS: partial(own.timed, AS_IS, "eager")}
    makers |= {f"{norm} {form}": partial(own.timed, norm, form) for form in dict.fromkeys(("eager", impl, "compiled"))}
    makers |= {each: partial(own.timed, each, "eager") for each in TORCHS if own.can_be(each, "eager")}
    times = compare_steps(makers, name, results=results, processes=processes, budget=budget, device=used, report=report)
    losses, config = {}, {"swap.lr": lr, "swap.steps": steps}
    for folder in list(record.find_runs(results / name / "own")):  # the page would show what cannot be compared
        earlier = {key: value for key, value in options(folder).items() if key in config}
        if folder.parent.name in (AS_IS, norm) or earlier not in ({}, config):
            with (files := record.RunFolder(folder)).lock.held():
                files.move_aside()
    recorded: dict[str, Any] = {"results": results, "target": ("train", "loss", "min"), "device": used, "force": True}
    for label, form in ((AS_IS, "eager"), (norm, impl)):
        runs = []
        for seed in range(seeds):
            report(f"training {label}, seed {seed}: {steps} steps")
            torch.manual_seed(seed)
            step = own.trainer(label, form)
            with Recorder(name, label, seed, config=config, **recorded) as recorder:
                runs.append(_train(own, step, recorder, seed, steps))
        losses[label] = np.array(runs)
    drawn = None
    with suppress(NoMetricsError):  # no model had a finite loss
        drawn = draw(results, name, "own")
    found = Swap(norm, impl, done, sizes, times, losses, results / name / "own" / "swap.html")
    page, next_command = Environment(autoescape=True).from_string(PAGE), command("rmsexp.report", str(results))
    atomic.write_atomic(found.page, page.render(found=found, command=next_command, drawn=drawn))
    return found


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _scored(steps: int) -> int:
    """Return the number of the last steps over which the loss is averaged."""
    return max(1, steps // SCORED)


def _train(own: UserModel, step: Callable[[Any], Tensor], recorder: Recorder, seed: int, steps: int) -> list[float]:
    """Take the steps of a run, record the mean loss of each hundredth, and return all; NaN after one not finite.

    The last mean is of the steps that are left.
    """
    losses, window = list[float](), max(1, steps // POINTS)
    for at in range(steps):
        losses.append(float(step(own.on_device(seed * steps + at))))
        if (at + 1) % window == 0 or at + 1 == steps or not math.isfinite(losses[-1]):
            recorder.log(at + 1, loss=float(np.mean(losses[at // window * window :])))
        if not math.isfinite(losses[-1]):
            break
    return losses + [math.nan] * (steps - len(losses))


@entry_point
def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m rmsexp.swap", description=__doc__)
    parser.add_argument("model", metavar="MODULE:MODEL", help="returns a new model each time")
    parser.add_argument("--batch", metavar="MODULE:BATCH", required=True, help="returns the batch of a step")
    parser.add_argument("--loss", metavar="MODULE:LOSS", help="returns the loss of (output, batch)")
    parser.add_argument("--norm", default="rms", help="the new norm, with options as in prms+p=0.5 (%(default)s)")
    parser.add_argument("--where", default="*", metavar="PATTERN", help="only layers whose names match (%(default)s)")
    parser.add_argument("--name", default="my_model", help="the name of the model in the results (%(default)s)")
    for key, kind, default, text in (
        ("steps", int, 200, "training steps of a run"),
        ("seeds", int, 3, "runs of each model"),
        ("lr", float, 3e-4, "learning rate of AdamW"),
        ("processes", int, 6, "processes that time steps; 1 is a quick look"),
        ("budget", float, 300.0, "seconds for all of them"),
    ):
        least = sys.float_info.min if kind is float else 1
        parser.add_argument(f"--{key}", type=number(kind, least), default=default, help=f"{text} (%(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all records (%(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU if there is one")
    parser.add_config_dir()
    options = vars(parser.parse_args(argv))
    classes.make_importable(".")
    paths = {key: path for key in ("model", "batch", "loss") if (path := options.pop(key))}
    if wrong := [path for path in paths.values() if ":" not in path]:
        raise ConfigError(f"{wrong[0]} names no function; write MODULE:FUNCTION")
    own: dict[str, Any] = {key: classes.imported(path.replace(":", ".")) for key, path in paths.items()}
    found = swap(**own, **options)
    print(found, f"page    {found.page}", sep="\n")
    print(f"next    {command('rmsexp.report', str(found.page.parents[2]))}")
    return 0
