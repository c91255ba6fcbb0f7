"""The normalised GRU: by hand, beside torch's, and what each norm does inside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sites import EVERY, NORMS, close, draw, fill
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import norms
from rmsexp.models.recurrent import GRU

E, H, TIME = 3, 4, 5
LENGTHS = torch.tensor([5, 1, 3, 5, 2, 4])
BATCH = len(LENGTHS)
MASK = torch.arange(TIME) < LENGTHS.unsqueeze(1)
BOTH = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def make(name: str, *, bias_of_state: bool = False) -> Any:  # a GRU; whether a site has a bias is known to the tests
    return fill(GRU(NORMS[name], "gru", E, H, bias_of_state=bias_of_state))


def turned(x: Tensor) -> Tensor:
    """Each sequence of LENGTHS with its real part in reverse, the padding after it."""
    rows = [torch.cat([row[:length].flip(0), row[length:]]) for row, length in zip(x, LENGTHS.tolist(), strict=True)]
    return torch.stack(rows)


# --- by hand


def by_hand(norm: norms.Norm, x: float, state: list[float]) -> Tensor:
    gru = GRU(norm, "gru", 1, 2).double()
    values = {
        "gates_x.weight": [[0], [-7], [5], [4]],
        "gates_x.bias": [1, 0, 0, 1],
        "gates_h.weight": [[1, 0], [2, 0], [1, 2], [3, 2]],
        "candidate_x.weight": [[6], [1]],
        "candidate_x.bias": [1, 0],
        "candidate_h.weight": [[0, 1], [-4, 1]],
    }
    for name, value in values.items():
        gru.get_parameter(name).data = torch.tensor(value, dtype=torch.float64)
    if gru.candidate_h.norm.weight is not None:
        gru.candidate_h.norm.weight.data = torch.tensor([1.0, 2.0], dtype=torch.float64)
    sequence, initial = (torch.tensor([value], dtype=torch.float64) for value in ([[x]], state))
    return gru(sequence, initial=initial)[0, 0]


def test_a_transition_by_hand() -> None:
    """Gates of x (1, -0.7, 0.5, 1.4), of h (0.2, 0.4, 0.4, 0.8); candidate of x (1.6, 0.1), of h (0.1, -0.7)."""
    r0, r1, u0, u1 = 0.7685247834990175, 0.425557483188341, 0.7109495026250039, 0.9002495108803148
    assert torch.sigmoid(torch.tensor([1.2, -0.3, 0.9, 2.2])).tolist() == pytest.approx([r0, r1, u0, u1], rel=1e-6)
    c0, c1 = torch.tanh(torch.tensor([1.6 + r0 * 0.1, 0.1 + r1 * -0.7])).tolist()
    states = by_hand(NORMS["none"], 0.1, [0.2, 0.1]).tolist()
    assert states == pytest.approx([u0 * 0.2 + (1 - u0) * c0, u1 * 0.1 + (1 - u1) * c1], rel=1e-6)
    assert states == pytest.approx([0.41171558606022096, 0.07053900158373494], rel=1e-12)


def test_a_transition_with_rmsnorm_by_hand() -> None:
    """Gates of x (1, -7, 5, 5), RMS 5; of h (2, 4, 4, 8), RMS 5; candidate of x (7, 1), RMS 5; of h (1, -7), RMS 5.

    Normalised: (0.2, -1.4, 1, 1) + (0.4, 0.8, 0.8, 1.6), (1.4, 0.2) and, with the gain (1, 2), (0.2, -2.8).
    """
    r0, r1, u0, u1 = 0.6456563062257954, 0.35434369377420455, 0.8581489350995123, 0.9308615796566533
    assert torch.sigmoid(torch.tensor([0.6, -0.6, 1.8, 2.6])).tolist() == pytest.approx([r0, r1, u0, u1], rel=1e-6)
    c0, c1 = torch.tanh(torch.tensor([1.4 + r0 * 0.2, 0.2 + r1 * -2.8])).tolist()
    states = by_hand(norms.RMS(name="rms", eps=0.0), 1.0, [2.0, 1.0]).tolist()
    assert states == pytest.approx([u0 * 2 + (1 - u0) * c0, u1 * 1 + (1 - u1) * c1], rel=1e-6)
    assert states == pytest.approx([1.8454214634212223, 0.8852556475872541], rel=1e-12)


# --- beside torch


def torch_gru(*grus: Any, bias_of_state: bool) -> nn.GRU:
    """torch's GRU (gates r, z = u, n = candidate) with the weights of one, or of both directions."""
    theirs = nn.GRU(E, H, batch_first=True, bidirectional=len(grus) == 2).double()
    for ours, suffix in zip(grus, ("", "_reverse"), strict=False):
        for gates, candidate, kind in (
            (ours.gates_x, ours.candidate_x, "ih"),
            (ours.gates_h, ours.candidate_h, "hh"),
        ):
            theirs.get_parameter(f"weight_{kind}_l0{suffix}").data = torch.cat(
                [gates.weight, candidate.weight]
            ).detach()
            has_bias = (kind == "hh") == bias_of_state
            assert (gates.bias is not None, candidate.bias is not None) == (has_bias, has_bias)
            bias = torch.cat([gates.bias, candidate.bias]) if has_bias else torch.zeros(3 * H, dtype=torch.float64)
            theirs.get_parameter(f"bias_{kind}_l0{suffix}").data = bias.detach()
    return theirs


@pytest.mark.parametrize("bias_of_state", [False, True])
def test_without_norm_it_is_torch_gru(bias_of_state: bool) -> None:
    ours = make("none", bias_of_state=bias_of_state)
    theirs = torch_gru(ours, bias_of_state=bias_of_state)
    d, results = draw(BATCH, TIME, H, seed=3), []
    for run in (lambda x, h: ours(x, initial=h), lambda x, h: theirs(x, h.unsqueeze(0))[0]):
        x, h = draw(BATCH, TIME, E).requires_grad_(), draw(BATCH, H, seed=2).requires_grad_()
        states = run(x, h)
        states.backward(d)
        results.append((states, x.grad, h.grad))
    close(*results)
    weights = {"ih": (ours.gates_x, ours.candidate_x), "hh": (ours.gates_h, ours.candidate_h)}
    for kind, (gates, candidate) in weights.items():
        close(torch.cat([gates.weight.grad, candidate.weight.grad]), theirs.get_parameter(f"weight_{kind}_l0").grad)
    gates, candidate = weights["hh" if bias_of_state else "ih"]
    kind = "hh" if bias_of_state else "ih"
    close(torch.cat([gates.bias.grad, candidate.bias.grad]), theirs.get_parameter(f"bias_{kind}_l0").grad)


def test_two_directions_of_ragged_sequences_are_torch_s() -> None:
    ours = make("none"), make("none")
    fill(ours[1], seed=50)
    theirs, d = torch_gru(*ours, bias_of_state=False), draw(BATCH, TIME, 2 * H, seed=3) * MASK.unsqueeze(-1)
    leaves = [draw(BATCH, TIME, E).requires_grad_() for _ in range(2)]
    states = torch.cat([ours[0](leaves[0], MASK), ours[1](leaves[0], MASK, reverse=True)], -1)
    packed = nn.utils.rnn.pack_padded_sequence(leaves[1], LENGTHS, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    close(states[MASK], expected[MASK])
    for result in (states, expected):
        result.backward(d)
    close(leaves[0].grad, leaves[1].grad)
    for gru, suffix in zip(ours, ("", "_reverse"), strict=True):
        grads = torch.cat([gru.gates_h.weight.grad, gru.candidate_h.weight.grad])
        close(grads, theirs.get_parameter(f"weight_hh_l0{suffix}").grad)


# --- sequences, masks, directions


@EVERY
@BOTH
def test_padding_leaves_the_state(name: str, reverse: bool) -> None:
    gru, initial = make(name), draw(BATCH, H, seed=2)
    states = gru(draw(BATCH, TIME, E), MASK, initial, reverse=reverse)
    in_order = turned(states) if reverse else states
    for row, length in zip(in_order, LENGTHS.tolist(), strict=True):
        close(row[length:], row[length - 1].expand(TIME - length, H))
        assert not torch.equal(row[length - 1], initial[0])


@EVERY
def test_reverse_is_forward_of_the_turned_sequence(name: str) -> None:
    gru, x, initial = make(name), draw(BATCH, TIME, E), draw(BATCH, H, seed=2)
    gru(x, MASK, reverse=True)  # the running statistics of batch norms
    gru.eval()
    close(gru(x, MASK, initial, reverse=True), turned(gru(turned(x), MASK, initial)))
    close(gru(x, initial=initial, reverse=True), gru(x.flip(1), initial=initial).flip(1))


@EVERY
@BOTH
def test_what_lies_in_the_padding_does_not_matter(name: str, reverse: bool) -> None:
    x = draw(BATCH, TIME, E)
    results = []
    for padding in (0.0, 100.0):
        gru = make(name)
        states = gru(torch.where(MASK.unsqueeze(-1), x, padding), MASK, reverse=reverse)
        states[MASK].square().sum().backward()
        results.append((states, gru.state_dict(), [parameter.grad for parameter in gru.parameters()]))
    for first, second in zip(*results, strict=True):
        close(first, second)


@EVERY
def test_no_initial_state_is_zeros_and_no_mask_is_all_real(name: str) -> None:
    gru, x = make(name).eval(), draw(BATCH, TIME, E)
    expected = gru(x, torch.ones(BATCH, TIME, dtype=torch.bool), torch.zeros(BATCH, H, dtype=torch.float64))
    close(gru(x), expected)
    assert not torch.allclose(gru(x, initial=draw(BATCH, H, seed=2)), expected)


@EVERY
def test_a_state_carries_a_sequence_on(name: str) -> None:
    """All norms in evaluation; the time steps of batch norms begin at 0 again, so they have no statistics of steps."""
    gru, x = make(name).eval(), draw(BATCH, TIME, E)
    whole = gru(x)
    close(torch.cat([whole[:, :2], gru(x[:, 2:], initial=whole[:, 1])], 1), whole)


# --- where the norm is


@pytest.mark.parametrize("bias_of_state", [False, True])
@EVERY
def test_biases_are_on_the_side_asked_for(name: str, bias_of_state: bool) -> None:
    gru = GRU(NORMS[name], "gru", E, H, bias_of_state=bias_of_state)
    inside = {n for n, _ in gru.named_parameters() if n.count(".") == 1 and n.endswith(".bias")}
    side = "h" if bias_of_state else "x"
    assert inside == {f"gates_{side}.bias", f"candidate_{side}.bias"}


def test_the_sites_and_their_blocks() -> None:
    gru = GRU(NORMS["ln"], "encoder.forward", E, H)
    sites = {module.site.name: module.site for module in gru.modules() if isinstance(module, norms.Linear)}
    parts = {"gates_x": (2 * H, 2), "gates_h": (2 * H, 2), "candidate_x": (H, 1), "candidate_h": (H, 1)}
    assert {name: (site.features, site.blocks) for name, site in sites.items()} == {
        f"encoder.forward.{part}": sizes for part, sizes in parts.items()
    }


def layer_norm(site: Any, x: Tensor, parts: int = 1) -> Tensor:
    """LN of a map's result, of all its features together or of ``parts`` apart."""
    y = F.linear(x, site.weight, site.bias).unflatten(-1, (parts, -1))
    return F.layer_norm(y, y.shape[-1:]).flatten(-2) * site.norm.weight + site.norm.bias


@pytest.mark.parametrize(
    ("parts", "reset_first", "equal"),
    [(1, False, True), (2, False, False), (1, True, False)],
    ids=["as documented", "each gate alone", "reset gate before the map"],
)
def test_gates_are_normalised_jointly_and_reset_acts_after_the_norm(parts: int, reset_first: bool, equal: bool) -> None:
    gru, x, h = make("ln"), draw(BATCH, E), draw(BATCH, H, seed=2)
    gates = layer_norm(gru.gates_x, x, parts) + layer_norm(gru.gates_h, h, parts)
    reset, update = torch.sigmoid(gates).chunk(2, -1)
    past = layer_norm(gru.candidate_h, reset * h) if reset_first else reset * layer_norm(gru.candidate_h, h)
    candidate = torch.tanh(layer_norm(gru.candidate_x, x) + past)
    expected = update * h + (1 - update) * candidate
    assert torch.allclose(gru(x.unsqueeze(1), initial=h)[:, 0], expected, rtol=1e-10, atol=1e-10) == equal


def test_the_partial_statistic_is_of_the_reset_gate() -> None:
    gru, x = make("prms"), draw(BATCH, 1, E)  # p = 0.25

    def read() -> Tensor:
        return gru.read(x, gru.weights(), None, range(1))[0]

    before = read()
    a = F.linear(x, gru.gates_x.weight, gru.gates_x.bias)
    close(before, a / (a[..., :2].square().mean(-1, keepdim=True) + 1e-5).sqrt() * gru.gates_x.norm.weight)
    gru.gates_x.weight.data[H:] *= 10  # the update gate's
    assert torch.equal(read()[..., :H], before[..., :H])
    gru.gates_x.weight.data[:2] *= 10  # two units of the reset gate
    assert not torch.isclose(read()[..., H:], 10 * before[..., H:]).any()


def test_weight_norm_is_a_gru_with_the_effective_weights() -> None:
    gru, plain = make("wn"), GRU(NORMS["none"], "gru", E, H).double()
    for name in ("gates_x", "gates_h", "candidate_x", "candidate_h"):
        site, other = getattr(gru, name), getattr(plain, name)
        direction = site.weight / site.weight.square().sum(1, keepdim=True).sqrt()
        other.weight.data = (site.reparametrisation.gain.unsqueeze(1) * direction).detach()
        if site.bias is not None:
            other.bias.data = site.bias.data
    x = draw(BATCH, TIME, E)
    close(gru(x, MASK), plain(x, MASK))


@BOTH
def test_batch_norm_has_statistics_of_each_step_in_reading_order(reverse: bool) -> None:
    """Step t is of the sentences longer than t, in reverse of their t-th token from the end; 4 are the fewest."""
    gru, x, initial = make("bn"), draw(BATCH, TIME, E), draw(BATCH, H, seed=2)
    states = gru(x, MASK, initial, reverse=reverse)
    read, after = (turned(x), turned(states)) if reverse else (x, states)
    before = torch.cat([initial.unsqueeze(1), after[:, :-1]], 1)
    for site, of in ((gru.gates_x, read), (gru.candidate_x, read), (gru.gates_h, before), (gru.candidate_h, before)):
        a = F.linear(of, site.weight, site.bias)
        assert site.norm.count.tolist() == [1, 1, 1, 0, 0]  # 6, 5, 4, 3 and 2 sentences
        for step in range(3):
            real = a[MASK[:, step], step]
            close(site.norm.running_mean[step], real.mean(0))
            close(site.norm.running_var[step], real.var(0))
        gain, shift, eps = site.norm.weight, site.norm.bias, site.norm.eps
        mean, var = a[MASK[:, 0], 0].mean(0), a[MASK[:, 0], 0].var(0, unbiased=False)
        close(site.norm(a[:, 0], MASK[:, 0], 0), (a[:, 0] - mean) / (var + eps).sqrt() * gain + shift)
