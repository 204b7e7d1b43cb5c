"""Which token runs when, and who owns a block."""
