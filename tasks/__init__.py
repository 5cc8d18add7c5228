"""The ground floor: what is asked and how an answer is rewarded."""
