"""Tasks: what the model is asked and how its completions are rewarded. No other part of the package is imported."""
