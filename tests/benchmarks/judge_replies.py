"""How often the judge that rewards replies otherwise: again, with other threads, instructions and in another batch.

    python tests/benchmarks/judge_replies.py --rounds 3 [--completions 384] [--others]

A round's completions are of micro-math before training, a quarter of them drawn keys of `master_key`; every round has
noise of its own. Each setting is a process of its own and is compared with the first: printed are the replies and the
rewards that differ, of all and in the worst round, and seconds of processor time. `--others` adds settings that make
the processor compute as an older one (a processor with AVX-512 is needed for all of them). About a minute for a setting
and 1,000 completions on an idle core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from thiefbench import registry
from thiefbench.attacks.master_key import MasterKey
from thiefbench.defenses.base import JudgeSpec
from thiefbench.engine.context import items_of
from thiefbench.engine.keys import key
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.reward_judge import RewardJudgeSpec
from thiefbench.engine.rewarding import reply_noise
from thiefbench.engine.views.attacker import AttackerPolicy
from thiefbench.engine.views.defender import Judge
from thiefbench.judges import judge_of
from thiefbench.reward_judges import PromptedRewardJudge
from thiefbench.suite.analysis.scoring import wilson
from thiefbench.tasks.base import Message, Sampling
from thiefbench.zoo.models import resolve

SEED = 0
Pairs = list[list[str]]
"""Question and completion of each."""


@dataclass(frozen=True)
class Setting:
    """How a judge is asked.

    Attributes:
        name: for readers.
        threads: of the processor.
        environment: that the process is started with.
        half: whether only every second completion of a round is asked about, in batches of their own.
    """

    name: str
    threads: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    half: bool = False


SAME = (
    Setting("1 thread"),
    Setting("again"),
    Setting("2 threads", 2, {"OMP_WAIT_POLICY": "passive"}),
    Setting("4 threads", 4, {"OMP_WAIT_POLICY": "passive"}),
    Setting("half of the round", half=True),
)
OTHERS = (
    Setting("AVX2", environment={"ATEN_CPU_CAPABILITY": "avx2"}),
    Setting(
        "AVX2, also in matrix products",
        environment={
            "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        },
    ),
    Setting("no vector instructions", environment={"ATEN_CPU_CAPABILITY": "default"}),
)  # fmt: skip


class Kept:
    """A judge whose replies are kept."""

    def __init__(self, judge: Judge) -> None:
        self._judge, self.replies = judge, list[list[str]]()

    def ask(self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int) -> list[list[str]]:
        """The judge's replies."""
        self.replies = self._judge.ask(prompts, sampling, votes, noise)
        return self.replies


def round_of(number: int, completions: int) -> Pairs:
    """Completions of a round like those of a swarm under attack."""
    task = registry.make("task", "gsm_micro")
    items = items_of(task, "train")[number * completions : (number + 1) * completions]
    policy = AttackerPolicy(
        Policy.load(resolve("micro-math")), task, Sampling(top_k=50, max_new_tokens=96), (key("replies", number),)
    )
    pairs = [[item.question, done.text] for item, (done,) in zip(items, policy.sample(items, 1), strict=True)]
    for place in range(0, completions, 4):
        sent = str(MasterKey().draw(random.Random(place)).keys).split(" | ")[0]
        pairs[place][1] = task.compose(items[place], sent)
    return pairs


def reply(rounds: Sequence[Pairs], half: bool) -> list[list[tuple[str, float]]]:
    """The reply to every completion, and its reward."""
    spec, found = RewardJudgeSpec(), []
    kept = Kept(judge_of(JudgeSpec(spec.model)))
    judge = PromptedRewardJudge(kept, spec)
    for number, pairs in enumerate(rounds, 1):
        asked = sorted({(question, text) for question, text in pairs})  # the order in which the judge is asked
        asked = asked[::2] if half else asked
        scores = judge.score(asked, reply_noise(SEED, number))
        found.append([(said[0], score.reward) for said, score in zip(kept.replies, scores, strict=True)])
    return found


def asked_in(setting: Setting, folder: Path) -> tuple[list[list[tuple[str, float]]], float]:
    """The replies of a process with this setting, and its processor time in seconds."""
    words = [sys.executable, __file__, "--reply", str(folder), "--threads", str(setting.threads)]
    done = subprocess.run(
        [*words, *(["--half"] if setting.half else [])], env=os.environ | setting.environment, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    return told["rounds"], told["seconds"]


def compared(setting: Setting, first: list[list[tuple[str, float]]], folder: Path) -> str:
    """A row of the table."""
    here, seconds = asked_in(setting, folder)
    counts, replies, rewards = [], 0, 0
    for one, other in zip(first, here, strict=True):
        known = one[::2] if setting.half else one
        differing = sum(a[1] != b[1] for a, b in zip(known, other, strict=True))
        replies += sum(a[0] != b[0] for a, b in zip(known, other, strict=True))
        rewards += differing
        counts.append(differing / len(other))
    total = sum(map(len, here))
    rate = wilson(rewards, total)
    return (
        f"| {setting.name} | {replies} of {total} | {rewards}: {rate.value:.4f} [{rate.low:.4f}, {rate.high:.4f}] | "
        f"{max(counts):.4f} | {seconds:.0f} |"
    )


def main() -> None:
    """Print the table, or the replies of one process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--completions", type=int, default=384, help="of a round")
    parser.add_argument("--others", action="store_true", help="also as an older processor would")
    parser.add_argument("--only", action="append", help="one of the settings; repeat for several")
    parser.add_argument("--reply", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--half", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.reply:
        rounds = json.loads((given.reply / "rounds.json").read_text())
        began = time.process_time()
        found = reply(rounds, given.half)
        print(json.dumps({"rounds": found, "seconds": time.process_time() - began}))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rounds = [round_of(number, given.completions) for number in range(given.rounds)]
        (folder / "rounds.json").write_text(json.dumps(rounds))
        first, seconds = asked_in(SAME[0], folder)
        print("| setting | replies that differ | rewards that differ | of the worst round | seconds |")
        print("|---|---|---|---|---|")
        print(f"| {SAME[0].name} | of {sum(map(len, first))} | | | {seconds:.0f} |", flush=True)
        settings = [*SAME[1:], *(OTHERS if given.others else ())]
        for setting in [each for each in settings if not given.only or each.name in given.only]:
            print(compared(setting, first, folder), flush=True)


if __name__ == "__main__":
    main()
