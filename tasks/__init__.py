"""Tasks: what the model is asked and how completions are rewarded. They import no other part of the package."""
