"""Train a translation model with JoeyNMT 2.3, for scripts/compare_joeynmt.py. Runs in an environment of its own.

    python worker.py prepare FOLDER                      learn the subwords of FOLDER/train.en and FOLDER/train.de
    python worker.py speed FOLDER CONFIG --steps 40      train some steps, and print their target tokens and seconds
    python worker.py train FOLDER CONFIG --minutes 20    train for some minutes, and translate FOLDER/test.en

The last line that it prints is a JSON object. CONFIG is a file beside this one; "FOLDER" in it is replaced. With
present versions of torch and sentencepiece JoeyNMT 2.3 needs the patches in :func:`patch`, and importlib_metadata.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

VOCABULARY = 4000
SPECIAL = ("<unk>", "<pad>", "<s>", "</s>")  # JoeyNMT's first tokens, in the order of its ids
WARMUP = 5  # steps that do not count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "speed", "train"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("config", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=40, help="number of timed steps (40)")
    parser.add_argument("--minutes", type=float, default=20, help="minutes of training, without validation (20)")
    parser.add_argument("--threads", type=int, default=2, help="number of CPU threads (2)")
    arguments = parser.parse_args()
    if arguments.what == "prepare":
        prepare(arguments.folder)
        found: dict[str, Any] = {}
    else:
        found = run(arguments)
    print(json.dumps(found))


def prepare(folder: Path) -> None:
    """Learn subwords as rmsexp does, with the ids of JoeyNMT's special tokens; write joint.model and joint.txt."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    SentencePieceTrainer.train(
        input=[str(folder / f"train.{language}") for language in ("en", "de")],
        model_prefix=str(folder / "joint"),
        model_type="bpe",
        vocab_size=VOCABULARY,
        character_coverage=1.0,
        unk_id=0,
        pad_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    pieces = SentencePieceProcessor(model_file=str(folder / "joint.model"))
    words = [pieces.id_to_piece(number) for number in range(len(SPECIAL), pieces.get_piece_size())]
    (folder / "joint.txt").write_text("".join(f"{word}\n" for word in words))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train as CONFIG says, and return what was found: speeds, or the score of the translations."""
    import torch
    import yaml
    from joeynmt import prediction, training

    torch.set_num_threads(arguments.threads)
    patch(torch)
    text = arguments.config.read_text().replace("FOLDER", str(arguments.folder))
    cfg = yaml.safe_load(text)
    Path(cfg["model_dir"]).mkdir(parents=True, exist_ok=True)
    steps = Steps(arguments.steps + WARMUP if arguments.what == "speed" else None, 60 * arguments.minutes)
    training.TrainManager._train_step = steps.around(training.TrainManager._train_step)
    training.TrainManager._validate = steps.outside(training.TrainManager._validate)
    training.train(rank=0, world_size=None, cfg=cfg, skip_test=True)
    found = {"versions": {name: metadata.version(name) for name in ("joeynmt", "torch")}}
    if arguments.what == "speed":
        return found | {"tokens": steps.tokens[WARMUP:], "seconds": steps.seconds[WARMUP:]}
    cfg = yaml.safe_load(text)
    prediction.test(cfg=cfg, output_path=str(Path(cfg["model_dir"]) / "translations"))
    return found | {"steps": len(steps.tokens), "minutes": sum(steps.seconds) / 60} | score(cfg)


def patch(torch: Any) -> None:
    """Adapt JoeyNMT 2.3 to present versions of torch (2.15) and sentencepiece (0.2.3).

    1. Schedulers of torch have no argument ``verbose`` any more.
    2. ``torch.load`` reads only tensors and plain values, unless asked otherwise.
    3. sentencepiece has no ``SetVocabulary`` any more, which limits subwords to a vocabulary; ours has all of them.
    """
    from joeynmt import builders, helpers
    from sentencepiece import SentencePieceProcessor

    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    builders.ReduceLROnPlateau = lambda *words, verbose=False, **options: plateau(*words, **options)  # noqa: ARG005
    load = torch.load
    helpers.torch.load = lambda *words, **options: load(*words, weights_only=False, **options)
    if not hasattr(SentencePieceProcessor, "SetVocabulary"):
        SentencePieceProcessor.SetVocabulary = lambda *_: None


class Steps:
    """Counts target tokens and seconds of training steps, and ends the training after ``most`` steps or ``limit`` s.

    The time of a step is from its beginning to the beginning of the next one, without validation.
    """

    def __init__(self, most: int | None, limit: float) -> None:
        self.tokens: list[int] = []
        self.seconds: list[float] = []
        self._most, self._limit = most, limit
        self._began: float | None = None
        self._outside = 0.0

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(manager: Any, batch: Any) -> Any:
            now = time.perf_counter()
            if self._began is not None:
                self.seconds.append(now - self._began - self._outside)
            self._began, self._outside = now, 0.0
            if len(self.tokens) == self._most or sum(self.seconds) > self._limit:
                raise KeyboardInterrupt  # the training then saves a checkpoint and returns
            self.tokens.append(int(batch.ntokens))
            return step(manager, batch)

        return counted

    def outside(self, validate: Callable[..., Any]) -> Callable[..., Any]:
        def excluded(*words: Any) -> Any:
            began = time.perf_counter()
            result = validate(*words)
            self._outside += time.perf_counter() - began
            return result

        return excluded


def score(cfg: dict[str, Any]) -> dict[str, Any]:
    """Return BLEU and its signature of the translations of the test set."""
    from sacrebleu.metrics import BLEU

    translations = Path(cfg["model_dir"], "translations.test").read_text().splitlines()
    references = Path(f"{cfg['data']['test']}.de").read_text().splitlines()
    metric = BLEU()
    return {"bleu": metric.corpus_score(translations, [references]).score, "signature": str(metric.get_signature())}


if __name__ == "__main__":
    main()
