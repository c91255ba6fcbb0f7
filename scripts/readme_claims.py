"""The blocks that set claims of others beside ours: those of the paper, and those on which public sources disagree."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from readme_blocks import PAPER_SAVINGS, listed, of_steps, spread, table, verdicts, verdicts_on

from rmsexp.report.tables.formats import NO_VALUE
from rmsexp.report.tables.verdicts import deciding, note_on_rates, qualified
from rmsexp.rules import claims


class Dispute(NamedTuple):
    """A claim on which public sources disagree: for, against, and the claim of a campaign."""

    claim: str
    pro: str
    contra: str
    decides: str


ARXIV = "[{0}](https://arxiv.org/abs/{0})".format
SCALED = "RMSNorm is better with LayerNorm Scaling"
PLACED = "RMSNorm is better in sandwich than in reordered placement"
WIDER = "RMSNorm has a wider stable range with QK-norm"
UNCHANGED = "The difference between RMSNorm and LayerNorm does not change with the number of steps"
DOCKET = (
    Dispute(
        "DyT is as good as RMSNorm",
        ARXIV("2503.10622"),
        f"{ARXIV('2604.23434')}; nanochat's log, 5 May 2026",
        "DyT with tuned alpha is not worse than RMSNorm",
    ),
    Dispute(
        "Derf is better than norms, with AdamW",
        ARXIV("2512.10938"),
        f"{ARXIV('2604.01563')}: 0.31 nats per subword worse",
        "Derf with tuned alpha is not worse than RMSNorm",
    ),
    Dispute(
        "Derf is better than norms, with Muon",
        NO_VALUE,
        f"{ARXIV('2604.01563')}: 0.97 nats per subword worse",
        "Derf is not worse than RMSNorm, with Muon",
    ),
    Dispute("LayerNorm Scaling helps", ARXIV("2502.05795"), "nanochat's log, 24 March 2026", SCALED),
    Dispute(
        "the gain is not needed",
        "nanochat; modded-nanogpt, track 1",
        "its track 3",
        "RMSNorm without gain is not worse than RMSNorm",
    ),
    Dispute("sandwich beats reordered placement", ARXIV("2502.02732"), "OLMo 2, with QK-norm", PLACED),
    Dispute("QK-norm widens the stable range of rates", ARXIV("2309.14322"), NO_VALUE, WIDER),
    Dispute("re-centring does not begin to help as training grows", ARXIV("2409.12951"), NO_VALUE, UNCHANGED),
)


def docket() -> str:
    """What the field argues about, and what the campaigns say: the claim that they decided, or that it is open."""
    rows = []
    for dispute in DOCKET:
        texts = [f"{qualified(row)}: {deciding(row)}" for row in verdicts() if row["claim"] == dispute.decides]
        here = "; ".join(texts) or "not decided yet"
        rows.append({"claim": dispute.claim, "for": dispute.pro, "against": dispute.contra, "here": here})
    return table(rows)


class Item(NamedTuple):
    """A claim: the paper's tables and figures that make it, the difference there, and the claim of a campaign.

    ``said``: the paper's claim if it is another one than the campaign's.
    """

    name: str
    published: str
    task: str
    claim: str
    said: str = ""


ITEMS = (
    Item("Figure 2, Tables 2, 3", "-0.4 to +0.9 BLEU", "rnnsearch", "LayerNorm is better than no norm"),
    Item("Tables 2, 3", "-0.6 to +0.2 BLEU", "rnnsearch", "RMSNorm equals LayerNorm"),
    Item("Tables 2, 3", "-0.5 to +0.4 BLEU", "rnnsearch", "pRMSNorm equals LayerNorm"),
    Item("Table 4", "0.0 to +0.2 BLEU", "transformer", "RMSNorm equals LayerNorm"),
    Item("Table 4", "-0.1 to +0.1 BLEU", "transformer", "pRMSNorm equals LayerNorm"),
    Item("Figure 4", "+ (drawn)", "rnnsearch", "RMSNorm is better than LayerNorm, centred on 0.4"),
    Item("Figure 5", NO_VALUE, "attentive_reader", "RMSNorm equals LayerNorm"),
    Item("Figure 5", NO_VALUE, "attentive_reader", "pRMSNorm equals LayerNorm"),
    Item("Figure 6, Table 7", "+0.8 to +0.9 points", "order_embedding", "LayerNorm is better than no norm"),
    Item("Figure 6, Table 7", "+0.1 points", "order_embedding", "RMSNorm equals LayerNorm"),
    Item("Figure 6, Table 7", "0.0 to +0.1 points", "order_embedding", "pRMSNorm equals LayerNorm"),
    Item("Table 10", "+1.66 points", "cifar10", "RMSNorm equals LayerNorm", "RMSNorm is better than LayerNorm"),
    Item("Table 10", "-1.53 points", "cifar10", "LayerNorm is better than no norm"),
    Item("Table 10", "+0.13 points", "cifar10", "RMSNorm is better than no norm"),
    Item("Table 10", "+0.71 points", "cifar10", "BatchNorm is better than no norm"),
    Item("Table 10", "+0.68 points", "cifar10", "WeightNorm is better than no norm"),
    Item("Table 10", "+0.58 points", "cifar10", "BatchNorm is better than RMSNorm"),
    Item("Table 10", "-1.54 points", "cifar10", "pRMSNorm is not worse than RMSNorm"),
    Item("Table 10", "+0.12 points", "cifar10", "pRMSNorm equals LayerNorm"),
)
# scores, the longer ones first, and their verbs in a sentence that counts them
PLURALS = {"agrees in sign": "agree in sign", "agrees": "agree", "disagrees": "disagree", "undecided": "are undecided"}
PLURALS |= {"the paper's signs differ": "has several signs in the paper"}
TIMED = {"Tables 2, 3": "rnnsearch", "Table 4": "transformer", "Table 6": "attentive_reader"}
TIMED |= {"Table 8": "order_embedding", "Table 10": "cifar10"}


def paper_items() -> str:
    """The paper's claims of which a campaign or the timings have something to say, with a score by fixed rules."""
    rows, smaller = [], 0
    for item in ITEMS:
        for row in verdicts_on(item.claim, item.task):
            decimals = 4 if row["unit"] == "nats" else 2
            numbers = [f"{row[key]:+.{decimals}f}" for key in ("difference", "low", "high")]
            here = "{} ({} to {})".format(*numbers)
            rate = "".join(re.findall(r"\+tune\.over\.([^+]+)", row["campaign"]))  # of a campaign made twice
            claim = ", ".join(filter(None, (item.said or item.claim, rate)))
            shown = {"item": f"{row['label']}, {item.name}", "claim": claim, "paper": item.published}
            here = f"{here[:-1]}, {100 * row['level']:.3g} %) {row['unit']}"
            coarse = note_on_rates(row) or (item.said and math.isnan(row["uncertainty_a"]))
            rows.append(shown | {"here": here, "score": score(item, row) + "†" * bool(coarse)})
    for name, task in TIMED.items():
        for norm, published in zip(("RMSNorm", "pRMSNorm"), PAPER_SAVINGS[task], strict=True):
            own = [one for one in of_steps("eager", norm) if one.task == task]
            agrees = "agrees in sign" if all(one.low > 0 for one in own) else "undecided"
            smaller += max(one.saved for one in own) < float(published.partition(" to ")[0])
            shown = {"item": f"`{task}`, {name}", "claim": f"{norm} saves time", "paper": f"{published} %"}
            rows.append(shown | {"here": spread(one.saved for one in own), "score": agrees})
    scores = [next(words for words in PLURALS if row["score"].startswith(words)) for row in rows]
    counts = listed(f"{scores.count(words)} {plural}" for words, plural in PLURALS.items() if words in scores)
    tested = len({(row["item"].partition(",")[0], row["claim"].partition(", optim")[0]) for row in rows})
    savings = f"{smaller} of {2 * len(TIMED)} savings are smaller than the paper's on every CPU"
    return f"Of these {len(rows)} rows on {tested} claims {counts}; {savings}.\n\n{table(rows)}"


def score(item: Item, row: Mapping[Any, Any]) -> str:
    """Return whether a verdict agrees with the paper. Equality is undecided if a model without norm passes."""
    if "equals" in (item.said or item.claim):
        words = {claims.SUPPORTED: "agrees", claims.REFUTED: "disagrees"}
        found = "undecided" if row["blind"] else words.get(row["outcome"], "undecided")
        return f"{found}{'*' * bool(row['remarks'])}{', not registered' * (not row['registered'])}"
    remarked = "*" * bool(row["remarks"])
    if math.isnan(row["low"]) or row["low"] <= 0 <= row["high"]:
        return f"undecided{remarked}"
    signs = {number.startswith("+") for number in item.published.split() if number[0] in "+-"}
    if len(signs) > 1:
        return "the paper's signs differ"
    is_true = row["low"] > 0
    denied = "" if is_true else " (both deny it)"
    return f"agrees in sign{remarked}{denied}" if {is_true} == signs else f"disagrees{remarked}"


BLOCKS = {"paper": paper_items, "docket": docket}
