"""The Hugging Face Hub, and the user's model on this machine."""
