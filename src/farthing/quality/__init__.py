"""How good a model is, against a reference, with intervals on every figure."""
