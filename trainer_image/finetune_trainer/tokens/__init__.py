"""Examples become tokens: the chat template, the trained turns within its text, and what does not belong there."""
