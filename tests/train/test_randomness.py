"""Random streams and noise, which depend only on a seed and a name."""

import pytest
import torch
from helpers.tensors import digest

from rmsexp.train.randomness import StreamNoise, choices, drawn_index, permutation, seed_of, stream

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def test_streams_never_change_between_versions() -> None:
    assert stream(0, "init", "conv1.weight").initial_seed() == 7157283324590418078
    assert stream(7, "noise", 3, 0).initial_seed() == 4823566900274488176
    assert permutation(10, 0, "order", 0).tolist() == [1, 6, 0, 8, 7, 9, 5, 3, 2, 4]
    assert choices(10, 5, 0, "captions", 0).tolist() == [4, 4, 4, 0, 4, 4, 4, 1, 0, 0]
    uniform = torch.empty(1000).uniform_(generator=stream(0, "x"))
    assert digest(uniform) == "cb6640b24aa3ea1238062be8dd3b9c0c03bc891bbb87f0588daba0f1186c00dd"


def test_streams_differ_by_every_part_of_their_name() -> None:
    names = [(0, "noise", 1, 0), (0, "noise", 0, 1), (1, "noise", 1, 0), (0, "init", 1, 0), (0, "noise", 1), (0,)]
    names += [(0, "noise", 11, 0), (0, "noise", 1, 10), (10, "noise", 1, 0)]
    assert len({stream(*name).initial_seed() for name in names}) == len(names)


def test_a_stream_has_no_history() -> None:
    def draw() -> str:
        return digest(StreamNoise(3, "noise", 5, 0).dropout(torch.ones(4, 5), 0.5), permutation(50, 3, "order", 1))

    first = draw()
    torch.manual_seed(17)
    StreamNoise(3, "noise", 4, 0).gaussian(torch.ones(7), 1.0)
    torch.rand(3)
    state = torch.get_rng_state()
    assert draw() == first
    assert torch.equal(torch.get_rng_state(), state)  # the draws do not change the default generator


@pytest.mark.parametrize("options", [1, 2, 5, 128])
def test_choices_are_uniform_and_independent(options: int) -> None:
    """The counts of each option and of equal neighbours are within five standard deviations of their expectations."""
    chosen = choices(20_000, options, 0, "captions", 0)
    assert (chosen.dtype, chosen.shape) == (torch.int64, (20_000,))
    counts = chosen.bincount().tolist()
    deviation = (20_000 * (1 / options) * (1 - 1 / options)) ** 0.5
    assert counts == pytest.approx([20_000 / options] * options, abs=5 * deviation)
    assert (chosen[1:] == chosen[:-1]).sum().item() == pytest.approx(19_999 / options, abs=5 * deviation)


@pytest.mark.parametrize("shape", [(4, 6, 8, 8), (2, 3, 5, 7), (5, 7), (2, 5, 3)])
@pytest.mark.parametrize("kind", ["gaussian", "dropout"])
def test_noise_is_the_same_in_every_layout_and_keeps_it(kind: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=stream(0, "x")) + 0.5
    results = []
    for layout in LAYOUTS.values() if len(shape) == 4 else [torch.contiguous_format]:
        placed = x.contiguous(memory_format=layout)
        noise = StreamNoise(0, "noise", 3, 0)
        result = [getattr(noise, kind)(placed, 0.3) for _ in range(2)]
        assert all(part.is_contiguous(memory_format=layout) for part in result)
        assert not torch.equal(*result)  # successive draws from one stream
        results.append(digest(*result))
    assert len(set(results)) == 1
    assert digest(x) not in results


def test_gaussian_noise_is_normal_with_mean_0_and_the_given_deviation() -> None:
    noise = StreamNoise(0, "noise").gaussian(torch.full((100, 100), 3.0), 0.15) - 3
    drawn = torch.empty(100, 100).normal_(0, 0.15, generator=stream(0, "noise"))
    torch.testing.assert_close(noise, drawn, rtol=0, atol=1e-6)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(p: float) -> None:
    x = torch.rand(200, 200, generator=stream(0, "x")) + 0.5
    dropped = StreamNoise(0, "noise").dropout(x, p)
    mask = dropped != 0
    assert 1 - mask.double().mean().item() == pytest.approx(p, abs=0.01)
    torch.testing.assert_close(dropped[mask], x[mask] / (1 - p))
    assert x.min() >= 0.5  # the input is not changed


def test_noise_in_bfloat16_is_that_of_float32() -> None:
    x = torch.ones(50, 50)
    wide, narrow = (StreamNoise(0, "noise").dropout(x.to(dtype), 0.5) for dtype in (torch.float32, torch.bfloat16))
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow.float(), wide)
    wide, narrow = (StreamNoise(0, "noise").gaussian(x.to(dtype), 0.1) for dtype in (torch.float32, torch.bfloat16))
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, atol=0.01, rtol=0.01)


def test_gradients_pass_through_dropout_where_values_remain() -> None:
    x = torch.rand(30, 30, generator=stream(0, "x")).requires_grad_()
    dropped = StreamNoise(0, "noise").dropout(x, 0.5)
    dropped.sum().backward()
    assert torch.equal(x.grad, 2 * (dropped != 0).float())


def test_seeds_of_the_default_generator_depend_on_the_stream_and_the_number_of_calls() -> None:
    """Seeding it does not change the draws from the stream."""

    def seeds(seed: int, *name: str | int) -> list[int]:
        noise, values, x = StreamNoise(seed, *name), list[int](), torch.ones(4, 5)
        with torch.random.fork_rng(devices=[]):
            for _ in range(3):
                noise.seed_default(torch.device("cpu"))
                values.append(torch.default_generator.initial_seed())
                torch.rand(5)  # draws in between do not change the next seed
        assert torch.equal(noise.dropout(x, 0.5), StreamNoise(seed, *name).dropout(x, 0.5))
        return values

    first = seeds(3, "noise", 5, 0)
    assert first == [seed_of(3, "noise", 5, 0, "default", number) for number in (1, 2, 3)]
    torch.manual_seed(17)
    assert seeds(3, "noise", 5, 0) == first
    all_seeds = {*first, *seeds(3, "noise", 5, 1), *seeds(3, "noise", 6, 0), *seeds(4, "noise", 5, 0)}
    assert len(all_seeds) == 12


def test_indices_have_the_probabilities_of_the_logits_over_the_temperature() -> None:
    logits, generator = torch.tensor([0.0, 1.0, 2.0]), torch.Generator().manual_seed(0)
    drawn = torch.cat([drawn_index(logits, 0.5, generator) for _ in range(4000)])
    shares = torch.bincount(drawn, minlength=3) / 4000
    torch.testing.assert_close(shares, (2 * logits).softmax(0), rtol=0, atol=0.03)
    assert [int(drawn_index(logits, temperature, generator)) for temperature in (0, 1e-300)] == [2, 2]
