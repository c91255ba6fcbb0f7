"""RNNSearch with model.variant=nematus_theano against the formulas of Nematus for Theano (branch theano, 5727727).

The formulas are computed literally: weights (inputs, outputs) under the names in that code, axes (time, batch, units),
and a mask that keeps the old state on padding.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.sites import close, fill
from helpers.translation_models import RAGGED, SOURCES, TARGETS, batch_of, pairs, parameters
from torch import Tensor

from rmsexp import norms
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.tasks import rnnsearch
from rmsexp.train.optim import TensorFlowAdamConfig, clip_global
from rmsexp.train.randomness import stream

E, H = 3, 4
EPS = 1e-5
# The weights that the code normalises, with the layer of ours that has the weight, and the code's name of its bias.
WEIGHTS = {
    **{
        f"{name}_{suffix}": (f"{ours}.{site}", bias and f"{name}_{bias}")
        for name, ours in (("encoder", "forward_gru"), ("encoder_r", "backward_gru"), ("decoder", "first_gru"))
        for suffix, site, bias in (
            *(("W", "gates_x", "b"), ("U", "gates_h", "")),
            *(("Wx", "candidate_x", "bx"), ("Ux", "candidate_h", "")),
        )
    },
    "decoder_Wc": ("second_gru.gates_x", ""),
    "decoder_U_nl": ("second_gru.gates_h", "decoder_b_nl"),
    "decoder_Wcx": ("second_gru.candidate_x", ""),
    "decoder_Ux_nl": ("second_gru.candidate_h", "decoder_bx_nl"),
    "decoder_Wc_att": ("keys", "decoder_b_att"),
    "decoder_W_comb_att": ("query", ""),
    "decoder_U_att": ("score", "decoder_c_tt"),
    "ff_state_W": ("initial", "ff_state_b"),
    "ff_logit_prev_W": ("of_previous", "ff_logit_prev_b"),
    "ff_logit_lstm_W": ("of_state", "ff_logit_lstm_b"),
    "ff_logit_ctx_W": ("of_context", "ff_logit_ctx_b"),
}
NORMS = {
    "none": norms.NoNorm(name="none"),
    "ln": norms.LN(name="ln", eps=EPS),
    "rms": norms.RMS(name="rms", eps=EPS, bias=True),  # the authors' instructions keep LayerNorm's bias
    "wn": norms.WN(name="wn", eps=EPS, inverse_gain=True),
}


def make(name: str, **sizes: int) -> RNNSearch:
    sizes = {"source_size": SOURCES, "target_size": TARGETS, "embedding": E, "hidden": H} | sizes
    return RNNSearch(NORMS[name], **sizes, tied=False, score_bias=True)  # type: ignore[arg-type]


class Theano:
    """The parameters of a model under the code's names, and its formulas."""

    def __init__(self, norm: str, model: RNNSearch) -> None:
        self.norm = norm
        self.p = {name: value.detach().clone().requires_grad_() for name, value in named(model).items()}

    def weight(self, name: str) -> Tensor:
        weight = self.p[name]
        if self.norm != "wn":
            return weight
        norms_of_columns = torch.sqrt((weight * weight).sum(0, keepdim=True) + EPS)
        return weight / (norms_of_columns * self.p[f"{name}_wns"])

    def normalised(self, name: str, x: Tensor) -> Tensor:
        if self.norm == "ln":
            centred = x - x.mean(-1, keepdim=True)
            x = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + EPS)
        elif self.norm == "rms":
            x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)
        else:
            return x
        return self.p[f"{name}_lns"] * x + self.p[f"{name}_lnb"]

    def layer(self, name: str, x: Tensor) -> Tensor:
        product, bias = x @ self.weight(name), WEIGHTS[name][1]
        return self.normalised(name, product + self.p[bias] if bias else product)

    def gru_step(self, gates: Tensor, candidate: Tensor, u: str, ux: str, h: Tensor) -> Tensor:
        preact = torch.sigmoid(self.layer(u, h) + gates)
        reset, update = preact[:, :H], preact[:, H:]
        return update * h + (1 - update) * torch.tanh(self.layer(ux, h) * reset + candidate)

    def encoder(self, prefix: str, embedded: Tensor, mask: Tensor) -> Tensor:
        gates, candidates = self.layer(f"{prefix}_W", embedded), self.layer(f"{prefix}_Wx", embedded)
        h, states = torch.zeros(embedded.shape[1], H, dtype=embedded.dtype), []
        for t, m in enumerate(mask.unsqueeze(2)):
            h = m * self.gru_step(gates[t], candidates[t], f"{prefix}_U", f"{prefix}_Ux", h) + (1 - m) * h
            states.append(h)
        return torch.stack(states)

    def cost(self, x: Tensor, x_mask: Tensor, y: Tensor, y_mask: Tensor) -> Tensor:
        """Return the cost of a batch; tokens and masks are (time, batch)."""
        embedded = self.p["Wemb"][x]
        forward = self.encoder("encoder", embedded, x_mask)
        backward = self.encoder("encoder_r", embedded.flip(0), x_mask.flip(0)).flip(0)
        ctx = torch.cat([forward, backward], 2)
        s = torch.tanh(self.layer("ff_state_W", (ctx * x_mask[:, :, None]).sum(0) / x_mask.sum(0)[:, None]))
        emb = self.p["Wemb_dec"][y]
        emb = torch.cat([torch.zeros_like(emb[:1]), emb[:-1]])
        keys, cost = self.layer("decoder_Wc_att", ctx), torch.zeros(y.shape[1], dtype=emb.dtype)
        for t, m in enumerate(y_mask.unsqueeze(2)):
            gates, candidate = self.layer("decoder_W", emb[t]), self.layer("decoder_Wx", emb[t])
            h1 = m * self.gru_step(gates, candidate, "decoder_U", "decoder_Ux", s) + (1 - m) * s
            hidden = torch.tanh(keys + self.layer("decoder_W_comb_att", h1))
            alpha = (hidden @ self.weight("decoder_U_att") + self.p["decoder_c_tt"]).squeeze(2)
            alpha = torch.exp(alpha - alpha.max(0, keepdim=True).values) * x_mask
            context = (ctx * (alpha / alpha.sum(0, keepdim=True))[:, :, None]).sum(0)
            gates, candidate = self.layer("decoder_Wc", context), self.layer("decoder_Wcx", context)
            s = m * self.gru_step(gates, candidate, "decoder_U_nl", "decoder_Ux_nl", h1) + (1 - m) * h1
            parts = (("lstm", s), ("prev", emb[t]), ("ctx", context))
            logit = torch.tanh(sum((self.layer(f"ff_logit_{part}_W", value) for part, value in parts), torch.zeros(1)))
            probs = torch.softmax(logit @ self.p["ff_logit_W"] + self.p["ff_logit_b"], 1)
            cost = cost - torch.log(probs.gather(1, y[t].unsqueeze(1)).squeeze(1)) * y_mask[t]
        return cost.mean()


def named(model: Any) -> dict[str, Tensor]:
    """Return the parameters of a model under the names and in the shapes of the Theano code."""
    found = {
        "Wemb": model.source_embedding,
        "Wemb_dec": model.target_embedding,
        "ff_logit_W": model.output_weight.T,
        "ff_logit_b": model.output_bias,
    }
    for name, (path, bias) in WEIGHTS.items():
        layer = model.get_submodule(path)
        found[name] = layer.weight.T
        if bias:
            found[bias] = layer.bias
        if layer.norm.weight is not None:
            found |= {f"{name}_lns": layer.norm.weight, f"{name}_lnb": layer.norm.bias}
        if layer.reparametrisation is not None:
            found[f"{name}_wns"] = layer.reparametrisation.gain
    assert sum(value.numel() for value in found.values()) == parameters(model)
    return found


@pytest.mark.parametrize("name", NORMS)
def test_loss_and_one_training_step_are_those_of_the_theano_code(name: str) -> None:
    """The step is Adam after clipping of the gradient, both as that code computes them."""
    model, batch = fill(make(name)), batch_of(pairs(RAGGED))
    code = Theano(name, model)
    masks = [mask.T.double() for mask in (batch.source_mask, batch.target_mask)]
    cost = code.cost(batch.source.T, masks[0], batch.target.T, masks[1])
    log_probabilities = torch.log_softmax(model(batch), 1)  # in float64; the task itself computes losses in float32
    targets = batch.target.flatten()[batch.real]
    loss = -log_probabilities.gather(1, targets.unsqueeze(1)).sum() / len(batch.source)
    close(loss, cost)
    stub: Any = SimpleNamespace(config=SimpleNamespace(label_smoothing=0.0))
    noise: Any = None
    assert rnnsearch.Task.objective(stub, model, batch, noise).loss.item() == pytest.approx(cost.item(), rel=1e-5)

    loss.backward()
    clip, optim = 0.1, TensorFlowAdamConfig(1e-4, 0.999, 1e-8)
    ours = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(ours)
    assert norm > clip
    clip_global(ours, clip, norm)
    optim.optimizer(model.parameters()).step()

    gradients = torch.autograd.grad(cost, list(code.p.values()))
    g2 = sum(((g * g).sum() for g in gradients), torch.zeros(()))
    rate = 1e-4 * (1 - 0.999) ** 0.5 / (1 - 0.9)
    for (key, value), g in zip(code.p.items(), gradients, strict=True):
        g = torch.where(g2 > clip**2, g / torch.sqrt(g2) * clip, g)
        m, v = (1 - 0.9) * g, (1 - 0.999) * g * g
        torch.testing.assert_close(named(model)[key], value - rate * m / (torch.sqrt(v) + 1e-8), rtol=0, atol=1e-10)


def test_a_tied_output_matrix_is_the_target_embedding() -> None:
    untied, batch = fill(make("ln")), batch_of(pairs(RAGGED))
    tied = fill(RNNSearch(NORMS["ln"], SOURCES, TARGETS, embedding=E, hidden=H, score_bias=True))
    tied.load_state_dict({key: value for key, value in untied.state_dict().items() if key != "output_weight"})
    untied.get_parameter("output_weight").data = untied.target_embedding.data
    close(tied(batch), untied(batch))


@pytest.mark.parametrize("init", [None, "lecun_normal"])
def test_square_weights_of_the_readout_are_drawn_like_others(init: str | None) -> None:
    """With equal sizes of embeddings and states, two weights of the readout are square, and one is not."""
    size, drawn = 30, {}
    for variant in rnnsearch.VARIANTS:
        options = rnnsearch.ModelConfig(size, size, init=init, init_center=0.1, variant=variant)
        model = make("none", embedding=size, hidden=size)
        task: Any = SimpleNamespace(config=SimpleNamespace(seed=0, model=options))
        rnnsearch.Task.initialise(task, model)
        drawn[variant] = model
    readout = ("of_previous", "of_state", "of_context")
    for name, weight in drawn["nematus_theano"].named_parameters():
        same = torch.equal(weight, drawn["nematus_tf"].get_parameter(name))
        assert same == (name not in ("of_previous.weight", "of_state.weight"))
    for name in readout:
        weight = drawn["nematus_theano"].get_submodule(name).weight - 0.1
        std = 0.01 if init is None else weight.shape[1] ** -0.5
        expected = torch.empty(weight.shape).normal_(0, std, generator=stream(0, "init", f"{name}.weight"))
        close(weight, expected, rtol=0, atol=1e-6)
