"""The decoder, and its names in Hugging Face checkpoints, in and out."""
