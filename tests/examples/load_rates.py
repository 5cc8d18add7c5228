# load_rates.py
import thiefbench

completions = thiefbench.load("runs/smoke").completions.to_pandas()
poison = completions[completions["payload"] & (completions["reward"] > 0)]
rates = (poison["action"] != "accept").groupby(poison["defense"]).mean()
print(rates)  # the stop rate of each defense
