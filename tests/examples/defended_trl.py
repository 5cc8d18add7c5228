from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop

from thiefbench.integrations.trl_async import DefendedScoring


class DefendedLoop(DefendedScoring, _AsyncRolloutLoop):
    defense = 'arithmetic(reject="drop")'


class DefendedWorker(AsyncRolloutWorker):
    _loop_cls = DefendedLoop
