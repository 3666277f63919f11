"""From a model's folder to a MaxText checkpoint, in the cache and on the devices."""
