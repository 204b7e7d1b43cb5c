"""What writes a model: `quantize.py` stores one in another format."""
