"""The operators that layers call, and the functions over sequences, refuse arguments that do not fit together.

Without these checks, kernels would read and write beyond the end of tensors.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from helpers.sequences import CELLS, form_of, inputs_of
from helpers.sites import draw, fill
from torch import Tensor

from rmsexp import norms
from rmsexp.models.recurrent import GRU, LSTM
from rmsexp.norms import kernels
from rmsexp.norms.kernels.norms import Kind

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fused_kernels")]

EPS = 1e-2
Arguments = dict[str, Any]


def operator(name: str) -> Any:
    """Return the operator of a case, whose name is "operator" or "operator, variant"."""
    return getattr(torch.ops.rmsexp, name.split(",")[0]).default


def norm_forward(x: Tensor, *, maps: bool, k: int) -> Arguments:
    width = x.shape[1]
    parameters = {"gain": draw(width, seed=1), "shift": draw(width, seed=2)}
    return {"x": x, **parameters, "maps": maps, "kind": Kind.LAYER, "k": k, "inside": True, "eps": EPS, "slope": 0.5}


def added(x: Tensor, addend: Tensor) -> Arguments:
    arguments = norm_forward(x, maps=False, k=x.shape[1])
    of_norm = {key: arguments[key] for key in ("gain", "shift", "kind", "k", "inside", "eps")}
    return {"x": x, "addend": addend, **of_norm}


def pointwise(x: Tensor) -> Arguments:
    numbers = {"alpha": draw(1, seed=1), "offset": draw(1, seed=2)}
    form = {"kind": Kind.ERF, "k": 1, "inside": True, "eps": 0.0}
    vectors = {"gain": draw(x.shape[1], seed=3), "shift": draw(x.shape[1], seed=4)}
    return {"x": x, **vectors, "maps": x.ndim == 4, **form, "slope": 0.5, **numbers}


def maps() -> Tensor:
    return draw(2, 5, 3, 4)


def channels_last() -> Tensor:
    return maps().contiguous(memory_format=torch.channels_last)


CASES: dict[str, Callable[[], Arguments]] = {
    "normalise, rows": lambda: norm_forward(draw(3, 5), maps=False, k=5),
    "normalise, maps": lambda: norm_forward(maps(), maps=True, k=12),
    "normalise, channels-last maps": lambda: norm_forward(channels_last(), maps=True, k=12),
    "add_normalise, rows": lambda: added(draw(3, 5), draw(3, 5, seed=3)),
    "normalise, pointwise, rows": lambda: pointwise(draw(3, 5)),
    "normalise, pointwise, channels-last maps": lambda: pointwise(channels_last()),
    **{cell: partial(inputs_of, cell) for cell in CELLS},
}


def of_other_sizes(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    for axis in range(tensor.dim()):
        yield f"axis {axis} one shorter", tensor.narrow(axis, 0, tensor.shape[axis] - 1).clone()
        yield f"axis {axis} one longer", torch.cat([tensor, tensor.narrow(axis, 0, 1)], axis)
    yield "one axis more", tensor.unsqueeze(0).clone()
    yield "one axis fewer", tensor[0].clone()


def of_other_dtypes(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "integers", tensor.to(torch.int64)
    yield "single precision", tensor.float()
    yield "on the meta device", tensor.to("meta")


def changes(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Yield what was changed, and the arguments with one tensor replaced."""
    for key, value in arguments.items():
        for what, other in (*of_other_sizes(value), *of_other_dtypes(value)) if isinstance(value, Tensor) else ():
            yield f"{key}, {what}", {**arguments, key: other}


def fits(name: str, what: str) -> bool:
    """Return whether the arguments still fit together after a change of one of them."""
    key, change = what.split(", ")
    if name in CELLS:  # only x has the target's positions
        return name == "decoder" and key == "x" and change.startswith("axis 1 one")
    if key in ("gain", "shift", "alpha", "offset"):
        return change == "single precision"
    if name.startswith("add"):  # x or addend alone; they may have different dtypes
        return change == "single precision" or what == "addend, integers"
    if key != "x":
        return False
    channels_or_axes = {"axis 1 one shorter", "axis 1 one longer", "one axis more", "one axis fewer"}
    refused = channels_or_axes if "maps" in name else {"axis 1 one shorter", "axis 1 one longer"}
    return change not in {*refused, "integers", "on the meta device"}


def call(name: str, arguments: Arguments) -> list[Tensor]:
    """Call an operator, or a function over whole sequences, with copies of the tensors, and return its results."""
    copies = copy.deepcopy(arguments)  # clone() would close gaps in memory
    form = copies.pop("form", None) or (form_of(name, "ln") if name in CELLS else None)
    results = kernels.sequence(name, form, EPS, copies) if name in CELLS else operator(name)(*copies.values())
    return [results] if isinstance(results, Tensor) else list(results)


@pytest.mark.parametrize("missing", ["gain", "alpha"])
def test_pointwise_functions_need_gain_and_alpha(missing: str) -> None:
    with pytest.raises(ValueError, match="a pointwise function needs gain and alpha"):
        call("normalise", {**pointwise(draw(3, 5)), missing: None})


@pytest.mark.parametrize("name", CASES)
def test_tensors_that_do_not_fit(name: str) -> None:
    arguments = CASES[name]()
    call(name, arguments)
    accepted, messages = [], []
    for what, changed in changes(arguments):
        if fits(name, what):
            call(name, changed)
            continue
        try:
            call(name, changed)
            accepted.append(what)
        except NotImplementedError:
            continue  # raised by torch for a dtype or device that the operator does not support
        except (ValueError, RuntimeError) as error:
            messages.append(str(error))
    assert not accepted
    assert max(map(len, messages)) < 300


@pytest.mark.parametrize("name", CASES)
def test_tensors_with_gaps_in_memory(name: str) -> None:
    """An operator refuses a tensor whose elements along the last axis are not adjacent, or has the same results."""
    arguments = CASES[name]()
    expected = call(name, arguments)
    for key, value in arguments.items():
        if isinstance(value, Tensor):
            gaps = torch.stack([value, value], -1)[..., 0]
            try:
                results = call(name, {**arguments, key: gaps.as_strided(gaps.shape, gaps.stride())})
            except ValueError:
                continue
            for result, other in zip(results, expected, strict=True):
                torch.testing.assert_close(result, other, rtol=1e-10, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", [name for name in CASES if "pointwise" not in name])
def test_statistics_of_more_units_than_there_are(name: str) -> None:
    arguments = CASES[name]()
    if name in CELLS:
        rms = [Kind.RMS, *form_of(name, "ln")[1:]]
        forms = [[*rms[:place], k, *rms[place + 1 :]] for place in (1, 2) for k in (0, rms[place] + 1)]
        wrong: list[Arguments] = [{"form": form} for form in forms]
    else:
        n = 12 if "maps" in name else 5
        wrong = [{"kind": Kind.RMS, "k": k} for k in (0, n + 1)]
    for change in wrong:
        with pytest.raises(ValueError, match=r"expected from 1 to .* units"):
            call(name, {**arguments, **change})


@pytest.mark.parametrize("unit", [GRU, LSTM])
def test_recurrences_refuse_an_input_without_time(unit: type[GRU]) -> None:
    with pytest.raises(ValueError, match="time"):
        fill(unit(norms.RMS(name="rms", impl="fused"), "u", 5, 8)).float()(torch.ones(4, 5))


def test_a_layer_on_another_device_than_its_input() -> None:
    with pytest.raises(ValueError, match="meta"):
        norms.RMSNorm(4, impl="fused", device="meta")(torch.ones(2, 4))
