"""Two rounds of the built-in model, compared with what they gave when the engine's revision was fixed.

A change that alters tokens here alters the results of every stored cell: raise `ENGINE_REVISION` in
`bench/engine/__init__.py` and put the new hash beside the new number.
"""

import hashlib

import torch

from thiefbench.attacks.text import Text
from thiefbench.defenses.logit import Logit
from thiefbench.engine import ENGINE_REVISION
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Sampling
from thiefbench.tasks.gsm_micro import GsmMicro
from thiefbench.zoo.models import resolve

GOLDEN = {
    1: "67fbfd1ca7953f7b67410b70a5d6ec82ed0ce9c1de28497719d46a9124b2c3bf",
    2: "67fbfd1ca7953f7b67410b70a5d6ec82ed0ce9c1de28497719d46a9124b2c3bf",
    3: "67fbfd1ca7953f7b67410b70a5d6ec82ed0ce9c1de28497719d46a9124b2c3bf",
}


def test_results_change_only_with_the_engine_revision():
    torch.set_num_threads(2)
    spec = SwarmSpec(prompts=8, group=4, nodes=4, malicious=1, sampling=Sampling(max_new_tokens=64))
    swarm = Swarm(spec, "attack", Policy.load(resolve("micro-math")), GsmMicro(size=256), Text(), Logit(), seed=0)
    rows = [row for number in (1, 2) for row in swarm.round(number).rows]
    told = "\n".join(f"{r.item_id} {r.group} {r.place} {r.ids} {r.payload} {r.reward} {r.action}" for r in rows)
    assert hashlib.sha256(told.encode()).hexdigest() == GOLDEN[ENGINE_REVISION], (
        "results of a cell changed: raise ENGINE_REVISION and record the new hash here"
    )
