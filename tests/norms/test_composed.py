"""Norms by role and block, and any module as a norm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rmsexp
from rmsexp import config, norms
from rmsexp.config.words import overrides
from rmsexp.models.language_model import LanguageModel, Sizes
from rmsexp.norms.batch import without_batch_statistics
from rmsexp.norms.composed import Wrapped

SIZES = Sizes(width=16, layers=3, heads=4, kv_heads=2, inner=12, qk_norm=True)


def test_roles_and_blocks_choose_the_norm() -> None:
    norm = norms.ByRole(name="by_role", default="rms", roles={"query": "ln"}, depths={-1: "prms+p=0.5"})
    model = LanguageModel(norm, 13, SIZES)
    norm.check_effect(model)
    first, last = model.layers[0], model.layers[2]
    assert [type(layer) for layer in (first.attention.query, first.attention.key)] == [norms.LayerNorm, norms.RMSNorm]
    found: Any = [first.attended.before, last.attended.before, last.attention.query, model.end]
    assert [layer.p for layer in found] == [1.0, 0.5, 0.5, 1.0]


def check_effect(**options: Any) -> None:
    norm = norms.ByRole(name="by_role", **options)
    norm.check_effect(LanguageModel(norm, 13, SIZES))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"roles": {"queries": "ln"}}, "queries"),
        ({"roles": {"query": "lm"}}, "lm"),
        ({"roles": {"convolution": "ln"}}, "convolution"),
        ({"depths": {3: "ln"}}, "3"),
        ({"default": "rms+impl=fused"}, "with options of its own"),
        ({"default": "rms+model.qk_norm=true"}, "with options of its own"),
        ({"default": "rms+eps=${oc.env:HOME}"}, "with options of its own"),
        ({"default": "rms+axes=[1,2,3]"}, "axes"),
    ],
)
def test_mistakes(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check_effect(**options)


@pytest.mark.parametrize(("task", "eps"), [("language_model", 1e-5), ("cifar10", 1e-6)])
def test_norms_that_state_no_eps_have_that_of_the_task(task: str, eps: float) -> None:
    norm = config.job([f"task={task}", "norm=by_role", "norm.depths={0: 'ln+eps=0.5'}"]).norm
    assert [norm.normaliser(norms.Site("x", 4, depth=depth)).eps for depth in (0, 1)] == [0.5, eps]


def test_other_options_of_the_task_and_the_defaults_of_an_object() -> None:
    assert config.job(["task=language_model", "norm=by_role", "norm.default=wn"]).norm.parts[0].keep_scale
    assert norms.ByRole(name="mine").parts[0].eps == norms.RMS(name="rms").eps == 1e-5


def test_batch_statistics_are_refused_for_a_role_too() -> None:
    def made(norm: norms.Norm) -> nn.Module:
        return without_batch_statistics(nn.Sequential(norm.at(role="query").value("query", 4)))

    made(norms.ByRole(name="by_role", roles={"query": "bn"}))
    with pytest.raises(ValueError, match=r"eval=batch"):
        made(norms.ByRole(name="by_role", roles={"query": "bn+eval=batch"}))
    batch = norms.ModuleNorm(name="module", module="torch.nn.BatchNorm1d", kwargs={"track_running_stats": False})
    with pytest.raises(ValueError, match="track_running_stats=false"):
        made(batch)


def wrapped(module: str, features: int, maps: bool = False, **kwargs: Any) -> Wrapped:
    norm = norms.ModuleNorm(name="module", module=module, kwargs=kwargs)
    return norm.normaliser(norms.Site("layers.0.end", features, maps))


def test_a_module_of_torch_normalises_each_position_and_feature_maps() -> None:
    x, maps = torch.randn(2, 3, 8), torch.randn(2, 8, 5, 5)
    own, ours = nn.GroupNorm(4, 8), wrapped("torch.nn.GroupNorm", 8, num_groups=4)
    torch.testing.assert_close(ours(x), torch.stack([own(row) for row in x]))
    torch.testing.assert_close(wrapped("torch.nn.GroupNorm", 8, maps=True, num_groups=4)(maps), own(maps))
    layer = nn.LayerNorm(8)
    torch.testing.assert_close(wrapped("torch.nn.LayerNorm", 8)(x), layer(x))
    by_position = layer(maps.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(wrapped("torch.nn.LayerNorm", 8, maps=True)(maps), by_position)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("torch.nn.GroupNorm", {"num_groups": 3}),
        ("torch.nn.LayerNorm", {"nam": 1}),
        ("torch.nn.Linear", {"out_features": 2}),
    ],
)
def test_errors_name_the_site(module: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"layers\.0\.end"):
        wrapped(module, 8, **options)(torch.randn(2, 8))


def test_the_command_line_names_a_module() -> None:
    words = overrides(["norm.kwargs={num_groups: 2}", "task=cifar10", "norm=module", "norm.class=torch.nn.GroupNorm"])
    job = config.job(words)
    assert job.series == "module+kwargs.num_groups=2+module=torch.nn.GroupNorm"
    with pytest.raises(config.ConfigError, match=r"torch\.nn\.Groupnorm"):
        config.job(["task=cifar10", "norm=module", "norm.module=torch.nn.Groupnorm"])


@dataclass(frozen=True, kw_only=True)
class Doubled(norms.Norm):
    factor: float = 2.0

    def normaliser(self, site: norms.Site) -> norms.RMSNorm:
        return norms.RMSNorm(site.features, 1e-6, bias=bool(site.shift), axes=(2, 3) if site.feature_maps else None)


@pytest.mark.usefixtures("small_synthetic_data")
def test_a_norm_object_is_run_and_named(tmp_path: Path) -> None:
    def run(norm: norms.Norm) -> Any:
        sizes: Any = {"model.width": 16, "model.layers": 1, "model.inner": 24, "model.heads": 2, "model.kv_heads": 2}
        return rmsexp.run("language_model", norm, quiet=True, max_steps=1, results=tmp_path, threads=1, **sizes)

    assert run(Doubled(name="mine", factor=3.0)).folder.parent.name == "mine+factor=3.0"
    assert run(Doubled(name="mine")).folder.parent.name == "mine"
    eps = config.job(["task=language_model", "norm=rms"]).norm.eps
    assert run(norms.RMS(name="rms", eps=eps)).folder.parent.name == "rms"
    assert run(norms.RMS(name="rms", eps=0.5)).run["norm"] == "rms"


@pytest.mark.parametrize("name", ["my/norm", "..", "a b", "rms+p", "2", ""])
def test_the_name_of_a_norm_is_that_of_a_folder(name: str) -> None:
    with pytest.raises(config.ConfigError, match=r"^norm\.name="):
        config.job(["norm=rms"], own_norm=norms.RMS(name=name))
