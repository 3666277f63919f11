"""``finetune doctor``: what an installation lacks."""
