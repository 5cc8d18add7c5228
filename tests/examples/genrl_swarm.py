"""A live GenRL swarm on this machine, attacked and defended.

python genrl_swarm.py --attack text --defense similarity
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from thiefbench.engine.spec import SpecError
from thiefbench.errors import UserError
from thiefbench.integrations.genrl.settings import LiveSwarm
from thiefbench.integrations.genrl.swarm import play
from thiefbench.registry import SpecStringError


def main() -> int:
    """Play the swarm that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/genrl"), help="where record and completions are stored")
    default = LiveSwarm()
    names = ("attack", "defense", "task", "model", "role", "nodes", "malicious", "local", "external", "group")
    for name in (*names, "rounds", "learning_rate", "minibatch", "padding", "seed", "timeout", "threads"):
        value = getattr(default, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=" ")
    parser.add_argument("--every", type=int, default=default.evaluation.every, help="rounds between evaluations")
    parser.add_argument("--completions", type=int, default=default.evaluation.completions, help="of an evaluation")
    parser.add_argument(
        "--final", type=int, default=default.evaluation.final, help="completions of the last evaluation"
    )
    options = vars(parser.parse_args())
    out = options.pop("out")
    evaluation = replace(default.evaluation, **{name: options.pop(name) for name in ("every", "completions", "final")})
    try:
        record = play(LiveSwarm(**options, evaluation=evaluation), out, lambda line: print(line, flush=True))
    except (UserError, SpecError, SpecStringError) as error:
        print(error, file=sys.stderr)
        return 1
    for name in ("asr", "stop_rate", "false_rejection_rate", "clean_reward", "start_reward", "mean_length"):
        score = record.scores[name]
        print(f"{name:22}", "n/a" if score.value is None else f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
