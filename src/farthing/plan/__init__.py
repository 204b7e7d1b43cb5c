"""What a model takes, before anything is allocated."""
