from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from thiefbench.integrations.verl import DefendedRewards


class Rewards(DefendedRewards, NaiveRewardManager):
    defense = "rejecting(defense='arithmetic', reject='zero')"
