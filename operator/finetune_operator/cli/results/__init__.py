"""Commands on what jobs have produced: comparing, reports, downloads, TensorBoard, and trying a model."""
