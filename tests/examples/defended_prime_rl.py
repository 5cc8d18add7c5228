from prime_rl.orchestrator import algo

from thiefbench.integrations.prime_rl import DefendedGroup


class DefendedGRPO(DefendedGroup, algo.GRPOAlgorithm):
    defense = 'static_code(reject="drop")'
    defense_sender = "hotkey"  # a field of the traces' info; leave it out if there is none


algo.ALGORITHM_CLASSES["grpo"] = DefendedGRPO
