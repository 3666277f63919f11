"""The proof that a converted model is the user's model."""
