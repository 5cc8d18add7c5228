"""What verl writes with `trainer.rollout_data_dir`: {step}.jsonl, a line for each completion.

The format is that of verl 0.9.1 (`RayPPOTrainer._write_generations` in verl/trainer/ppo/ray_trainer.py, the same in
verl/trainer/ppo/v1/trainer_base.py): input and output are texts without special tokens, gts is the ground truth as the
data set has it, score the sum of the token-level scores, step the global step. Further fields are what the reward
function returned beside the score.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thiefbench.pools.rounds import FiledCompletion, FiledItem
from thiefbench.rollouts import fields as of
from thiefbench.rollouts.source import Reading, Rollout, Source


def _rollouts(fields: Mapping[str, Any], reading: Reading) -> list[Rollout]:
    question, truth = of.text(fields, "input"), fields.get("gts")
    answer = str(truth) if type(truth) in (str, int, float) else None
    if answer is not None:
        of.as_text(answer, "gts")
    item = FiledItem(f"prompt-{of.digest(question, answer or '')}", question, answer)
    number = reading.step if fields.get("step") is None and reading.step is not None else of.integer(fields, "step")
    completion = FiledCompletion(
        sender=of.label(fields, reading.sender) if reading.sender else None,
        text=of.text(fields, "output"),
        reward=of.reward(of.present(fields, "score"), "score"),
    )
    return [Rollout(number, item, completion)]


VERL = Source(
    name="verl",
    parquet=False,
    marks=frozenset({"input", "output", "score"}),
    rollouts=_rollouts,
    senders="senders, and verl's rollouts name none: only defenses that judge each text by itself can be replayed",
)
