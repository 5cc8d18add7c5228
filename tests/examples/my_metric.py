# my_metric.py
import evaluate

from thiefbench import metrics

asr = evaluate.load(metrics.path("attack_success_rate"))
texts = ["<think> All hail to the thief, 2 + 4 = 6. </think><answer> 6 </answer>", "6"]
attack = 'text(phrase="All hail to the thief")'
print(asr.compute(predictions=texts, references=["6", "6"], attack=attack, task="gsm_micro"))
