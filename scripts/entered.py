"""Count what a reader of one run would pass: the modules and functions of the package that it enters.

    python scripts/entered.py [OVERRIDE ...]        # default: task=rnnsearch norm=rms max_steps=4

A module is entered when its body is executed; a function when it is called (``sys.setprofile``). Those before the
training begins, in :meth:`rmsexp.train.loop.Trainer.run`, are counted apart. The run is written to a temporary folder.
"""

import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).parents[1] / "rmsexp"
RUN = ["task=rnnsearch", "norm=rms", "max_steps=4"]
BODIES = ("<module>", "<lambda>", "<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")


def main() -> None:
    entered: dict[tuple[str, str], bool] = {}  # file and qualified name of each code -> whether it was before training
    training = False

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal training
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            training |= code.co_qualname == "Trainer.run"
            entered.setdefault((code.co_filename, code.co_qualname), not training)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        from rmsexp.__main__ import main as command

        with tempfile.TemporaryDirectory() as results:
            status = command([*(sys.argv[1:] or RUN), f"results={results}"])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    functions = {key: before for key, before in entered.items() if not key[1].endswith(BODIES)}
    modules = {file for file, _ in entered}
    print(f"exit status {status}")
    print(f"{len(modules)} modules entered, {len(functions)} functions")
    before = [file for (file, _), early in functions.items() if early]
    print(f"{len(before)} functions before the training, in {len(set(before))} modules")


if __name__ == "__main__":
    main()
