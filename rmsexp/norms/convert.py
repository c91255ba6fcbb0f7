"""Replace the normalisation layers of any model by another norm: :func:`convert`."""

import copy
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rmsexp.config import classes
from rmsexp.config.words import norm_words, override
from rmsexp.norms.base import IMPLS, NAMES, FusedNormaliser, Identity, Norm, Normaliser, Site
from rmsexp.norms.batch import BatchNorm
from rmsexp.norms.composed import OF_CHANNELS, ByRole, ModuleNorm, Wrapped, composed_norm
from rmsexp.norms.per_example import LayerNorm, PerExampleNorm
from rmsexp.norms.rms import RMSNorm
from rmsexp.system import checks

OF_MAPS = (nn.GroupNorm, nn.BatchNorm2d, nn.SyncBatchNorm, nn.InstanceNorm2d)  # those whose input is feature maps
EPS = ("eps", "variance_epsilon", "epsilon", "norm_eps")  # the names of eps in classes of other libraries
NEW_EPS = 1e-5  # of layers that take the place of one without eps, if the norm states none
OTHER_EPS = 0.5  # by layers made with it shows which norms state an eps of their own
SCALES = (1.0, 1e-2, 1e-4, 0.0)  # of random inputs on which two layers are compared
TINY = 1e-24  # an eps that only turns 0 / 0 into 0, as the one of F.normalize does
ALIKE = 1e-4  # largest difference of the outputs of two layers that compute the same
OF_HEADS = {"query": r"^(q|query).*norm", "key": r"^(k|key).*norm", "value": r"^(v|value).*norm"}
OF_SUBLAYERS = {"attention": "attn|attention", "feed-forward": "mlp|ffn|feed"}
ON_WEIGHTS = "acts on weights, and cannot take the place of a layer"
Moved = dict[tuple[nn.Parameter, float], nn.Parameter]  # the new gain by the old one and what was added to it


class Layer(NamedTuple):
    """A normalisation layer of a model.

    Attributes:
        name: its name in ``model.named_modules()``.
        module: the layer.
        depth: the number, from 0, of its block among those with normalisation layers; None outside. Blocks are the
            elements of lists of modules, such as ``layers.3``; of lists in lists, those of the innermost whose elements
            have two such layers.
        layers: the number of blocks with normalisation layers.
        role: what it normalises. In a block: "convolution" for torch's group, batch and instance norms; else "query",
            "key" or "value" by its name; else "attention" or "feed-forward" by the module around it or its place in the
            block. Outside of blocks: "embedding" before the first block or by its name, else "output".
    """

    name: str
    module: nn.Module
    depth: int | None
    layers: int
    role: str

    def __str__(self) -> str:
        return f"{self.name} ({type(self.module).__name__})"


@dataclass(frozen=True)
class Conversion:
    """What :func:`convert` did.

    Attributes:
        replaced: the layers that were replaced, each with what the new layer lacks, such as "bias", or "".
        left: the layers that were not, each with the reason.
    """

    replaced: tuple[tuple[Layer, str], ...]
    left: tuple[tuple[Layer, str], ...]

    def __str__(self) -> str:
        """Return the number of layers that were replaced, and a line for each thing that they lack and each reason."""
        lines = [f"replaced {len(self.replaced)} layers"]
        for text, found in (("now without {}", self.replaced), ("not replaced: {}", self.left)):
            for reason in dict.fromkeys(reason for _, reason in found if reason):
                names = [str(layer) for layer, other in found if other == reason]
                shown = ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)
                lines.append(f"{text.format(reason)}: {shown}")
        return "\n".join(lines)


def convert(
    model: nn.Module,
    norm: str | Norm,
    *,
    impl: str | None = None,
    where: str | Callable[[Layer], bool] = "*",
    config_dir: str | None = None,
    **options: object,
) -> Conversion:
    """Replace the normalisation layers of a model, in place, and return what was replaced, what was not, and why.

    These are torch's LayerNorm, RMSNorm, GroupNorm, batch and instance norms; layers of this package; and layers of any
    other library that compute LayerNorm or RMSNorm, as their results for random input show. A layer that is used at
    several places is replaced by one layer.

    A new layer takes over eps, unless the norm states its own (a norm object: other than its class's default); gain and
    bias, as far as it has them; all other parameters and buffers of a layer of the same class; device, dtype, mode and
    ``requires_grad``. Parameters are the same as before, except for a gain that was stored as its difference from 1 and
    no longer is, or the reverse. A norm replaced by itself computes the same as before. Batch norms are not replaced by
    batch norms; new ones count positions in the running variance, as torch's do.

    Norms whose layers have an ``add`` or a ``set_step`` of their own replace nothing, since only our tasks call these.

    Args:
        model: The model; not a single normalisation layer.
        norm: A norm, as in "rms" or "prms+p=0.5", or a norm object, such as ``RMS(name="rms", eps=1e-6)``.
        impl: "eager", "fused", or "compiled" (eager layers, each compiled by torch.compile); by default the norm's.
        where: Which layers: a pattern of their names, such as ``"*.q_norm"``, or a predicate of a :class:`Layer`.
        config_dir: A folder of your own configs, as for ``--config-dir``, for norms of your own.
        options: Options of the norm, as in ``configs/norm``, such as ``bias=True`` or ``p=0.5``.

    Raises: ValueError for a model without such layers, an unknown ``impl``, a norm that acts on weights, and a role or
    block of ``by_role`` that no chosen layer has; ConfigError for an unknown norm or option; TypeError for an unknown
    option of a norm object.
    """
    chosen, other, stated = _norm(norm, impl, config_dir, options)
    found, like = layers(model), next((each for each in model.parameters() if each.is_floating_point()), None)
    if not found:
        raise ValueError(f"{type(model).__name__} contains no normalisation layers")
    replaced, left = list[tuple[Layer, Normaliser, str]](), list[tuple[Layer, str]]()
    moved: Moved = {}
    for layer in found:
        if not (where(layer) if callable(where) else fnmatchcase(layer.name, where)):
            left.append((layer, "not chosen by where"))
            continue
        try:
            replaced.append((layer, *_instead_of(layer, chosen, other, stated, like, moved)))
        except ValueError as error:
            left.append((layer, str(error)))
    if isinstance(chosen, ByRole):
        chosen.check_used()
    for layer, new, _ in replaced:
        if impl == "compiled":
            new.compile()
        for parent in list(model.modules()):
            if isinstance(parent, nn.TransformerEncoder) and layer.module in set(parent.layers.modules()):
                parent.use_nested_tensor = False  # else it passes nested tensors, which only torch's LayerNorm takes
            for name in [name for name, child in parent._modules.items() if child is layer.module]:
                parent.add_module(name, new)
                if isinstance(parent, nn.TransformerEncoderLayer):
                    parent.activation_relu_or_gelu = 0  # else torch computes LayerNorm from norm1.weight in evaluation
    return Conversion(tuple((layer, lacks) for layer, _, lacks in replaced), tuple(left))


def _norm(
    norm: str | Norm, impl: str | None, config_dir: str | None, options: Mapping[str, object]
) -> tuple[Norm, Norm, set[str]]:
    """Return the norm that the arguments of :func:`convert` describe, one with another eps unless it states one, and
    the names of the options that the arguments set.
    """
    if impl is not None:
        checks.choice("impl", impl, (*IMPLS, "compiled"))
        options = {**options, "impl": "eager" if impl == "compiled" else impl}
    stated = {*options}
    if isinstance(norm, str):
        words = [*norm_words(norm), *(override(f"norm.{key}", value) for key, value in options.items())]
        chosen, other = (composed_norm([*words, f"norm_eps={eps}"], config_dir) for eps in (NEW_EPS, OTHER_EPS))
        stated |= _options(words)
    else:
        chosen = other = replace(norm, **options)  # type: ignore[arg-type]
        if hasattr(chosen, "eps") and "eps" not in options and chosen.eps == getattr(type(chosen), "eps", None):
            other = replace(chosen, eps=OTHER_EPS)  # type: ignore[call-arg]
        for path in chosen.imports:
            classes.imported(path)
    if isinstance(chosen, ModuleNorm):
        stated |= {*(chosen.kwargs or {})}
    if chosen.reparametrisation(Site("layer", 4)) is not None:
        raise ValueError(f"norm={chosen.name} {ON_WEIGHTS}")
    return chosen, other, stated


def _options(words: Sequence[str]) -> set[str]:
    """Return the options of a norm that overrides such as ``norm.p=0.5`` set."""
    return {word.partition("=")[0].removeprefix("norm.") for word in words}


def layers(model: nn.Module) -> list[Layer]:
    """Return the normalisation layers of a model, each once, with name, block and role."""
    whole = [module for module in model.modules() if isinstance(module, Normaliser)]
    parts = {part for module in whole for child in module.children() for part in child.modules()}
    modules = [(name, module) for name, module in model.named_modules() if name and module not in parts]
    named = [(name, module) for name, module in modules if _is_norm(module)]
    of_block: dict[str, list[str]] = {}
    block_of = _blocks([name for name, _ in named])
    for name, block in block_of.items():
        of_block.setdefault(block, []).append(name)
    blocks, found = [block for block in of_block if block], list[Layer]()
    for name, module in named:
        if block := block_of[name]:
            role = _role(name.removeprefix(block), module, [other.removeprefix(block) for other in of_block[block]])
            found.append(Layer(name, module, blocks.index(block), len(blocks), role))
        else:
            is_output = any(layer.depth is not None for layer in found) and "embed" not in name.lower()
            found.append(Layer(name, module, None, len(blocks), "output" if is_output else "embedding"))
    return found


def _is_norm(module: nn.Module) -> bool:
    """Return whether a module is a normalisation layer, or should be one by the name of its class."""
    if isinstance(module, (Normaliser, *OF_CHANNELS)):
        return not isinstance(module, Identity)
    is_leaf = next(module.children(), None) is None
    return is_leaf and ("norm" in type(module).__name__.lower() or equal(module) is not None)


def _blocks(names: Sequence[str]) -> dict[str, str]:
    """Return the block of each layer by its name, such as "layers.3."; "" outside of blocks.

    It is the element of the innermost list that has two layers or more, without those of heads, else that of the
    outermost list. A single layer in a module beside a list of blocks, as that between stages of transformers' Swin,
    is outside of blocks.
    """
    lists = {name: [name[: at.end()] for at in re.finditer(r"(?<![^.])(\w+_)?\d+\.", name)] for name in names}
    count = Counter(each for name in names if not _is_of_heads(name) for each in lists[name])
    blocks = {
        name: next((each for each in found[::-1] if count[each] > 1), (found or [""])[0])
        for name, found in lists.items()
    }
    own = Counter(block for name, block in blocks.items() if not _is_of_heads(name))
    outer = {each for block in blocks.values() for each in blocks.values() if block.startswith(each) and block != each}
    beside = {name for name, block in blocks.items() if own[block] < 2 and block in outer and "." in name[len(block) :]}
    return {name: "" if name in beside else block for name, block in blocks.items()}


def _is_of_heads(name: str) -> bool:
    return bool(_found(OF_HEADS, name.rpartition(".")[2]))


def _role(name: str, module: nn.Module, of_block: Sequence[str]) -> str:
    """Return the role of a layer in a block, whose layers have the names ``of_block``; names are those in the block."""
    if isinstance(module, OF_CHANNELS):
        return "convolution"
    around, _, own = name.rpartition(".")
    others = [other for other in of_block if not _is_of_heads(other)]
    if name not in others:
        return _found(OF_HEADS, own)
    in_order = "attention" if 2 * others.index(name) < len(others) else "feed-forward"
    return _found(OF_SUBLAYERS, around) or in_order


def _found(patterns: Mapping[str, str], name: str) -> str:
    """Return the key of the first pattern that occurs in a name; "" if none does."""
    return next((key for key, pattern in patterns.items() if re.search(pattern, name, re.I)), "")


def equal(module: nn.Module) -> Normaliser | None:
    """Return the LayerNorm or RMSNorm that computes the same as another library's layer, with its parameters; or None.

    Both are given random input and parameters, at several scales of the input, so that eps matters, too; and zeros,
    for which both may be NaN.
    """
    parameters = dict(module.named_parameters(recurse=False))
    if isinstance(module, torch.jit.ScriptModule) or any(map(nn.parameter.is_lazy, parameters.values())):
        return None
    shapes = {tuple(parameter.shape) for parameter in parameters.values()}
    if normalised := getattr(module, "normalized_shape", None):
        shapes.add((normalised,) if isinstance(normalised, int) else tuple(normalised))
    takes = len(inspect.signature(type(module).forward).parameters) - 1
    if takes != 1 or len(parameters) > 2 or len(shapes) != 1 or next(module.buffers(), None) is not None:
        return None
    (shape,) = shapes
    bias = next((name for name in parameters if name in ("bias", *NAMES["bias"])), None)
    gain = next((name for name in parameters if name != bias), None)
    if len(shape) != 1 or shape[0] < 2 or (bias is not None and gain is None):
        return None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        x = (torch.randn(len(SCALES), 2, *shape, generator=generator) + 0.5).float()
        x *= torch.tensor(SCALES).view(-1, 1, 1)
        try:
            probe = copy.deepcopy(module).to_empty(device="cpu").float().eval()
            for parameter in probe.parameters():
                parameter.copy_(0.5 + torch.rand(shape, generator=generator))
            y, trained = probe(x), probe.train()(x)
            if not torch.equal(y.nan_to_num(), trained.nan_to_num()):  # it does more in training, such as dropout
                return None
        except Exception:  # a module of any kind may raise anything, for copies and for this input
            return None
        for ours in _candidates(module, shape[0], gain is not None, bias is not None):
            _share(ours, probe, gain, bias)
            if y.shape == x.shape and torch.allclose(y, ours(x), ALIKE, ALIKE, True):
                _share(ours, module, gain, bias)
                return ours
    return None


def _candidates(module: nn.Module, n: int, gain: bool, bias: bool) -> Iterator[Normaliser]:
    """Yield the layers over ``n`` features that a layer of another library may be equal to."""
    values, p = [getattr(module, name) for name in EPS if hasattr(module, name)][:1], getattr(module, "p", 1.0)
    shares = {1.0, p} if isinstance(p, float) and 0 < p < 1 else {1.0}
    for eps in values or (0.0, TINY):
        yield LayerNorm(n, 1e-5 if eps is None else eps, gain, bias)
        for part, offset, inside in product(shares, (False, True), (True, False)):
            yield RMSNorm(n, eps, gain, bias=bias, p=part, weight_offset=offset and gain, eps_inside=inside)


def _share(ours: Normaliser, module: nn.Module, gain: str | None, bias: str | None) -> None:
    """Make the parameters of ``module`` that have the names ``gain`` and ``bias`` the weight and bias of ``ours``."""
    for own, name in (("weight", gain), ("bias", bias)):
        if name is not None:
            ours.register_parameter(own, module.get_parameter(name))


def _instead_of(
    layer: Layer, norm: Norm, other: Norm, stated: Set[str], like: Tensor | None, moved: Moved
) -> tuple[Normaliser, str]:
    """Return the layer of ``norm`` that replaces ``layer``, and what it lacks, such as "gain", "gain and bias" or "".

    ``norm``, ``other``, ``stated``: see :func:`_norm`. ``like``: gives device and dtype if the old layer has no gain.

    Raises: ValueError with the reason if the layer cannot be replaced.
    """
    old, lacks = layer.module, list[str]()
    inside, same = _known(old)
    gain, site = getattr(same, "weight", None), _site(layer, same)
    if isinstance(norm, ByRole):
        stated = {*stated, *_options(norm_words(norm.name_at(site)))}
    if norm.reparametrisation(site) is not None:
        raise ValueError(f"its norm {ON_WEIGHTS}")
    new, twin = norm.normaliser(site).train(old.training), other.normaliser(site)
    if type(new).set_step is not Normaliser.set_step or not type(new).add.__module__.startswith("rmsexp."):
        raise ValueError(f"{type(new).__name__} has a set_step or an add, which only tasks of this package call")
    own: Any = new.inner if isinstance(new, Wrapped) else new
    if isinstance(own, BatchNorm | _BatchNorm) and isinstance(inside, BatchNorm | _BatchNorm):
        raise ValueError("it is a batch norm already")
    own_offset = _gain_offset(own)
    if (like := gain if gain is not None else like) is not None:
        new.to(like.device, like.dtype)
    # whether it reads `weight` through `effective_gain`, and knows what eps=None means
    is_plain = isinstance(new, PerExampleNorm) and type(new).forward is FusedNormaliser.forward
    if hasattr(same, "eps") and (name := _free_eps(new, own, twin, stated)):
        knows_none = is_plain or type(own) is type(inside)
        setattr(own, name, same.eps if same.eps is not None or knows_none else torch.finfo(torch.float32).eps)
        if isinstance(same, RMSNorm) and not same.eps_inside and "eps_inside" not in stated:
            if isinstance(new, RMSNorm):
                new.eps_inside = False
            else:
                lacks.append("eps outside of the root")
    offset = same.gain_offset if isinstance(same, Normaliser) else 0.0
    if offset and is_plain and new.weight is not None and "weight_offset" not in stated:
        new.gain_offset = own_offset = offset
        new.initial_gain = 1.0 - offset
    taken: dict[str, Any] = {"weight": gain, "bias": getattr(same, "bias", None)}
    if type(own) is type(inside):
        taken = {**dict(inside.named_parameters()), **{key: each.clone() for key, each in inside.named_buffers()}}
    if gain is not None and (change := offset - own_offset):
        # of two layers that share a gain, the new layers share one
        shifted = moved.setdefault((gain, change), nn.Parameter(gain.detach() + change, gain.requires_grad))
        taken = {name: shifted if each is gain else each for name, each in taken.items()}
    if next(inside.parameters(), None) is None and "gain" not in stated and (is_plain or isinstance(new, BatchNorm)):
        new.weight, new.elementwise_affine = None, False
    lacks += _take(own, taken)
    trained = [parameter.requires_grad for parameter in inside.parameters()]
    if trained and not any(trained):  # a frozen layer
        new.requires_grad_(False)
    if isinstance(own, BatchNorm):
        own.counts_positions = True
    if isinstance(old, nn.BatchNorm1d) or _two_axes in old._forward_pre_hooks.values():
        new.register_forward_pre_hook(_two_axes)
    return new, " and ".join(lacks)


def _site(layer: Layer, same: Any) -> Site:
    """Return the site of a layer that computes the same as ``same``. Raises: ValueError if it has several axes."""
    old = layer.module
    maps = old.maps if isinstance(old, Normaliser) else isinstance(old, OF_MAPS)
    shape = same.shape if isinstance(same, Normaliser) else (getattr(same, "num_channels", None) or same.num_features,)
    if len(shape) != 1:
        raise ValueError("it normalises several axes")
    shift = None if getattr(same, "bias", None) is not None else False
    return Site(layer.name, int(shape[0]), maps, shift, depth=layer.depth, layers=layer.layers, role=layer.role)


def _gain_offset(own: nn.Module) -> float:
    """Return what a layer, or a module that one wraps, adds to its weight.

    That of a module which is neither LayerNorm nor RMSNorm is seen by the weight that it starts with.
    """
    known, weight = own if isinstance(own, Normaliser) else equal(own), getattr(own, "weight", None)
    return known.gain_offset if known is not None else float(weight is not None and not weight.any())


def _take(own: nn.Module, taken: Mapping[str, Tensor | None]) -> list[str]:
    """Give a module parameters and buffers by their names, and return the names of those that it lacks."""
    lacks, there = list[str](), {**dict(own.named_parameters()), **dict(own.named_buffers())}
    for name, each in ((name, each) for name, each in taken.items() if each is not None):
        fitting = [key for key in (name, *NAMES.get(name, ())) if key in there and there[key].shape == each.shape]
        if fitting:
            path, _, leaf = fitting[0].rpartition(".")
            setattr(own.get_submodule(path), leaf, each)
        else:
            lacks.append("gain" if name == "weight" else name)
    return lacks


def _known(old: nn.Module) -> tuple[nn.Module, Any]:
    """Return a layer, or the module that it wraps, and a layer of ours or of torch that computes the same.

    Raises: ValueError with the reason if it cannot be replaced, or if there is no such layer.
    """
    inside = old.inner if isinstance(old, Wrapped) else old
    for each in (old, inside):
        hooks = each._forward_hooks, each._forward_pre_hooks, each._backward_hooks, each._backward_pre_hooks
        own = [hook for kind in hooks for hook in kind.values() if hook is not _two_axes]
        if own or hasattr(each, "parametrizations"):
            raise ValueError("it has hooks or parametrisations")
    if isinstance(inside, nn.BatchNorm3d | nn.InstanceNorm1d | nn.InstanceNorm3d):
        raise ValueError("its input is neither (…, n) nor (batch, n, height, width)")
    if isinstance(inside, OF_CHANNELS) and not type(inside).forward.__module__.startswith("torch."):
        raise ValueError("its class computes more than that of torch")
    if isinstance(inside, nn.InstanceNorm2d) and inside.running_mean is not None:
        raise ValueError("it evaluates with running statistics (track_running_stats=True)")
    same: Any = inside if isinstance(inside, (Normaliser, *OF_CHANNELS)) else equal(inside)
    if same is None and next(inside.parameters(), None) is None:
        raise ValueError("it has no parameters that show its width")
    if same is None:
        raise ValueError("it does not compute LayerNorm or RMSNorm over the last axis")
    return inside, same


def _free_eps(new: Normaliser, own: Any, twin: Normaliser, stated: Set[str]) -> str:
    """Return the name of the attribute with the eps of ``own``; "" if there is none, or if the norm states its eps.

    ``own``: ``new``, or the module that it wraps. ``twin``: the layer of the other norm of :func:`_norm`. A default
    that BN's config or a class of another library has is not stated.
    """
    name = next((each for each in EPS if hasattr(own, each)), "")
    if name and (own is not new or isinstance(own, BatchNorm)):
        arguments = inspect.signature(type(own)).parameters
        default = next((arguments[each].default for each in EPS if each in arguments), None)
        return name if getattr(own, name) == default and stated.isdisjoint(EPS) else ""
    return name if name and getattr(new, name) != getattr(twin, name) else ""


def _two_axes(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if inputs[0].dim() != 2:
        raise ValueError(
            f"the layer in the place of a BatchNorm1d expects input (batch, features), got {tuple(inputs[0].shape)}; "
            "leave it out by convert(…, where=…)"
        )
