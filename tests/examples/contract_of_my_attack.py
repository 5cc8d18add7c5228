# test_my_attack.py
from thiefbench.testing.contracts import AttackContract


class TestShouting(AttackContract):
    attack = "my_attack.py:Shouting"
