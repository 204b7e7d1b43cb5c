"""Model files: where they come from, and where in them each byte lies. Nothing is decoded here."""
